"""`midge serve`: a model as a live service, and a page to speak to."""

from __future__ import annotations

import argparse
import dataclasses
import os
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import torch

from midge.cli import model_argument
from midge.cli.mistakes import users_own
from midge.cli.outputs import check_folder, tell
from midge.decoding.streams import BLOCK_SIZE, StreamingDecoder
from midge.models import Recognizer, default_model_path, load
from midge.models.best_paths import MARGIN
from midge.serve.access import Access
from midge.serve.capacity import CONFIDENT_SHARE, measured_capacity
from midge.serve.endpoints import Endpoint
from midge.serve.logs import write_logs
from midge.serve.service import ModelCard, Service
from midge.serve.settings import Limits, StreamSettings

if TYPE_CHECKING:
    from midge.serve.runner import Server

TOKEN_VARIABLE = "MIDGE_TOKEN"
_GRACE_SECONDS = 30.0
_DESCRIPTION = """\
Serves a model to many streams at once: over WebSockets, by a protocol of its own and by that of
the Vosk server, and over HTTP for whole files. Its page is there to speak to. Only this machine
reaches it, unless --host says otherwise; a microphone on another machine needs HTTPS."""

_EXAMPLES = f"""\
examples:
  midge serve --open
  midge serve demo/speech/global --host 0.0.0.0 --certificate cert.pem --key key.pem
  midge serve demo/speech/global --port 2701 --max-streams 20 --max-idle-seconds 10

Ctrl-C or SIGTERM ends it: what was received is decoded and told before. Logs, one JSON object a
line, go to standard error. {TOKEN_VARIABLE} in the environment does what --token does, and is not
seen in the list of processes."""

_LIMITS = {
    "max_streams_per_client": "streams at once from one address",
    "max_message_bytes": "of one message",
    "max_upload_bytes": "of a whole file",
    "max_stream_seconds": "of one stream",
    "max_idle_seconds": "that a client may be silent",
    "max_backlog_seconds": "of sound that may wait; then nothing is read",
}


def add_to(commands: Any) -> None:
    """Adds the command to the subparsers of `midge`."""
    parser = commands.add_parser(
        "serve",
        help="a live service, and a page to speak to",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_run)
    parser.add_argument("model", type=Path, nargs="?", metavar="MODEL", help=model_argument.HELP)
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    _add_place(parser.add_argument_group("where it listens, and to whom"))
    _add_limits(parser.add_argument_group("limits"))
    decoding = parser.add_argument_group("decoding")
    decoding.add_argument(
        "--margin",
        type=float,
        default=MARGIN,
        metavar="X",
        help=f"nats below the best at which a state is dropped; inf drops none ({MARGIN:g})",
    )
    decoding.add_argument(
        "--block-size",
        type=int,
        default=BLOCK_SIZE,
        metavar="N",
        help=f"frames that are encoded together ({BLOCK_SIZE})",
    )
    decoding.add_argument("--threads", type=int, metavar="N", help="of the model (one a core)")
    records = parser.add_argument_group("records (nothing that was said, by default)")
    records.add_argument("--log-text", action="store_true", help="log what was said")
    records.add_argument(
        "--keep-audio", type=Path, metavar="DIR", help="keep what was heard, for tests"
    )


def _add_place(group: Any) -> None:
    group.add_argument("--host", default="127.0.0.1", metavar="HOST", help="(127.0.0.1)")
    group.add_argument("--port", type=int, default=2700, metavar="N", help="0 is a free one (2700)")
    group.add_argument("--certificate", type=Path, metavar="FILE", help="for HTTPS, in PEM")
    group.add_argument("--key", type=Path, metavar="FILE", help="of the certificate")
    group.add_argument("--token", metavar="TOKEN", help="what clients have to know")
    group.add_argument(
        "--allow-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="a page elsewhere that may connect, as https://example.org; * is every page",
    )
    group.add_argument(
        "--grace-seconds",
        type=float,
        default=_GRACE_SECONDS,
        metavar="S",
        help=f"for streams to be finished when it ends ({_GRACE_SECONDS:g})",
    )


