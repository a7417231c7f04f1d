"""The page: what was measured, in words, and the tables and pictures of it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence

import tables
from posteriors import LIST_SIZES
from results import Store
from searches import MAX_EXPANSIONS

SCRIPT = "benchmarks/decoding/document.py"

INTRODUCTION = """\
# Decoding, measured

What [Decoding](decoding.md) describes, on trained models and their test sets. One command measures
everything and writes this page; the results are kept in a file beside it.
"""

NOTE = """\
Utterances are decoded one at a time. Where searches are compared they take turns on the same
encoder frames, and the least time of the rounds counts (three, unless the command says otherwise).
Error rates (WER) are by word, with 95 % intervals by the bootstrap over speakers.
"""

EXACT = f"""\
`midge.sum_path` against the best path. The answer is never less probable than the best path's
sequence: the command checks it for every utterance, against the loss in float64, and fails if not.
The goal is 95 % proved within {MAX_EXPANSIONS} expansions, faster than real time.
"""

EXPANSIONS = """\
A sequence of n labels takes n + 1 expansions at the least; the dashed lines are those of the
shortest and the longest answer, the black one is the budget.
"""

BEAMS = """\
*Missed* is the probability of the exact answer less that of the search's own, mean and largest over
the utterances. Times are medians. A beam of a globally normalized model needs the backward weights
of the whole utterance, which is most of its time; a locally normalized one needs none. *Frames
ahead* is a beam (`--beam-window`) that holds the weights of so many frames alone, by an estimate of
what follows them, and needs no more memory for an hour than for a minute.
"""

CONFIDENCES = """\
The confidence of a word is the posterior probability that it is right. ECE is how far confidence
and truth are apart, in ten bins (0 is best); NCE how much the confidences tell beyond the overall
share of right words (1 is best, below 0 is worse than nothing). *Offline* words are those of the
exact search over the whole utterance. In a stream, *committed* words keep the confidence that they
had when they were committed. *Tentative* ones are judged each time that the words shown change; the
last one apart, of which only a part may have been heard: as a whole word, and as the beginning of
one. Bars in the picture are 95 % intervals.
"""

LISTS = f"""\
Lists of the {LIST_SIZES[-1]} most probable sequences, within {MAX_EXPANSIONS} expansions; where
they leave more than 1 % open, 100 samples stand for the rest. *Least risk* answers by the fewest
expected word errors. The *best of* a list knows the truth: no choice from the list can do better.
"""

MARGIN = """\
The best path drops states that fall further below the frame's best than a margin in nats, by
default 200, offline and live alike. *States kept* and *uncommitted* sound are means over frames;
time is per that without a margin. Without one, survivors need never agree on the past.
"""

LATENCY = """\
Simulated streams, heard in chunks of {chunk_seconds:g} s and encoded in blocks of {block_size}
frames. Seconds are p50, p90 and p99. Delays of words are in time of the sound, for words that are
right and whose true times the manifest has; below 0 a word was shown before its end. The time from
the end of the recording to the final result is measured on this machine.
"""


def page(store: Store, pictures: str) -> str:
    """Markdown.

    Args:
        store: the results.
        pictures: folder of the pictures, from the page.
    """
    parts = [INTRODUCTION, command(store), NOTE, _models(store)]
    for part, section in SECTIONS:
        if names := [name for name in store.names() if store.has(name, part)]:
            parts += section(store, names, pictures)
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def command(store: Store, part: str | None = None) -> str:
    """A block of markdown: what measures a part of all models that have it, or everything."""
    names = [name for name in store.names() if part is None or store.has(name, part)]
    words = ["python", SCRIPT, *(["--part", part] if part else [])]
    lines = [shlex.join([*words, *store.about(names[0]).options])]
    for name in names:
        about = store.about(name)
        words = [about.model, about.manifest, "--name", name]
        if about.trained_by and part is None:
            words += ["--trained-by", about.trained_by]
        lines.append("  " + shlex.join(words))
    return _block(" \\\n".join(lines))


def _block(text: str) -> str:
    return f"```sh\n{text}\n```\n"


def _picture(what: str, folder: str, file: str) -> str:
    return f"![{what}]({folder}/{file})\n"


def _models(store: Store) -> str:
    lines = [("model", "what it is", "trained by", "test set", "speech")]
    for name in store.names():
        about = store.about(name)
        size = f"{about.num_utterances} utterances, {about.num_words} words"
        minutes = f"{about.audio_seconds / 60:.1f} minutes"
        trained_by = f"`{about.trained_by}`" if about.trained_by else "-"
        lines.append((name, about.kind, trained_by, f"{size}, {minutes}", about.speech))
    origins = [store.origin(name, part) for name in store.names() for part in store.parts(name)]
    places = dict.fromkeys(
        f"{each['machine']}, threads: {each['threads']}, commit {each['commit']}"
        for each in origins
    )
    return f"{tables.table(lines)}\n\nMeasured on {'; '.join(places)}.\n"


def _exact(store: Store, names: Sequence[str], pictures: str) -> list[str]:
    examples = tables.examples_table(store, names)
    found = f"Where they differ most (at most {tables.NUM_EXAMPLES} a model):\n\n{examples}"
    return [
        "## The most probable sequence, with a proof",
        command(store, "searches"),
        EXACT,
        tables.exact_table(store, names),
        _picture("Expansions against probability", pictures, "decoding_expansions.svg"),
        EXPANSIONS,
        found if examples else "Both answers are the same for every utterance.",
    ]


def _beams(store: Store, names: Sequence[str], pictures: str) -> list[str]:
    return [
        "## Beam search against the exact one",
        command(store, "searches"),
        BEAMS,
        *(f"{name}:\n\n{tables.beam_table(store, name)}" for name in names),
        _picture("Beams against the exact search", pictures, "decoding_beams.svg"),
    ]


def _confidences(store: Store, names: Sequence[str], pictures: str) -> list[str]:
    has_streams = any(store.has(name, "live-words") for name in names)
    return [
        "## Can confidences be believed?",
        command(store, "posteriors"),
        *([command(store, "live-words")] if has_streams else []),
        CONFIDENCES,
        tables.calibration_table(store, names),
        _picture("Reliability of confidences", pictures, "decoding_reliability.svg"),
    ]


def _lists(store: Store, names: Sequence[str], pictures: str) -> list[str]:
    return [
        "## Least risk, and the best of a list",
        command(store, "posteriors"),
        LISTS,
        tables.list_table(store, names),
    ]


def _margins(store: Store, names: Sequence[str], pictures: str) -> list[str]:
    return [
        "## The margin",
        command(store, "margins"),
        MARGIN,
        *(f"{name}:\n\n{tables.margin_table(store, name)}" for name in names),
    ]


def _latency(store: Store, names: Sequence[str], pictures: str) -> list[str]:
    evaluations = []
    for about in map(store.about, names):
        words = ["midge", "evaluate", about.model, about.manifest, "--streaming"]
        evaluations.append(shlex.join([*words, "--output", "results"]))
    return [
        "## Latency",
        command(store, "latency"),
        "The same figures for one model at a time:",
        _block("\n".join(evaluations)),
        LATENCY.format(**store.values(names[0], "latency")),
        tables.latency_table(store, names),
    ]


SECTIONS: tuple[tuple[str, Callable[[Store, Sequence[str], str], list[str]]], ...] = (
    ("searches", _exact),
    ("searches", _beams),
    ("posteriors", _confidences),
    ("posteriors", _lists),
    ("margins", _margins),
    ("latency", _latency),
)
"""Each with the part that it needs."""
