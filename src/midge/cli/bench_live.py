"""`midge bench live`: how many streams a server carries, and how soon it answers."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from midge.audio import Audio, read_audio
from midge.bench.live import DELAY_LIMIT, Load, LoadReport, replayed
from midge.bench.live_server import (
    MAX_STREAMS,
    at_one_rate,
    most_carried,
    server_process,
    spoken_recordings,
)
from midge.cli.mistakes import users_own
from midge.cli.outputs import tell
from midge.cli.serve import server_runner

_HERE = ("127.0.0.1", "localhost", "::1")
_DESCRIPTION = f"""\
Replays recordings at real time to a server on this machine, each stream in messages of 100 ms, and
measures when the answer comes by which a message is decoded. A load is carried if no message is
missed and all but one in a hundred answers come within {DELAY_LIMIT:g} s, the wait for a block of
sound included. The replay shares the processors with the server; what it takes is told. Run nothing
else meanwhile."""

_EXAMPLES = """\
examples:
  midge bench live --streams 2 --seconds 2 --margin inf --model demo/speech/global
  midge bench live speech.flac --json --streams 2 --seconds 2 --model demo/speech/global
  midge bench live --find --streams 1 --most 2 --seconds 2 --model demo/speech/global

Without AUDIO synthetic speech is replayed, by espeak-ng."""


def add_to(commands: Any) -> None:
    """Adds the command to the subparsers of `midge bench`."""
    parser = commands.add_parser(
        "live",
        help="how many streams a server carries",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_run)
    load = Load()
    parser.add_argument("audio", nargs="*", type=Path, metavar="AUDIO", help="recordings")
    parser.add_argument(
        "--streams", type=int, default=load.num_streams, metavar="N", help=f"({load.num_streams})"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=load.seconds,
        metavar="S",
        help=f"length of each stream ({load.seconds:g})",
    )
    parser.add_argument(
        "--message-seconds",
        type=float,
        default=load.message_seconds,
        metavar="S",
        help=f"sound in a message ({load.message_seconds:g})",
    )
    parser.add_argument("--no-endpoints", action="store_true", help="one segment, however long")
    parser.add_argument("--confidence", action="store_true", help="ask for confidences")
    parser.add_argument(
        "--num-best",
        type=int,
        default=load.num_best,
        metavar="N",
        help=f"ask for alternatives; the page asks for 3, and confidences ({load.num_best})",
    )
    parser.add_argument("--find", action="store_true", help="look for the most that is carried")
    parser.add_argument(
        "--most", type=int, default=MAX_STREAMS, metavar="N", help=f"of --find ({MAX_STREAMS})"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, not a table")
    server = parser.add_argument_group("server (one is started, unless --url names it)")
    server.add_argument("--model", type=Path, metavar="MODEL", help="(the one of midge)")
    server.add_argument("--margin", metavar="X", help="as for midge serve")
    server.add_argument("--block-size", metavar="N", help="as for midge serve")
    server.add_argument("--threads", metavar="N", help="as for midge serve")
    server.add_argument("--url", metavar="URL", help="of a server that runs on this machine")
    server.add_argument("--token", metavar="TOKEN", help="that it wants")


def _run(arguments: argparse.Namespace) -> int:
    with users_own():
        _check(arguments)
        load = Load(
            num_streams=arguments.streams,
            seconds=arguments.seconds,
            message_seconds=arguments.message_seconds,
            has_endpoints=not arguments.no_endpoints,
            has_confidence=arguments.confidence,
            num_best=arguments.num_best,
        )
        recordings = _recordings(arguments.audio)
        with _served(arguments) as url:
            reports = _measured(arguments, load, url, recordings)
    if arguments.json:
        print(json.dumps({"reports": [report.to_json() for report in reports]}))
    else:
        print(table(reports))
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Refuses what would be ignored, or would trouble others."""
    server_runner()  # its packages are needed here, too
    if arguments.url is None:
        return
    for name in ("model", "margin", "block_size", "threads"):
        if getattr(arguments, name) is not None:
            raise ValueError(f"--{name.replace('_', '-')} is for a server that is started here")
    if urlsplit(arguments.url).hostname not in _HERE:
        raise ValueError(f"--url should be a server on this machine, got {arguments.url}")


def _recordings(paths: Sequence[Path]) -> list[Audio]:
    if not paths:
        return spoken_recordings()
    return [at_one_rate(read_audio(path)) for path in paths]


@contextmanager
def _served(arguments: argparse.Namespace) -> Iterator[str]:
    """The address of the server, which is started if need be."""
    if arguments.url is not None:
        yield arguments.url
        return
    most = str(max(arguments.streams, arguments.most if arguments.find else 0))
    options = ["--max-streams", most, "--max-streams-per-client", most]
    for name in ("margin", "block_size", "threads"):
        value = getattr(arguments, name)
        options += [] if value is None else [f"--{name.replace('_', '-')}", value]
    model = [] if arguments.model is None else [str(arguments.model)]
    with server_process([*model, *options]) as url:
        yield url


def _measured(
    arguments: argparse.Namespace, load: Load, url: str, recordings: Sequence[Audio]
) -> list[LoadReport]:
    def measure(load: Load) -> LoadReport:
        report = replayed(url, recordings, load, arguments.token)
        verdict = "carried" if report.is_carried else "not carried"
        tell(f"{load.num_streams} streams: p99 {1000 * report.delays['p99']:.0f} ms, {verdict}")
        return report

    # What a server does for the first time is slower: a stream alone goes before.
    first = dataclasses.replace(load, num_streams=1, seconds=max(1.0, load.message_seconds))
    replayed(url, recordings, first, arguments.token)
    return most_carried(measure, load, arguments.most) if arguments.find else [measure(load)]


def table(reports: Sequence[LoadReport]) -> str:
    """Loads, a line each; delays in milliseconds."""
    lines = [
        "| streams | p50 | p90 | p99 | max | missed | failed | server | replay | late | carried |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for report in reports:
        delays = " | ".join(f"{1000 * report.delays[name]:.0f}" for name in report.delays)
        server = "-" if report.server_share is None else f"{100 * report.server_share:.0f} %"
        lines.append(
            f"| {report.load.num_streams} | {delays} | {report.num_missed} | {report.num_failed} "
            f"| {server} | {100 * report.client_share:.0f} % | {1000 * report.lateness:.0f} "
            f"| {'yes' if report.is_carried else 'no'} |"
        )
    message, block = reports[0].load.message_seconds, reports[0].block_seconds
    lines += [
        "",
        f"Milliseconds from when a message of {1000 * message:g} ms was due to the answer by",
        f"which it is decoded. A block of {1000 * block:g} ms is decoded together; the wait for",
        "its end is included. Shares are of one processor.",
    ]
    return "\n".join(lines)
