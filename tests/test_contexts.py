"""Contexts: numbering, walks, sums over arcs, builders, refusals."""

from __future__ import annotations

import itertools

import pytest
import torch

import midge
from cases import random_automaton
from midge.contexts.deduplication import entering_labels, exclusive_sum
from midge.contexts.grouping import ArcGroups
from tolerances import EXACT

SEMIRINGS = [midge.Real, midge.Log, midge.MaxTropical, midge.LogExpectation, midge.LogEntropy]
SIZES = list(itertools.product((1, 2, 3), (0, 1, 2, 3)))


def histories(vocab_size: int, context_size: int) -> list[tuple[int, ...]]:
    """All label strings up to a length, in the paper's order."""
    labels = range(1, vocab_size + 1)
    return [
        history
        for length in range(context_size + 1)
        for history in itertools.product(labels, repeat=length)
    ]


@pytest.mark.parametrize("vocab_size, context_size", SIZES)
def test_ngram_is_its_definition(vocab_size, context_size):
    """States are histories in lexicographic order; the next one is a suffix."""
    context = midge.FullNGram(vocab_size, context_size)
    states = histories(vocab_size, context_size)
    number = {history: state for state, history in enumerate(states)}
    assert context.num_states == len(states) and context.start == 0
    for history, state in number.items():
        assert context.state_labels(state) == list(history)
        for label in range(1, vocab_size + 1):
            grown = (*history, label)
            suffix = grown[max(0, len(grown) - context_size) :]
            found = context.next_state(torch.tensor(state), torch.tensor(label))
            assert int(found) == number[suffix]
        assert int(context.next_state(torch.tensor(state), torch.tensor(0))) == state


@pytest.mark.parametrize("vocab_size, context_size", SIZES)
@pytest.mark.parametrize("semiring", SEMIRINGS, ids=lambda s: type(s).__name__)
def test_ngram_equals_its_table(vocab_size, context_size, semiring):
    """The regular structure and the general one give the same sums, by their definition."""
    context = midge.FullNGram(vocab_size, context_size)
    table = midge.NextStateTable(context.next_state_table())
    w = torch.randn(2, 3, context.num_states, vocab_size, dtype=torch.float64)
    x = semiring.from_log(w)
    found = context.forward_reduce(x, semiring)
    torch.testing.assert_close(found, table.forward_reduce(x, semiring), **EXACT)
    for q in range(context.num_states):
        arcs = [
            x[..., p, y]
            for p in range(context.num_states)
            for y in range(vocab_size)
            if int(context.next_state_table()[p, y]) == q
        ]
        if arcs:
            expected = semiring.sum(torch.stack(arcs, dim=-1), dim=-1)
            torch.testing.assert_close(found[..., q], expected, **EXACT)
    beta = semiring.from_log(w[..., 0])
    spread = context.backward_broadcast(beta, semiring)
    assert torch.equal(spread, table.backward_broadcast(beta, semiring))
    assert torch.equal(spread, beta[..., context.next_state_table()])


@pytest.mark.parametrize("vocab_size, context_size", SIZES)
def test_winners_among_equals(vocab_size, context_size):
    """The smallest label, then the smallest source."""
    context = midge.FullNGram(vocab_size, context_size)
    table = midge.NextStateTable(context.next_state_table())
    w = torch.randint(0, 2, (5, context.num_states, vocab_size)).double()
    best, arc = context.forward_best(w)
    same, other = table.forward_best(w)
    assert torch.equal(best, same)
    entered = best > -torch.inf
    assert torch.equal(arc[entered], other[entered])
    for row, q in entered.nonzero().tolist():
        into = [
            (-float(w[row, p, y]), y, p)
            for p in range(context.num_states)
            for y in range(vocab_size)
            if int(context.next_state_table()[p, y]) == q
        ]
        _, y, p = min(into)
        assert int(arc[row, q]) == p * vocab_size + y


