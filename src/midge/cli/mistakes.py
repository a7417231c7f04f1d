"""Mistakes of the user, told apart from errors of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Mistake(Exception):
    """Something the user can put right; its text is all that is shown."""


@contextmanager
def users_own() -> Iterator[None]:
    """Takes a ValueError, an OSError or a missing package inside for the user's mistake.

    Only around what checks the user's arguments or touches the user's files: elsewhere such an
    error is ours, and its traceback is wanted.
    """
    try:
        yield
    except OSError as error:
        where = f"{error.filename}: " if error.filename is not None else ""
        raise Mistake(f"{where}{error.strerror or error}") from error
    except (ValueError, ImportError) as error:
        raise Mistake(str(error)) from error
