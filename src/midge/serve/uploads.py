"""Whole files: `POST /transcribe`, decoded as a stream among the others."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from midge.audio import Audio, audio_blocks
from midge.decoding.endpointing import EndpointConfig
from midge.decoding.formats import FORMATS
from midge.serve.access import Refusal
from midge.serve.connections import client_address
from midge.serve.logs import log_event
from midge.serve.service import Service
from midge.serve.sessions import Session
from midge.serve.settings import StreamSettings

PROTOCOL = "upload"
_BLOCK_SECONDS = 1.0
_KNOWN = {"format", "endpoints", "confidence", "name", "token"}
_MEDIA_TYPES = {"json": "application/json", "srt": "application/x-subrip", "vtt": "text/vtt"}
_REFUSED = {"unauthorized": 401, "origin": 403, "client_full": 429}
_UNAVAILABLE = 503


class _Rejected(Exception):
    """A request that cannot be served: its status, a code for programs, a message for people."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class _Upload:
    """A request that a shutdown lets come to its end."""

    def stop(self) -> None:
        """Does nothing: the file is there, and is decoded."""


async def transcribe_endpoint(request: Request) -> Response:
    """`POST /transcribe`: the body is an audio file, the answer its transcript.

    The query may have `format` (one of `FORMATS`, text by default), `endpoints` and `confidence`
    (true or false), and the `name` of the recording, which some formats write.
    """
    service: Service = request.app.state.service
    client = client_address(request)
    try:
        service.access.check(request.headers, request.query_params.get("token"))
        options = _Options(request)
        with service.connected(_Upload(), client):
            return await _transcribed(request, service, options, client)
    except Refusal as refusal:
        service.metrics.refused.add(part=refusal.code)
        status = _REFUSED.get(refusal.code, _UNAVAILABLE)
        return _error(status, refusal.code, str(refusal))
    except _Rejected as rejected:
        service.metrics.errors.add(part=rejected.code)
        return _error(rejected.status, rejected.code, str(rejected))
    except ClientDisconnect:
        log_event("upload_broken", client=client)
        return Response(status_code=400)


class _Options:
    """What the query asks for.

    Raises:
        _Rejected: for what is not known.
    """

    def __init__(self, request: Request) -> None:
        query = request.query_params
        if unknown := sorted(set(query) - _KNOWN):
            known = ", ".join(sorted(_KNOWN))
            raise _Rejected(400, "bad_request", f"unknown option {unknown[0]!r}; known: {known}")
        self.format_name = query.get("format", "text")
        if self.format_name not in FORMATS:
            known = ", ".join(FORMATS)
            raise _Rejected(
                400, "bad_request", f"format should be one of {known}, got {self.format_name!r}"
            )
        self.has_endpoints = _is_true("endpoints", query.get("endpoints", "true"))
        self.has_confidence = _is_true("confidence", query.get("confidence", "false"))
        self.name = query.get("name", "recording")

    def settings(self, sample_rate: int) -> StreamSettings:
        """Of the stream.

        Raises:
            ValueError: if the sample rate is out of range.
        """
        return StreamSettings(
            sample_rate=sample_rate,
            encoding="float32",
            endpointing=EndpointConfig() if self.has_endpoints else None,
            has_confidence=self.has_confidence,
        )


def _is_true(name: str, value: str) -> bool:
    if value not in ("true", "false"):
        raise _Rejected(400, "bad_request", f"{name} should be true or false, got {value!r}")
    return value == "true"


async def _transcribed(
    request: Request, service: Service, options: _Options, client: str
) -> Response:
    with tempfile.TemporaryDirectory(prefix="midge-upload-") as folder:
        path = Path(folder) / "upload"
        await _receive(request, path, service.limits.max_upload_bytes)
        try:
            session = await _heard(path, service, options, client)
        except (ValueError, OSError) as error:
            message = str(error).replace(str(path), "the file")
            raise _Rejected(415, "bad_audio", message) from error
    if session.is_cut:
        raise _Rejected(_UNAVAILABLE, "shutdown", "the server is shutting down")
    if session.end is None:
        raise _Rejected(500, "internal", session.failure or "the server could not go on")
    write = FORMATS[options.format_name].write
    text = await run_in_threadpool(write, session.end, options.name)  # it may be hours long
    media_type = _MEDIA_TYPES.get(options.format_name, "text/plain")
    return Response(text, media_type=media_type)


async def _receive(request: Request, path: Path, max_bytes: int) -> None:
    """Writes the body to a file, off the event loop.

    Raises:
        _Rejected: if it is too large, or empty.
    """
    size = 0
    with path.open("wb") as file:
        async for chunk in request.stream():
            size += len(chunk)
            if size > max_bytes:
                raise _Rejected(413, "too_large", f"a file should be at most {max_bytes} bytes")
            await run_in_threadpool(file.write, chunk)
    if not size:
        raise _Rejected(400, "bad_request", "the body should be an audio file, it is empty")


async def _heard(path: Path, service: Service, options: _Options, client: str) -> Session:
    """Decodes a file, block by block, at the pace of the worker.

    Raises:
        ValueError: if it holds no audio; what was heard of a damaged file is logged.
        OSError: if it cannot be read.
    """
    blocks = audio_blocks(path, _BLOCK_SECONDS)
    block = await run_in_threadpool(_next, blocks)
    assert block is not None, "there is at least one block"
    session = service.open(options.settings(block.sample_rate), PROTOCOL, client)
    reason = "damaged"
    try:
        while block is not None:
            if session.is_cut:
                reason = "shutdown"
                raise _Rejected(_UNAVAILABLE, "shutdown", "the server is shutting down")
            _check_length(session, block, service.limits.max_stream_seconds)
            session.send(block.samples.astype(np.dtype("<f4"), copy=False).tobytes())
            await session.room(service.limits.max_backlog_seconds)
            block = await run_in_threadpool(_next, blocks)
        reason = "end"
    finally:
        session.close()
        await session.ended()
        service.log_end(session, reason)
    return session


def _next(blocks: Iterator[Audio]) -> Audio | None:
    return next(blocks, None)


def _check_length(session: Session, block: Audio, max_seconds: float) -> None:
    if session.seconds + block.duration > max_seconds:
        raise _Rejected(413, "too_long", f"a recording should be at most {max_seconds:g} seconds")


def _error(status: int, code: str, message: str) -> Response:
    headers = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "10"}}.get(status)
    return JSONResponse({"error": {"code": code, "message": message}}, status, headers)
