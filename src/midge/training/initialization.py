"""Where a run starts: a recognizer with fresh parameters, or with those of another model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from midge.data.loading import sample_mels
from midge.data.utterances import Utterance
from midge.models.recognizer import Recognizer, load
from midge.tokens import build_tokens
from midge.training.config import Recipe
from midge.training.estimate import check_context
from midge.training.output_layer import label_rows, state_rows


def fresh_recognizer(recipe: Recipe, utterances: Sequence[Utterance]) -> Recognizer:
    """A recognizer with random parameters, its tokens and normalization found in training data.

    A pure function of recipe and data.

    Args:
        recipe: what to make.
        utterances: the training data.

    Raises:
        ValueError: if the context is too large, or no audio can be read.
    """
    tokens = build_tokens(recipe.tokens, ((u.id, u.text) for u in utterances))
    check_context(recipe.lattice, tokens.vocab_size, tokens.num_characters)
    torch.manual_seed(recipe.training.seed)
    recognizer = Recognizer(recipe.recognizer, tokens)
    recognizer.front_end.fit(
        sample_mels(
            utterances,
            recognizer.front_end,
            seed=recipe.training.seed,
            num_workers=recipe.data.num_workers,
        )
    )
    return recognizer


def start_from(recognizer: Recognizer, path: Path) -> str:
    """Takes over the parameters of another model, as far as they fit.

    What has the same name and shape is taken over, the normalization of features included. What
    belongs to labels is taken over label by label: one that is new keeps its fresh parameters.
    What belongs to context states is taken over only if all labels are the same, and nothing of
    the lattice if it has another kind of weight function.

    Args:
        recognizer: the new one, changed in place.
        path: the folder of a saved one.

    Returns:
        What was kept and what was not, in words.

    Raises:
        ValueError: if there is no model, or nothing of its encoder fits.
    """
    other = load(path)
    has_same_labels = recognizer.tokens.symbols == other.tokens.symbols
    ours, theirs = recognizer.state_dict(), other.state_dict()
    kept = {name for name, x in theirs.items() if name in ours and ours[name].shape == x.shape}
    by_label = {
        f"lattice.weights.{name}" for name in label_rows(recognizer.lattice.weights)
    } & theirs.keys()
    if not has_same_labels:
        kept -= {f"lattice.weights.{name}" for name in state_rows(recognizer.lattice.weights)}
        kept |= {name for name in by_label if ours[name].shape[1:] == theirs[name].shape[1:]}
    if type(recognizer.lattice.weights) is not type(other.lattice.weights):
        kept = {name for name in kept if not name.startswith("lattice.")}
    if not any(name.startswith("encoder.") for name in kept):
        raise ValueError(
            f"{path} has another encoder, of which nothing fits; use its [encoder] and [front_end]"
        )
    rows = _shared_rows(recognizer, other)
    with torch.no_grad():
        for name in kept - by_label:
            ours[name].copy_(theirs[name])
        for name in kept & by_label:
            ours[name][rows[:, 0]] = theirs[name][rows[:, 1]]
    return _told(path, ours, kept, None if has_same_labels else len(rows) - 1)


def _shared_rows(ours: Recognizer, theirs: Recognizer) -> Tensor:
    """[n, 2] rows of the labels that both have, in ours and in theirs; row 0, no label, first."""
    their_row = {symbol: row for row, symbol in enumerate(theirs.tokens.symbols, 1)}
    found = [(r, their_row[s]) for r, s in enumerate(ours.tokens.symbols, 1) if s in their_row]
    return torch.tensor([(0, 0), *found])


def _told(path: Path, ours: dict[str, Tensor], kept: set[str], num_shared: int | None) -> str:
    num_kept, num_all = (sum(ours[name].numel() for name in names) for names in (kept, ours))
    parts = [f"started from {path}, which gave {num_kept / num_all:.1%} of the numbers"]
    if num_shared is not None:
        parts.append(f"the labels differ, {num_shared} are in both")
    if fresh := [name for name in ours if name not in kept]:
        parts.append(f"fresh are {', '.join(fresh)}")
    return "; ".join(parts)
