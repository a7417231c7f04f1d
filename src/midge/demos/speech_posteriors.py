"""What a model believes of a recording: when each label comes, and which word it hears so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from midge.automata import Automaton
from midge.data import Utterance
from midge.decoding.completions import WideLattice, completions, wide_lattice
from midge.decoding.prefixes import PrefixArcs
from midge.models import Recognizer

_SPARE = 1  # frames before and after a drawn word, so that its outer labels have a choice


@dataclass(frozen=True)
class LabelPosteriors:
    """When each label comes, by the posterior over all paths."""

    times: np.ndarray
    """[num_frames] seconds of sound that each frame has heard."""
    labels: np.ndarray
    """[num_frames, vocab_size] the probability that a frame emits each label."""
    symbols: tuple[str, ...]
    """Names of the labels."""


@dataclass(frozen=True)
class Decision:
    """What a model holds of two spellings of a word, as it hears frame after frame."""

    times: np.ndarray
    """[num_frames] seconds of sound heard."""
    probabilities: np.ndarray
    """[num_frames, 2] given the frames so far, that the text begins like each of the two."""
    prefixes: tuple[str, str]
    """The least letters that tell the two apart, such as W and R, or ROA and ROD."""


def frame_times(recognizer: Recognizer, num_frames: int) -> np.ndarray:
    """[num_frames] seconds of sound that each frame has heard."""
    return np.array([recognizer.front_end.frame_time(frame) for frame in range(num_frames)])


@torch.no_grad()
def encoded(recognizer: Recognizer, utterance: Utterance) -> torch.Tensor:
    """[num_frames, size] the encoder frames of an utterance."""
    audio = utterance.load()
    features = recognizer.front_end.features(audio.samples, audio.sample_rate)
    return recognizer.encode(features[None], torch.tensor([len(features)]))[0]


@torch.no_grad()
def label_posteriors(recognizer: Recognizer, utterance: Utterance) -> LabelPosteriors:
    """The posterior probability of each label at each frame, over all paths of the lattice."""
    frames = encoded(recognizer, utterance)
    arcs = recognizer.lattice.arc_marginals(frames, torch.tensor(len(frames)))
    return LabelPosteriors(
        frame_times(recognizer, len(frames)),
        arcs.lexical.sum(-2).numpy(),
        recognizer.tokens.symbols,
    )


@torch.no_grad()
def decision(recognizer: Recognizer, utterance: Utterance, words: tuple[str, str]) -> Decision:
    """How a streaming model decides between two words that sound alike.

    The lattice is cut after each frame in turn, which is what the model has when it has heard so
    much. In it, the posterior mass of all texts that begin like one word or like the other is exact
    (`midge.decoding.prefixes`). Locally normalized, neither of the two can ever fall: no later
    frame takes back what was spent. Globally normalized, both may.

    Args:
        recognizer: a model with a streaming encoder and a finite context.
        utterance: begins with one of the words.
        words: the two.
    """
    prefixes = distinct_prefixes(*words)
    spelled = [recognizer.tokens.encode(prefix) for prefix in prefixes]
    frames = encoded(recognizer, utterance)
    wide = wide_lattice(recognizer.lattice)
    probabilities = [
        prefix_masses(wide, frames[:heard], spelled) for heard in range(1, len(frames) + 1)
    ]
    times = frame_times(recognizer, len(frames))
    return Decision(times, np.array(probabilities), prefixes)


def distinct_prefixes(one: str, other: str) -> tuple[str, str]:
    """The least beginnings of two words that differ.

    Raises:
        ValueError: if one word is the beginning of the other.

    Example:
        >>> distinct_prefixes("ROAD", "RODE")
        ('ROA', 'ROD')
    """
    for end in range(1, min(len(one), len(other)) + 1):
        if one[:end] != other[:end]:
            return one[:end], other[:end]
    raise ValueError(f"neither word should be the beginning of the other, got {one} and {other}")


@torch.no_grad()
def prefix_masses(
    lattice: WideLattice, frames: torch.Tensor, prefixes: Sequence[Sequence[int]]
) -> list[float]:
    """The posterior probability of all label sequences that begin with some labels.

    Args:
        lattice: the lattice.
        frames: [num_frames, input_size] of one utterance, heard so far.
        prefixes: each at least one label.

    Returns:
        One probability for each prefix.
    """
    scorer = lattice.scorer(frames)
    arcs = PrefixArcs(lattice, scorer, completions(lattice, scorer, len(frames)))
    masses = []
    for prefix in prefixes:
        at = arcs[arcs.start]
        forward = at.begin()
        for label in prefix[:-1]:
            entry = at.entry(forward, label)
            at = arcs[int(at.destination[label - 1])]
            forward = at.enter(entry)
        masses.append(float(np.exp(at.masses(forward)[prefix[-1] - 1])))
    return masses


@torch.no_grad()
def first_word_lattice(recognizer: Recognizer, utterance: Utterance) -> Automaton:
    """The alignments of the first word of an utterance, over the frames around its labels.

    A part of the recognition lattice that is small enough to be drawn, with the model's weights.
    """
    word = recognizer.tokens.normalize(utterance.text).split()[0]
    audio = utterance.load()
    aligned = recognizer.align(audio.samples, audio.sample_rate, utterance.text)
    labels = recognizer.tokens.encode(word)
    first, last = aligned.frames[0], aligned.frames[len(labels) - 1]
    frames = encoded(recognizer, utterance)[max(first - _SPARE, 0) : last + 1 + _SPARE]
    return Automaton.of_lattice(
        recognizer.lattice, frames, labels=labels, symbols=recognizer.tokens.symbols
    )
