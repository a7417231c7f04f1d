"""Chromium for the tests of the page, installed where it is missing and may be."""

import os
import shutil
import subprocess

NOT_RUN = "THE BROWSER TESTS DID NOT RUN"
"""How the reason of a skipped test begins, which is then repeated at the end of all tests."""

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_PACKAGES = ("update", "install -y --no-install-recommends chromium")
_PATIENCE_SECONDS = 900
OPTIONS = (
    "--no-sandbox",  # root has none
    "--autoplay-policy=no-user-gesture-required",
)
"""What it is always started with."""


def chromium_path() -> str | None:
    """The path of Chromium; None if it is missing and cannot be installed here."""
    return _found() or _installed()


def _found() -> str | None:
    return next(filter(None, map(shutil.which, _NAMES)), None)


def _installed() -> str | None:
    """Debian's package, if we are allowed to install one."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return None
    for command in _PACKAGES:
        arguments = ["apt-get", *command.split()]
        subprocess.run(arguments, check=False, capture_output=True, timeout=_PATIENCE_SECONDS)
    return _found()
