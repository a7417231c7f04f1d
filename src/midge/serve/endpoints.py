"""Where a server listens."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from pathlib import Path

_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Every address of this machine, and one that a browser can open."""


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where a server listens."""

    host: str = "127.0.0.1"
    """Its address; by default nobody else's machine reaches it."""
    port: int = 2700
    """0 takes one that is free."""
    certificate: Path | None = None
    """For HTTPS, with its key."""
    key: Path | None = None
    """Of the certificate."""

    def __post_init__(self) -> None:
        """Checks the values."""
        if not 0 <= self.port < 1 << 16:
            raise ValueError(f"port should be in 0..65535, got {self.port}")
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key should be given together, got one of them")
        for path in (self.certificate, self.key):
            if path is not None:
                path.open("rb").close()

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches it."""
        return is_loopback(self.host)

    def url(self, port: int) -> str:
        """Of the page on this machine, by the port that it has got."""
        scheme = "http" if self.certificate is None else "https"
        host = _WILDCARDS.get(self.host, self.host)
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}/"


def is_loopback(host: str) -> bool:
    """Whether a host is this machine.

    Example:
        >>> [is_loopback(host) for host in ("localhost", "127.0.0.1", "::1", "0.0.0.0", "a.org")]
        [True, True, True, False, False]
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bound_socket(endpoint: Endpoint) -> socket.socket:
    """A socket that listens there.

    Raises:
        OSError: if the address cannot be had; it names it.
    """
    try:
        found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
        family, _, _, _, address = found[0]
        return socket.create_server(address[:2], family=family, backlog=256)
    except OSError as error:
        error.filename = f"{endpoint.host}:{endpoint.port}"
        raise