def test_walk_keeps_batch_dims_and_blank():
    context = midge.FullNGram(2, 1)
    labels = torch.tensor([[[1, 0, 2], [2, 2, 0]]])
    assert context.walk_states(labels).tolist() == [[[0, 1, 1, 2], [0, 2, 2, 2]]]
    assert context.walk_states(torch.empty(0, dtype=torch.int64)).tolist() == [0]


def test_walk_falls_off_where_there_is_no_arc():
    context = midge.NextStateTable(torch.tensor([[1, -1], [0, 1]]))
    assert context.walk_states(torch.tensor([2, 1, 1])).tolist() == [0, -1, -1, -1]
    assert context.arc_mask.tolist() == [[True, False], [True, True]]
    assert midge.FullNGram(2, 1).arc_mask is None


@pytest.mark.parametrize(
    "table, start, message",
    [
        ([[0.5]], 0, "integers"),
        ([[2, 0], [0, 0]], 0, "a state 0..1"),
        ([[-2]], 0, "-1"),
        ([[0]], 3, "start"),
        ([[0], [0]], 0, "cannot be reached, the first is 1"),
        ([1, 2], 0, r"\[num_states, vocab_size\]"),
    ],
)
def test_bad_tables_are_refused(table, start, message):
    with pytest.raises(ValueError, match=message):
        midge.NextStateTable(torch.tensor(table), start)


@pytest.mark.parametrize(
    "weights, message",
    [(torch.zeros(3), r"\[1\]"), (torch.tensor([torch.nan]), "NaN"), (torch.tensor([0]), "float")],
)
def test_bad_final_weights_are_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        midge.NextStateTable(torch.tensor([[0]]), final_weights=weights)


@pytest.mark.parametrize(
    "weights, message",
    [
        (torch.zeros(1), r"label_weights should be floating point \[1, 2\]"),
        (torch.tensor([[0.0, torch.inf]]), "label_weights should be finite or -inf"),
    ],
)
def test_bad_label_weights_are_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        midge.NextStateTable(torch.tensor([[0, 0]]), label_weights=weights)


def test_automata_are_the_same_whatever_they_weigh():
    plain = midge.FullNGram(2, 1)
    table = plain.next_state_table()
    weighted = midge.NextStateTable(table, label_weights=torch.zeros(3, 2))
    assert plain.is_same_automaton(weighted) and weighted.is_same_automaton(plain)
    assert not plain.is_same_automaton(midge.FullNGram(2, 2))
    assert not plain.is_same_automaton(midge.FullHistory(2))
    assert not weighted.is_same_automaton(midge.NextStateTable(table.flip(1)))


@pytest.mark.parametrize("arguments", [(0, 1), (2, -1)])
def test_bad_ngrams_are_refused(arguments):
    with pytest.raises(ValueError, match="should be at least"):
        midge.FullNGram(*arguments)
    with pytest.raises(ValueError, match="vocab_size"):
        midge.FullHistory(0)


def test_shortest_then_first_path():
    """Two shortest paths lead to state 3; the one with the smaller first label counts."""
    context = midge.NextStateTable(torch.tensor([[2, 1], [3, 3], [0, 3], [3, 3]]))
    assert context.state_labels(3) == [1, 2]
    assert context.state_labels(0) == []


@pytest.mark.parametrize("seed", range(5))
def test_long_lists_of_arcs_are_summed_in_groups(seed):
    """One destination is entered by most arcs, and some by none."""
    generator = torch.Generator().manual_seed(seed)
    destination = torch.randint(-1, 6, (300,), generator=generator)
    destination[torch.rand(300, generator=generator) < 0.7] = 2
    destination[destination == 4] = 5
    groups = ArcGroups(destination, torch.randperm(300, generator=generator), 6)
    w = torch.randn(2, 300, generator=generator, dtype=torch.float64)
    found = groups.reduce(w, midge.Log)
    best, arc = groups.best(w)
    for q in range(6):
        mine = w[:, destination == q]
        torch.testing.assert_close(found[:, q], mine.logsumexp(-1), **EXACT)
        if mine.shape[1]:
            assert torch.equal(best[:, q], mine.max(-1).values)
            assert torch.equal(w.gather(1, arc[:, q : q + 1])[:, 0], best[:, q])