def _add_limits(group: Any) -> None:
    group.add_argument(
        "--max-streams", type=int, metavar="N", help="streams at once (measured at the start)"
    )
    for field in dataclasses.fields(Limits):
        if field.name in _LIMITS:
            group.add_argument(
                f"--{field.name.replace('_', '-')}",
                type=type(field.default),
                default=field.default,
                metavar="N",
                help=f"{_LIMITS[field.name]} ({field.default:g})",
            )


def _run(arguments: argparse.Namespace) -> int:
    with users_own():
        server = _server(arguments)

    def tell_ready(url: str) -> None:
        print(url, flush=True)
        if arguments.open:
            token = _token(arguments)
            webbrowser.open(url if token is None else f"{url}?token={quote(token)}")

    server.serve_forever(tell_ready)
    return 0


def _server(arguments: argparse.Namespace) -> Server:
    """The server that the options ask for, with its socket bound.

    Raises:
        ValueError: if an option is wrong, or the model cannot run live.
        OSError: if a file cannot be read, or the address cannot be had.
        ImportError: without the packages that a server needs.
    """
    runner = server_runner()
    endpoint = Endpoint(
        host=arguments.host,
        port=arguments.port,
        certificate=arguments.certificate,
        key=arguments.key,
    )
    access = Access(
        token=_token(arguments),
        origins=tuple(arguments.allow_origin),
        is_local=endpoint.is_local,
    )
    if not endpoint.is_local and access.token is None:
        tell("without --token everybody who reaches this machine may use it")
    if arguments.keep_audio is not None:
        check_folder(arguments.keep_audio)
    service = _service(arguments, access)
    write_logs()
    runner.prepare_process()
    server: Server = runner.Server(service, endpoint, arguments.grace_seconds)
    return server


def _token(arguments: argparse.Namespace) -> str | None:
    return arguments.token or os.environ.get(TOKEN_VARIABLE) or None


def server_runner() -> Any:
    """The module that runs a server, whose packages are an extra.

    Raises:
        ImportError: says how to get them.
    """
    try:
        from midge.serve import runner
    except ImportError as error:
        raise ImportError(
            "a server needs the packages starlette, uvicorn and websockets: "
            f"pip install 'midge[serve]' ({error})"
        ) from error
    return runner


def _service(arguments: argparse.Namespace, access: Access) -> Service:
    limits = Limits(
        **{name: getattr(arguments, name) for name in _LIMITS},
        max_streams=1 if arguments.max_streams is None else arguments.max_streams,
    )
    if arguments.threads is not None:
        if arguments.threads < 1:
            raise ValueError(f"--threads should be at least 1, got {arguments.threads}")
        torch.set_num_threads(arguments.threads)
    folder = arguments.model or default_model_path()
    recognizer = load(folder)
    decoder = StreamingDecoder(recognizer, margin=arguments.margin, block_size=arguments.block_size)
    if arguments.max_streams is None:
        plain = measured_capacity(decoder, settings=StreamSettings())
        confident = min(plain, measured_capacity(decoder, CONFIDENT_SHARE))
        limits = dataclasses.replace(
            limits, max_streams=plain, confident_places=round(plain / confident)
        )
    return Service(
        decoder,
        model_card(recognizer, folder),
        limits=limits,
        access=access,
        keep_folder=arguments.keep_audio,
        has_text_logs=arguments.log_text,
    )


def model_card(recognizer: Recognizer, folder: Path) -> ModelCard:
    """How a model is presented: by the name of its folder, and what it was said to be in training.

    Args:
        recognizer: the model.
        folder: from which it was read.
    """
    folder = folder.resolve()
    name = folder.parent.name if folder.name == "model" else folder.name
    told = recognizer.training_summary.get("description")
    if isinstance(told, str):
        return ModelCard(name=name, description=told)
    lattice, encoder = recognizer.config.lattice, recognizer.config.encoder
    made_of = f"{lattice.model}, {lattice.parts().normalization} normalization, {encoder.kind}"
    return ModelCard(name=name, description=made_of)
