"""An hour of sound: memory stays, and float32 sums do not lose the best path."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest
import torch

import midge
from midge.decoding.streams import StreamingDecoder
from midge.lattices import BestPathSearch
from midge.models import Recognizer
from recognizers import RATE, noise, tiny_recognizer

torch.set_num_threads(1)
NUM_FRAMES = 120_000
"""An hour of frames of 30 ms."""
GRID = 64
"""Weights are multiples of 1 / GRID, so that sums that do not grow are exact in float32."""


def plain_viterbi(weights: np.ndarray, next_state: list[list[int]]) -> tuple[list[int], list[int]]:
    """Labels and frames of the best path, in Python's own float64.

    Ties as everywhere: blank first, then the smallest label, then the smallest source.

    Args:
        weights: [T, Q, 1 + V].
        next_state: [Q][V].
    """
    num_states = len(next_state)
    arcs = [(state, 0, state) for state in range(num_states)]
    arcs += [
        (source, label + 1, after)
        for source, row in enumerate(next_state)
        for label, after in enumerate(row)
    ]
    arcs.sort(key=lambda arc: (arc[1], arc[0]))
    best = [0.0] + [-np.inf] * (num_states - 1)
    came: list[list[tuple[int, int]]] = []
    for frame in weights.tolist():
        after, pointers = [-np.inf] * num_states, [(0, 0)] * num_states
        for source, label, target in arcs:
            weight = best[source] + frame[source][label]
            if weight > after[target]:
                after[target], pointers[target] = weight, (label, source)
        best = after
        came.append(pointers)
    state, labels, frames = best.index(max(best)), [], []
    for place in reversed(range(len(came))):
        label, state = came[place][state]
        if label:
            labels.append(label)
            frames.append(place)
    return labels[::-1], frames[::-1]


@pytest.mark.slow
def test_sums_of_an_hour_do_not_lose_the_best_path():
    """Each frame adds 10 nats or so: the total, 1.2 million, is known to 1/8 in float32."""
    context = midge.FullNGram(vocab_size=2, context_size=1)
    lattice = midge.RecognitionLattice(
        context, midge.FrameDependent(), midge.TableWeights(context), "global"
    )
    random = np.random.default_rng(0)
    steps = random.normal(10.0, 3.0, (NUM_FRAMES, context.num_states, 1 + context.vocab_size))
    weights = np.round(steps * GRID).astype(np.float32) / GRID
    frames = torch.from_numpy(weights).flatten(1)[None]
    search = BestPathSearch(lattice, margin=200.0, max_tail=333, interval=50)
    state = search.start(1)
    sizes = []
    for chunk in frames.split(500, dim=1):
        state = search.step(chunk, torch.tensor([chunk.shape[1]]), state)
        sizes.append(state.pointers[0].numel() + state.alpha.numel())
    assert max(sizes[1:]) == sizes[1], "back-pointers pile up"
    (found,) = search.finish(state)
    labels, emitted = plain_viterbi(weights, context.next_state_table().tolist())
    assert list(found.labels) == labels and list(found.frames) == emitted
    assert len(labels) > NUM_FRAMES / 2
    assert abs(found.weight) > 2**20, "not so large that float32 could lose anything"


def resident_bytes() -> int:
    """Memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def with_long_frames() -> Recognizer:
    """The tiny recognizer with frames of 60 ms, so that an hour has fewer of them."""
    plain = tiny_recognizer()
    front_end = dataclasses.replace(plain.config.front_end, stacking=6, stride=6)
    config = dataclasses.replace(plain.config, front_end=front_end)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        recognizer = Recognizer(config, plain.tokens)
        for parameter in recognizer.parameters():
            torch.nn.init.normal_(parameter, std=2.0)
    recognizer.front_end.fit([recognizer.front_end.mels(noise(2.0, seed=0), RATE)])
    return recognizer.eval()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
def test_an_hour_runs_in_constant_memory():
    decoder = StreamingDecoder(with_long_frames(), max_tail_seconds=2.0, block_size=48)
    stream = decoder.stream(RATE)
    minute = np.tile(noise(10.0, seed=1), 6)
    after_warm_up = 0
    for number in range(60):
        stream.accept(minute)
        if number == 9:
            after_warm_up = resident_bytes()
    grown = resident_bytes() - after_warm_up
    # Fifty minutes of samples alone are 96 MB; words said are kept, at some hundred bytes each.
    num_words = len(stream.result().words)
    assert grown < 8e6 + 1000 * num_words
    assert num_words > 1000 and stream.finish().seconds == 3600.0
