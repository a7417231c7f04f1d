"""Every lattice against the list of all its paths, in float64."""

from __future__ import annotations

import math

import pytest
import torch

from cases import CASES, Case, parameters, random_frames
from oracles import Enumeration, all_label_sequences
from tolerances import EXACT

NUM_FRAMES = (-1, 1, 0)  # as many as there are, one, none


def utterances(case: Case, seed: int = 0):
    """Frames [3, T, D] with junk on padding, their numbers, and an oracle each."""
    frames = random_frames(case, len(NUM_FRAMES), seed=seed)
    longest = frames.shape[1]
    num_frames = torch.tensor([longest if count < 0 else count for count in NUM_FRAMES])
    oracles = [
        case.enumeration(each, int(count)) for each, count in zip(frames, num_frames, strict=True)
    ]
    padding = torch.arange(longest) >= num_frames[:, None]
    frames = frames.masked_fill(padding[..., None], torch.nan)
    return frames, num_frames, oracles


def padded(sequences: list[tuple[int, ...]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Label sequences with junk on padding."""
    size = 1 + max(map(len, sequences))
    rows = [[*labels, *[-7] * (size - len(labels))] for labels in sequences]
    return torch.tensor(rows), torch.tensor([len(labels) for labels in sequences])


def some_labels(oracle: Enumeration, vocab_size: int, seed: int) -> tuple[int, ...]:
    """A label sequence of some path."""
    spelled = oracle.spelled()
    return spelled[(7 * seed + 3) % len(spelled)] if spelled else (1,)


@pytest.mark.parametrize("case", parameters(CASES))
def test_sums_and_posteriors(case: Case):
    frames, num_frames, oracles = utterances(case)
    lattice = case.lattice()
    log_z = lattice.shortest_distance(frames, num_frames)
    expected = torch.tensor([oracle.log_z() for oracle in oracles], dtype=torch.float64)
    torch.testing.assert_close(log_z, expected, **EXACT)
    entropy = lattice.entropy(frames, num_frames)
    expected = torch.tensor([oracle.entropy() for oracle in oracles], dtype=torch.float64)
    torch.testing.assert_close(entropy, expected, **EXACT)
    marginals = lattice.arc_marginals(frames, num_frames)
    for row, oracle in enumerate(oracles):
        expected = oracle.marginals()
        found = torch.cat([marginals.blank[row][..., None], marginals.lexical[row]], dim=-1)
        torch.testing.assert_close(found[: len(expected)], expected, **EXACT)
        assert not found[len(expected) :].any()


@pytest.mark.parametrize("case", parameters(CASES))
def test_every_label_sequence(case: Case):
    """Losses of all label sequences; the probabilities sum to 1."""
    frames, num_frames, oracles = utterances(case, seed=1)
    lattice = case.lattice()
    vocab_size = lattice.context.vocab_size
    most = max((len(labels) for labels in oracles[0].spelled()), default=0)
    sequences = list(all_label_sequences(vocab_size, min(most + 1, 4)))
    labels, num_labels = padded(sequences)
    many = frames[:1].expand(len(sequences), -1, -1)
    losses = lattice(many, num_frames[:1].expand(len(sequences)), labels, num_labels)
    log_z = oracles[0].log_z()
    if log_z == -math.inf:
        assert (losses == torch.inf).all()
        return
    expected = [log_z - oracles[0].log_z(each) for each in sequences]
    torch.testing.assert_close(losses, torch.tensor(expected, dtype=torch.float64), **EXACT)
    if most <= 4:
        assert math.isclose(float((-losses).exp().sum()), 1.0, rel_tol=1e-9)


@pytest.mark.parametrize("case", parameters(CASES))
def test_along_labels(case: Case):
    """A ∩ y: sums, best alignment, posteriors, entropy."""
    frames, num_frames, oracles = utterances(case, seed=2)
    lattice = case.lattice()
    targets = [some_labels(oracle, lattice.context.vocab_size, 5) for oracle in oracles]
    labels, num_labels = padded(targets)
    arguments = {"labels": labels, "num_labels": num_labels}
    found = lattice.shortest_distance(frames, num_frames, **arguments)
    expected = [oracle.log_z(each) for oracle, each in zip(oracles, targets, strict=True)]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), **EXACT)
    entropy = lattice.entropy(frames, num_frames, **arguments)
    marginals = lattice.arc_marginals(frames, num_frames, **arguments)
    path = lattice.shortest_path(frames, num_frames, **arguments)
    for row, (oracle, each) in enumerate(zip(oracles, targets, strict=True)):
        if oracle.log_z(each) == -math.inf:
            assert path.weight[row] == -torch.inf and path.num_alignment_labels[row] == 0
            continue
        assert math.isclose(float(entropy[row]), oracle.entropy(each), abs_tol=1e-9)
        probabilities = torch.cat([marginals.blank[row][..., None], marginals.lexical[row]], -1)
        expected = oracle.marginals(each)
        torch.testing.assert_close(probabilities[: len(expected)], expected, **EXACT)
        best = oracle.best(each)
        length = int(path.num_alignment_labels[row])
        assert tuple(path.alignment_labels[row, :length].tolist()) == best.symbols
        assert path.labels()[row] == list(each)
        assert math.isclose(float(path.weight[row]), best.weight, rel_tol=1e-9, abs_tol=1e-9)


@pytest.mark.parametrize("case", parameters(CASES))
def test_best_path(case: Case):
    frames, num_frames, oracles = utterances(case, seed=3)
    path = case.lattice().shortest_path(frames, num_frames)
    for row, oracle in enumerate(oracles):
        best = oracle.best()
        length = int(path.num_alignment_labels[row])
        if best is None:
            assert path.weight[row] == -torch.inf and length == 0
            continue
        assert tuple(path.alignment_labels[row, :length].tolist()) == best.symbols
        assert tuple(path.alignment_frames[row, :length].tolist()) == tuple(
            step for step, _, _ in best.arcs
        )
        assert path.labels()[row] == list(best.labels)
        assert math.isclose(float(path.weight[row]), best.weight, rel_tol=1e-9, abs_tol=1e-9)
        assert not path.alignment_labels[row, length:].any()


@pytest.mark.parametrize(
    "case", parameters([case for case in CASES if case.normalization != "global"])
)
def test_local_models_sum_to_one(case: Case):
    """log Z of a locally normalized lattice, by the algorithm of the global one, is 0."""
    lattice = case.lattice()
    if lattice.needs_denominator:
        return
    frames, num_frames, _ = utterances(case, seed=4)
    frames = frames.nan_to_num(neginf=-3.0)
    log_z = lattice.shortest_distance(frames, num_frames)
    torch.testing.assert_close(log_z, torch.zeros(3, dtype=torch.float64), **EXACT)


@pytest.mark.parametrize("case", parameters(CASES[::5]))
def test_pushing_preserves_posteriors(case: Case):
    """Pushed weights sum to 1 at every live state, and spell the same path posteriors."""
    frames, num_frames, oracles = utterances(case, seed=5)
    pushed = case.lattice().push(frames, num_frames)
    expected = torch.tensor([oracle.log_z() for oracle in oracles], dtype=torch.float64)
    torch.testing.assert_close(pushed.log_z, expected, **EXACT)
    both = torch.cat([pushed.blank[..., None], pushed.lexical], dim=-1)
    sums = both.exp().sum(-1)
    live = sums > 0
    torch.testing.assert_close(sums[live], torch.ones_like(sums[live]), **EXACT)
    for row, oracle in enumerate(oracles):
        for path in oracle.paths:
            weight = pushed_weight(case, pushed, row, path, oracle)
            assert math.isclose(weight, path.weight - oracle.log_z(), abs_tol=1e-9)


def pushed_weight(case: Case, pushed, row: int, path, oracle: Enumeration) -> float:
    """The pushed weight of a listed path, walked by hand."""
    total, count, read = 0.0, 0, 0
    entered = {
        state: sorted({y + 1 for p in oracle.next_state for y, q in enumerate(p) if q == state})
        for state in range(len(oracle.next_state))
    }
    for step, state, symbol in path.arcs:
        index = [row, step]
        if case.alignment_name.startswith("label-frame"):
            index.append(count)
        index.append(state)
        if case.deduplicate:
            index.append(1 + entered[state].index(read) if read else 0)
        if symbol:
            total += float(pushed.lexical[(*index, symbol - 1)])
            count += 1
        else:
            total += float(pushed.blank[tuple(index)])
            count = 0
        if case.alignment_name == "frame" or case.alignment_name == "frame-no-blank":
            count = 0
        read = symbol
    return total
