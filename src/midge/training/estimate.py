"""What a run will need, told before its first step; and what can never fit, refused."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
from torch import Tensor

from midge.alignments import LabelFrameDependent
from midge.contexts import FiniteContext
from midge.encoders import Encoder
from midge.lattices import RecognitionLattice
from midge.models.recognizer import LatticeConfig, Recognizer
from midge.training.config import Recipe
from midge.training.corpus import Corpus

_MAX_NUM_ARCS = 2**25
"""Arcs of a frame beyond which a training step would take hours."""
_PROBE_FRAMES = 1000
"""Frames at most on which the encoder is tried."""


@dataclass(frozen=True)
class Estimate:
    """Memory of a training process, in bytes, and what it does with it."""

    num_parameters: int
    """Numbers that are trained."""
    parameters: int
    """Parameters, their gradients, Adam's two moments, and the averaged parameters."""
    encoder: int
    """What the encoder keeps of a batch for its gradient."""
    lattice: int
    """Forward weights of the denominator that are kept for its gradient."""

    @property
    def total(self) -> int:
        """All of it."""
        return self.parameters + self.encoder + self.lattice

    def describe(self) -> str:
        """One line, and another if the machine has less."""
        line = (
            f"{self.num_parameters / 1e6:.2f} million parameters; about {_size(self.total)} of "
            f"memory for each process: parameters {_size(self.parameters)}, encoder "
            f"{_size(self.encoder)}, lattice {_size(self.lattice)}"
        )
        available = physical_memory()
        if available is not None and self.total > available:
            line += (
                f"\nThat is more than this machine has ({_size(available)}). If it fails, lower "
                "data.batch_seconds and raise training.accumulation by as much."
            )
        return line


def check_context(
    config: LatticeConfig, vocab_size: int, num_characters: int | None = None
) -> None:
    """Refuses a context with more arcs than any training run can afford.

    To be called before the model is made, which alone would fill the memory.

    Args:
        config: the lattice.
        vocab_size: number of labels.
        num_characters: how many different ones the text has, if known. Fewer labels than that
            cannot spell it.

    Raises:
        ValueError: if it is too large; says what would fit.
    """
    context_size = config.parts().context_size
    if context_size is None or _num_arcs(vocab_size, context_size) <= _MAX_NUM_ARCS:
        return
    num_states = _num_arcs(vocab_size, context_size) // (1 + vocab_size)
    fixes = []
    smaller = [n for n in range(context_size) if _num_arcs(vocab_size, n) <= _MAX_NUM_ARCS]
    if smaller:
        fixes.append(f"lattice.context_size={smaller[-1]}")
    fitting = int(_MAX_NUM_ARCS ** (1 / (context_size + 1)))
    while _num_arcs(fitting, context_size) > _MAX_NUM_ARCS:
        fitting -= 1
    if num_characters is None:
        fixes.append(f"at most {fitting} tokens (tokens.vocab_size={fitting})")
    elif num_characters <= fitting:
        fixes.append(f"at most {fitting} tokens (tokens.vocab_size={fitting}, or graphemes)")
    if config.parts().normalization != "global":
        fixes.append("lattice.context_size='full', decoded by beam search")
    raise ValueError(
        f"a context of {context_size} labels out of {vocab_size} has {num_states:,} states and "
        f"{num_states * (1 + vocab_size):,} arcs in every frame, which does not fit; use "
        + ", or ".join(fixes)
    )


def estimate(
    recognizer: Recognizer, recipe: Recipe, corpus: Corpus, world_size: int = 1
) -> Estimate:
    """Estimates memory from sizes, and from a trial of the encoder on one utterance.

    Args:
        recognizer: the model.
        recipe: sizes of batches.
        corpus: what is trained on.
        world_size: processes that share a batch.
    """
    frame_seconds = recognizer.front_end.frame_seconds
    longest = max(utterance.duration for utterance in corpus.utterances)
    seconds = max(recipe.data.batch_seconds, longest)
    if recipe.data.max_batch_size is not None:
        seconds = min(seconds, recipe.data.max_batch_size * longest)
    num_frames = round(seconds / frame_seconds / world_size)
    mean = round(corpus.num_frames / len(corpus.utterances))
    probed = max(min(mean, _PROBE_FRAMES), 1)
    trained = sum(x.numel() for x in recognizer.parameters())
    copies = 4 if recipe.training.averaging == "none" else 5
    return Estimate(
        num_parameters=trained,
        parameters=4 * copies * trained,
        encoder=saved_bytes(recognizer.encoder, probed) * num_frames // probed,
        lattice=4 * num_frames * _num_kept_states(recognizer.lattice),
    )


def saved_bytes(encoder: Encoder, num_frames: int) -> int:
    """What an encoder keeps of an utterance for the gradient, found by running it.

    That is what a second utterance adds: copies of the weights are not counted.

    Args:
        encoder: the encoder.
        num_frames: length of the utterance.
    """
    one, two = (_saved_of_batch(encoder, size, num_frames) for size in (1, 2))
    return two - one


def _saved_of_batch(encoder: Encoder, batch_size: int, num_frames: int) -> int:
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    first = next(encoder.parameters())
    frames = torch.zeros(batch_size, num_frames, encoder.input_size, device=first.device)
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        output = encoder(frames, torch.full((batch_size,), num_frames, device=first.device))
    total = sum(kept.values())
    del output  # until here: a storage that is freed could give its place to another
    return total


def physical_memory() -> int | None:
    """Bytes of memory of this machine; None where it does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _num_arcs(vocab_size: int, context_size: int) -> int:
    """Arcs of a frame, blank and labels, over all states of an n-gram context."""
    return sum(vocab_size**n for n in range(context_size + 1)) * (1 + vocab_size)


def _num_kept_states(lattice: RecognitionLattice) -> int:
    """States per frame whose forward weights are kept; none without a denominator."""
    if not lattice.needs_denominator or not isinstance(lattice.context, FiniteContext):
        return 0
    states = lattice.context.num_states * (2 if lattice.deduplicate else 1)
    if isinstance(lattice.alignment, LabelFrameDependent):
        states *= 1 + (lattice.alignment.max_labels_per_frame or 0)
    return states


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.0f} MB"
