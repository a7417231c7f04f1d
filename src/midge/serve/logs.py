"""Logs: one JSON object a line, on standard error.

Neither sound nor text is logged, unless the server was asked to.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from typing import TextIO

_logger = logging.getLogger("midge.serve")


class JsonFormatter(logging.Formatter):
    """A record as a JSON object: time (UTC), level, event, and the fields that come with it."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{seconds}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[1] is not None:
            line |= _described(record.exc_info[1])
        return json.dumps(line, ensure_ascii=False, default=str)


def _described(error: BaseException) -> dict[str, str]:
    described = {"error": f"{type(error).__name__}: {error}"}
    if isinstance(error, UnicodeDecodeError):
        return described  # a client's: text that is no UTF-8 is no fault in our code
    return described | {"traceback": "".join(traceback.format_exception(error))}


def log_event(event: str, *, level: int = logging.INFO, **fields: object) -> None:
    """Logs what has happened."""
    _logger.log(level, event, extra={"fields": fields})


def write_logs(output: TextIO | None = None) -> None:
    """Sends the logs of midge and of what it runs on to an output, standard error by default."""
    handler = logging.StreamHandler(output or sys.stderr)
    handler.setFormatter(JsonFormatter())
    for name in ("midge", "uvicorn", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO if name == "midge" else logging.WARNING)
