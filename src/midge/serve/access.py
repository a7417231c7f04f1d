"""Who may come in: tokens, origins, and how many at once."""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from midge.serve.endpoints import is_loopback
from midge.serve.settings import Limits

EVERY_ORIGIN = "*"


class Refusal(Exception):
    """A client that is not let in.

    Args:
        code: for programs: "unauthorized", "origin", "full", "client_full" or "shutdown".
        message: for people.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, kw_only=True)
class Access:
    """Whom a server lets in."""

    token: str | None = None
    """What clients have to know; None asks for nothing."""
    origins: Collection[str] = ()
    """Origins of pages, besides our own, that may connect; "*" is every page."""
    is_local: bool = True
    """Whether the server listens on this machine alone."""

    def __post_init__(self) -> None:
        """Checks the values."""
        if self.token is not None and not self.token:
            raise ValueError("token should not be empty; leave it out to let everybody in")
        for origin in self.origins:
            if origin != EVERY_ORIGIN and not urlsplit(origin).netloc:
                raise ValueError(f"origin should be like https://example.org, got {origin!r}")

    def check(self, headers: Mapping[str, str], query_token: str | None) -> None:
        """Lets a request pass, or not.

        Args:
            headers: of the request, by lower-case names.
            query_token: the `token` of its address: a browser cannot add a header to a WebSocket.

        Raises:
            Refusal: says why.
        """
        self.check_origin(headers)
        self.check_token(headers, query_token)

    def check_origin(self, headers: Mapping[str, str]) -> None:
        """Refuses pages of others: a browser lets any page connect to any server.

        A server of this machine alone takes no name but that of this machine for its own. The
        Host that a browser sends proves nothing there: a page can have its name lead here.
        """
        origin = headers.get("origin")
        if origin is None or {EVERY_ORIGIN, origin} & set(self.origins):
            return
        try:
            place = urlsplit(origin)
        except ValueError:
            raise Refusal("origin", "the Origin of the page is no address") from None
        is_own = place.netloc == headers.get("host", "")
        if not is_own or (self.is_local and not is_loopback(place.hostname or "")):
            raise Refusal("origin", f"pages of {origin} may not connect; see --allow-origin")

    def check_token(self, headers: Mapping[str, str], query_token: str | None) -> None:
        """Refuses who does not know the token; comparing takes the same time however wrong."""
        if self.token is None:
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            given = query_token or ""
        if not hmac.compare_digest(given.strip().encode(), self.token.encode()):
            raise Refusal("unauthorized", "the token is missing or wrong")


class Admission:
    """Counts streams, and refuses those beyond the limits. On the event loop."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._by_client: Counter[str] = Counter()
        self._num_extra = 0
        self.is_closed = False
        """Whether nobody is let in any more."""

    @property
    def num_streams(self) -> int:
        """How many there are now."""
        return self._by_client.total()

    @contextmanager
    def admitted(self, client: str) -> Iterator[None]:
        """Holds a place for a stream.

        Args:
            client: its address.

        Raises:
            Refusal: if there is none.
        """
        self._check(client)
        self._by_client[client] += 1
        try:
            yield
        finally:
            self._by_client[client] -= 1
            if not self._by_client[client]:
                del self._by_client[client]

    @contextmanager
    def costly(self, has_confidence: bool) -> Iterator[None]:
        """Holds further places for an admitted stream whose confidences cost as much as streams.

        Alone it is let in whatever it costs.

        Raises:
            Refusal: if there are not enough.
        """
        num_extra = self._limits.confident_places - 1 if has_confidence else 0
        num_taken = self.num_streams + self._num_extra
        if num_taken > 1 and num_taken + num_extra > self._limits.max_streams:
            raise self._full()
        self._num_extra += num_extra
        try:
            yield
        finally:
            self._num_extra -= num_extra

    def _full(self) -> Refusal:
        return Refusal(
            "full",
            f"the server is full: it has {self.num_streams} streams, and carries "
            f"{self._limits.max_streams} plain ones, of which one with confidences counts as "
            f"{self._limits.confident_places}; try again later",
        )

    def _check(self, client: str) -> None:
        limits = self._limits
        if self.is_closed:
            raise Refusal("shutdown", "the server is shutting down")
        if self.num_streams + self._num_extra >= limits.max_streams:
            raise self._full()
        if self._by_client[client] >= limits.max_streams_per_client:
            raise Refusal(
                "client_full",
                f"your address has {limits.max_streams_per_client} streams, which is the limit",
            )
