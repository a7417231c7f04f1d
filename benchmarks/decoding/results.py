"""The file of results: what was measured of which model, where and when."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from midge.bench.report import machine
from midge.contexts import FullNGram
from midge.data import Utterance
from midge.models import Recognizer

ROOT = Path(__file__).parents[2]
_LINE_SIZE = 1200


@dataclass(frozen=True, kw_only=True)
class About:
    """A model and its test set; figures of different ones are never mixed."""

    model: str
    """Its folder, as it is shown."""
    manifest: str
    """As it is shown."""
    kind: str
    """Encoder and lattice in words."""
    is_global: bool
    """Whether it is globally normalized."""
    speech: str
    """What the recordings are, in words."""
    num_utterances: int
    num_words: int
    audio_seconds: float
    trained_by: str
    """The command, if it was told."""
    options: tuple[str, ...]
    """Of this command, that are not the default ones."""
    fingerprint: str
    """Of the parameters and the utterances."""

    @classmethod
    def of(
        cls,
        model: Path,
        manifest: Path,
        recognizer: Recognizer,
        utterances: Iterable[Utterance],
        *,
        trained_by: str = "",
        options: tuple[str, ...] = (),
    ) -> About:
        """Describes a model and the utterances chosen."""
        chosen = list(utterances)
        synthetic = sorted({each.group.get("synthetic", "") for each in chosen} - {""})
        return cls(
            model=shown_path(model),
            manifest=shown_path(manifest),
            kind=kind_of(recognizer),
            is_global=recognizer.lattice.normalization == "global",
            speech=f"synthetic ({', '.join(synthetic)})" if synthetic else "recorded",
            num_utterances=len(chosen),
            num_words=sum(len(recognizer.tokens.normalize(u.text).split()) for u in chosen),
            audio_seconds=round(sum(each.duration for each in chosen), 3),
            trained_by=trained_by,
            options=options,
            fingerprint=_fingerprint(recognizer, [each.id for each in chosen]),
        )


def _fingerprint(recognizer: Recognizer, ids: list[str]) -> str:
    digest = hashlib.sha256(json.dumps(ids).encode())
    for name, value in sorted(recognizer.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def kind_of(recognizer: Recognizer) -> str:
    """Encoder, label context, alignment and normalization in words."""
    lattice = recognizer.lattice
    context = str(lattice.context)
    if isinstance(lattice.context, FullNGram):
        context = f"{lattice.context.context_size}-gram of {lattice.context.vocab_size} labels"
    alignment = type(lattice.alignment).__name__
    encoder = type(recognizer.encoder).__name__
    return f"{encoder}, {context}, {alignment}, normalization {lattice.normalization}"


def shown_path(path: Path) -> str:
    """A path without what is particular to this machine."""
    whole = path.absolute()  # links are kept: a name that was chosen says more
    for base in (Path.cwd(), ROOT):
        if whole.is_relative_to(base):
            return whole.relative_to(base).as_posix()
    return Path("...", *whole.parts[-3:]).as_posix()


def commit() -> str:
    """The commit that is measured; says so if what is measured was changed since."""
    git = ["git", "-C", str(ROOT)]
    # The file of results is not part of it: it changes with the first that is kept.
    commands = [
        [*git, "rev-parse", "--short=10", "HEAD"],
        [*git, "status", "--porcelain", "--", "src", "benchmarks"],
    ]
    try:
        name, changes = (
            subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
            for command in commands
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{name}, changed" if changes else name


class Store:
    """The file of results, written after each part."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found: dict[str, Any] = {}
        if path.exists():
            self.found = json.loads(path.read_text(encoding="utf-8"))

    def names(self) -> list[str]:
        """Of the models, in the order in which they came."""
        return list(self.found)

    def about(self, name: str) -> About:
        return About(**self.found[name]["about"])

    def has(self, name: str, part: str) -> bool:
        return part in self.found.get(name, {}).get("parts", {})

    def parts(self, name: str) -> list[str]:
        """That were measured of a model."""
        return list(self.found[name]["parts"])

    def values(self, name: str, part: str) -> Any:
        """What a part measured."""
        return self.found[name]["parts"][part]["values"]

    def origin(self, name: str, part: str) -> dict[str, str]:
        """Machine, threads and commit."""
        origin: dict[str, str] = self.found[name]["parts"][part]["origin"]
        return origin

    def enter(self, name: str, about: About) -> None:
        """Makes sure that what is there, if anything, is of the same model and utterances.

        Raises:
            ValueError: if it is of others.
        """
        entry = self.found.setdefault(name, {"about": asdict(about), "parts": {}})
        if entry["about"]["fingerprint"] != about.fingerprint and entry["parts"]:
            raise ValueError(
                f"{self.path} has results called {name!r} of another model or other utterances; "
                "choose another --name, or measure all parts --again"
            )
        entry["about"] = asdict(about)

    def forget(self, name: str, part: str) -> None:
        self.found.get(name, {}).get("parts", {}).pop(part, None)

    def keep(self, name: str, part: str, values: Any) -> None:
        origin = {
            "machine": machine(),
            "threads": str(torch.get_num_threads()),
            "commit": commit(),
        }
        self.found[name]["parts"][part] = {"origin": origin, "values": values}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(written(self.found) + "\n", encoding="utf-8")


def written(value: Any, depth: int = 0) -> str:
    """JSON in which what fits in a line stays in it, so that a row of a table is one.

    Raises:
        ValueError: for infinity and NaN, which JSON does not know.
    """
    line = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if not isinstance(value, dict | list) or len(line) <= _LINE_SIZE:
        return line
    inner = " " * (depth + 1)
    if isinstance(value, dict):
        items = [f"{json.dumps(key)}: {written(x, depth + 1)}" for key, x in value.items()]
    else:
        items = [written(x, depth + 1) for x in value]
    left, right = "{}" if isinstance(value, dict) else "[]"
    return f"{left}\n{inner}" + f",\n{inner}".join(items) + f"\n{' ' * depth}{right}"