def test_variable_length_context_is_the_longest_kept_suffix():
    generator = torch.Generator().manual_seed(3)
    texts = [torch.randint(1, 4, (30,), generator=generator).tolist() for _ in range(3)]
    context = midge.variable_length_context(texts, 3, 3, min_count=4, max_num_states=20)
    kept = [tuple(context.state_labels(state)) for state in range(context.num_states)]
    assert len(kept) == len(set(kept)) <= 20 and kept == sorted(kept, key=lambda h: (len(h), h))
    labels = torch.randint(1, 4, (60,), generator=generator)
    for at, state in enumerate(context.walk_states(labels).tolist()):
        history = tuple(labels[:at].tolist())
        suffixes = [history[cut:] for cut in range(len(history) + 1)]
        assert kept[state] == next(suffix for suffix in suffixes if suffix in kept)


def test_variable_length_context_with_everything_is_an_ngram():
    labels = [list(history) for history in histories(2, 2)]
    context = midge.variable_length_context(labels, 2, 2)
    assert torch.equal(context.next_state_table(), midge.FullNGram(2, 2).next_state_table())


@pytest.mark.parametrize(
    "arguments, message",
    [
        (([[1, 5]], 2, 2), r"texts\[0\].*got 5"),
        (([[0]], 2, 2), "got 0"),
        (([], 0, 2), "vocab_size"),
        (([], 2, -1), "max_context_size"),
    ],
)
def test_bad_texts_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        midge.variable_length_context(*arguments)


def test_clustered_context_remembers_classes():
    context = midge.clustered_context(["v", "c", "c", "v"], 2)
    by_class = midge.FullNGram(2, 2)
    labels = torch.tensor([1, 3, 2, 4, 4, 2])
    classes = torch.tensor([2, 1, 1, 2, 2, 1])
    assert torch.equal(context.walk_states(labels), by_class.walk_states(classes))
    with pytest.raises(ValueError, match="classes"):
        midge.clustered_context([], 1)


@pytest.mark.parametrize(
    "context, expected",
    [
        (midge.FullNGram(3, 0), 1 + 3),
        (midge.FullNGram(3, 1), 2 * 4 - 1),
        (midge.FullNGram(3, 2), 2 * 13 - 1),
        (midge.clustered_context([0, 0, 1], 1), 3 + 3),
    ],
)
def test_number_of_deduplicating_states(context, expected):
    labels, slot = entering_labels(context)
    assert context.num_states + int((labels > 0).sum()) == expected
    table = context.next_state_table()
    for q in range(context.num_states):
        entering = sorted({y + 1 for y in range(context.vocab_size) if (table[:, y] == q).any()})
        assert [y for y in labels[q].tolist() if y] == entering
        assert [int(slot[q, y - 1]) for y in entering] == list(range(1, len(entering) + 1))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 16])
def test_exclusive_sum(size):
    x = torch.randn(3, size, dtype=torch.float64)
    found = exclusive_sum(x, midge.Log)
    for left_out in range(size):
        rest = torch.cat([x[:, :left_out], x[:, left_out + 1 :]], dim=-1)
        torch.testing.assert_close(found[:, left_out], rest.logsumexp(-1), **EXACT)


def test_random_automata_are_not_trivial():
    """The oracle's cases really have missing arcs, and states that several labels enter."""
    tables = [random_automaton(seed) for seed in range(2)]
    assert any(table.arc_mask is not None for table in tables)
    assert any(entering_labels(table)[0].shape[-1] > 1 for table in tables)
