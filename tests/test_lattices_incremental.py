"""The search in pieces: against `shortest_path`, against a plain search, and against itself."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import midge
from cases import CASES, Case
from midge.lattices import BestPathSearch, Hypothesis, SearchState

ENGINES = ("native", "reference")
SOME = [
    Case("0-gram", "frame", "softmax", deduplicate=True),
    Case("1-gram", "frame-no-blank"),
    Case("2-gram", "frame"),
    Case("2-gram", "frame", deduplicate=True),
    Case("random-0", "frame", "hat"),
    Case("2-gram", "label-frame:2", "softmax"),
    Case("1-gram", "label-frame:2", deduplicate=True),
    Case("final-weights", "frame"),
]
ALL = [
    pytest.param(case, id=str(case), marks=[] if case in SOME else [pytest.mark.slow])
    for case in CASES
    if not case.alignment_name.startswith("label:")
]


@pytest.fixture(params=ENGINES)
def engine(request, monkeypatch):
    """Both engines; float64 is always the readable one's."""
    monkeypatch.setenv("MIDGE_ENGINE", request.param)
    return request.param


def noise(case: Case, *shape: int, seed: int = 0, grid: float = 0.0) -> Tensor:
    """[*shape, input_size] float32 scores; with a grid rounded to it, so that there are ties."""
    context = case.context()
    generator = torch.Generator().manual_seed(seed)
    size = context.num_states * (1 + context.vocab_size)
    frames = 1.5 * torch.randn(*shape, size, generator=generator)
    return (frames / grid).round() * grid if grid else frames


def run(search: BestPathSearch, frames: Tensor, num_frames: Tensor, size: int) -> SearchState:
    """A state after all frames, in chunks of one size."""
    state = search.start(len(frames), frames.dtype)
    for first in range(0, frames.shape[1], size):
        chunk = frames[:, first : first + size]
        state = search.step(chunk, (num_frames - first).clamp(0, chunk.shape[1]), state)
    return state


def spelled(path: midge.Path, row: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The labels of a path, and the frame of each."""
    length = int(path.num_alignment_labels[row])
    labels = path.alignment_labels[row, :length].tolist()
    before = [0, *labels[:-1]] if path.deduplicate else [0] * length
    new = [at for at, label in enumerate(labels) if label and label != before[at]]
    frames = path.alignment_frames[row].tolist()
    return tuple(labels[at] for at in new), tuple(frames[at] for at in new)


@pytest.mark.parametrize("case", ALL)
def test_exact_search_is_the_shortest_path(case: Case):
    frames = noise(case, 3, 11, seed=3, grid=1.0 if case.normalization == "global" else 0.0)
    if case.normalization != "hat":
        frames[:, 2:4, ::5] = -torch.inf
    frames = frames.double()
    num_frames = torch.tensor([11, 0, 7])
    path = case.lattice().shortest_path(frames, num_frames)
    search = BestPathSearch(case.lattice(), margin=math.inf)
    for size in (4, 11):
        found = search.finish(run(search, frames, num_frames, size))
        for row, hypothesis in enumerate(found):
            assert hypothesis.num_frames == int(num_frames[row])
            assert hypothesis.weight == pytest.approx(float(path.weight[row]), abs=1e-9)
            if hypothesis.weight > -math.inf:
                assert (hypothesis.labels, hypothesis.frames) == spelled(path, row)


@pytest.mark.parametrize("case", ALL)
def test_native_search_is_the_readable_one(case: Case, monkeypatch):
    frames = noise(case, 2, 18, seed=4, grid=0.5 if case.normalization == "global" else 0.0)
    num_frames = torch.tensor([18, 11])
    for margin in (3.0, math.inf):
        found = {}
        for name in ENGINES:
            monkeypatch.setenv("MIDGE_ENGINE", name)
            search = BestPathSearch(case.lattice(), margin, max_tail=6)
            state = run(search, frames, num_frames, size=7)
            found[name] = (search.partial(state), search.finish(state), state.alpha)
        for mine, theirs in zip(found["native"][0], found["reference"][0], strict=True):
            assert_same(mine, theirs, within=1e-4)
        for mine, theirs in zip(found["native"][1], found["reference"][1], strict=True):
            assert_same(mine, theirs, within=1e-4)
        torch.testing.assert_close(found["native"][2], found["reference"][2], atol=1e-4, rtol=0)


def assert_same(mine: Hypothesis, theirs: Hypothesis, within: float) -> None:
    assert mine.weight == pytest.approx(theirs.weight, abs=within)
    assert replace(mine, weight=0.0) == replace(theirs, weight=0.0)


@dataclass
class PlainSearch:
    """One stream on a frame-dependent lattice without deduplication, in Python floats."""

    context: midge.FiniteContext
    margin: float

    def __call__(self, frames: Tensor) -> tuple[float, tuple[int, ...], tuple[int, ...]]:
        num_states, vocab_size = self.context.num_states, self.context.vocab_size
        next_state = self.context.next_state_table().tolist()
        best = {self.context.start: 0.0}
        pointers: list[dict[int, tuple[int, int]]] = []
        for row in frames.double().view(-1, num_states, 1 + vocab_size).tolist():
            after: dict[int, float] = {}
            pointer: dict[int, tuple[int, int]] = {}
            for label in range(1 + vocab_size):  # ties: blank, then label, then source
                for source in sorted(best):
                    to = next_state[source][label - 1] if label else source
                    weight = best[source] + row[source][label]
                    if to not in after or weight > after[to]:
                        after[to], pointer[to] = weight, (source, label)
            limit = max(after.values()) - self.margin
            best = {state: weight for state, weight in after.items() if weight >= limit}
            pointers.append(pointer)
        weight = max(best.values())
        return weight, *self._trace(min(q for q in best if best[q] == weight), pointers)

    @staticmethod
    def _trace(state: int, pointers: list) -> tuple[tuple[int, ...], tuple[int, ...]]:
        found = []
        for frame in reversed(range(len(pointers))):
            state, label = pointers[frame][state]
            if label:
                found.append((label, frame))
        labels, frames = zip(*found[::-1], strict=True) if found else ((), ())
        return labels, frames


@pytest.mark.parametrize("margin", [0.0, 1.0, 3.0, 200.0])
def test_margin_drops_what_a_plain_search_drops(engine, margin):
    case = Case("2-gram", "frame")
    # Multiples of 1/8 are exact in float32, so that ties and limits are the same.
    frames = noise(case, 4, 60, seed=5, grid=0.125)
    search = BestPathSearch(case.lattice(), margin)
    found = search.finish(run(search, frames, torch.full((4,), 60), size=60))
    plain = PlainSearch(case.context(), margin)
    for row, hypothesis in enumerate(found):
        expected = plain(frames[row])
        assert (hypothesis.weight, hypothesis.labels, hypothesis.frames) == expected


@pytest.mark.slow
def test_hundred_thousand_frames_of_float32_lose_nothing():
    """Weights sum to -400,000, where float32 has steps of 1/32; here all are multiples of 1/64."""
    case = Case("1-gram", "frame")
    num_frames = 100_000
    frames = noise(case, 1, num_frames, seed=6, grid=1 / 64) - 4.0
    search = BestPathSearch(case.lattice(), margin=20.0, interval=100)
    assert search._native_engine is not None
    found = search.finish(run(search, frames, torch.tensor([num_frames]), size=1000))[0]
    weight, labels, times = PlainSearch(case.context(), 20.0)(frames[0])
    assert weight < -100_000
    assert found.weight == weight
    assert (found.labels, found.frames) == (labels, times)


@settings(deadline=None, max_examples=10)
@given(data=st.data())
@pytest.mark.parametrize("name", ENGINES)
def test_chunks_do_not_matter(name, data):
    case = data.draw(st.sampled_from(SOME))
    margin = data.draw(st.sampled_from([2.0, 8.0, 200.0, math.inf]))
    max_tail = data.draw(st.sampled_from([None, 1, 5, 12]))
    interval = data.draw(st.sampled_from([1, 3, 8]))
    cuts = sorted(data.draw(st.lists(st.integers(0, 24), max_size=6)))
    frames = noise(case, 1, 24, seed=data.draw(st.integers(0, 1000)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIDGE_ENGINE", name)
        search = BestPathSearch(case.lattice(), margin, max_tail, interval)
    whole = run(search, frames, torch.tensor([24]), size=24)
    state = search.start(1)
    for first, last in zip([0, *cuts], [*cuts, 24], strict=True):
        state = search.step(frames[:, first:last], torch.tensor([last - first]), state)
    assert search.finish(state) == search.finish(whole)
    assert search.partial(state) == search.partial(whole)
    assert torch.equal(state.alpha, whole.alpha)


@settings(deadline=None, max_examples=10)
@given(data=st.data())
@pytest.mark.parametrize("name", ENGINES)
def test_the_committed_prefix_never_changes(name, data):
    case = data.draw(st.sampled_from(SOME))
    margin = data.draw(st.sampled_from([2.0, 8.0, 30.0]))
    max_tail = data.draw(st.sampled_from([None, 3, 12]))
    frames = noise(case, 1, 30, seed=data.draw(st.integers(0, 1000)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIDGE_ENGINE", name)
        search = BestPathSearch(case.lattice(), margin, max_tail, interval=4)
    state = search.start(1)
    committed: list[tuple[int, int]] = []
    for frame in frames.unbind(1):
        state = search.step(frame[:, None], torch.tensor([1]), state)
        seen = search.partial(state)[0]
        emitted = list(zip(seen.labels, seen.frames, strict=True))
        assert emitted[: len(committed)] == committed
        assert seen.num_committed >= len(committed)
        committed = emitted[: seen.num_committed]
        if max_tail is not None:
            assert int(state.tail) < max_tail + search.interval
    final = search.finish(state)[0]
    emitted = list(zip(final.labels, final.frames, strict=True))
    assert emitted[: len(committed)] == committed
    assert final.num_committed == len(final.labels)


def test_something_is_committed_long_before_the_end(engine):
    case = Case("2-gram", "frame")
    frames = noise(case, 1, 100, seed=7)
    search = BestPathSearch(case.lattice(), margin=10.0)
    found = search.partial(run(search, frames, torch.tensor([100]), size=10))[0]
    assert found.num_committed > 0.7 * len(found.labels)
    assert found.num_cuts == 0
    # Without a margin the empty history, reached by blanks alone, has no rival and never dies.
    exact = BestPathSearch(case.lattice(), margin=math.inf)
    found = exact.partial(run(exact, frames, torch.tensor([100]), size=10))[0]
    assert found.num_committed == 0


def test_memory_is_constant(engine):
    case = Case("2-gram", "frame")
    search = BestPathSearch(case.lattice(), margin=30.0, max_tail=100)
    state = search.start(2)
    capacities = set()
    num_parts = 8 if engine == "native" else 2
    for part in range(num_parts):
        frames = noise(case, 2, 250, seed=part)
        state = search.step(frames, torch.tensor([250, 200]), state)
        capacities.update(map(len, state.pointers))
        assert int(state.tail.max()) <= 100
    assert max(capacities) <= 128
    assert state.num_frames.tolist() == [250 * num_parts, 200 * num_parts]
    assert {pointers.dtype for pointers in state.pointers} == {torch.int16}


def test_a_long_tail_is_cut_and_said_so(engine):
    """Two histories that stay equally good: they never die, and never agree."""
    context = midge.NextStateTable(torch.tensor([[1, 2], [1, 1], [2, 2]]))
    weights = midge.TableWeights(context)
    lattice = midge.RecognitionLattice(context, midge.FrameDependent(), weights)
    frames = torch.full((1, 64, 3, 3), -torch.inf)
    frames[..., 0] = 0.0
    frames[0, 0] = torch.tensor([-torch.inf, -1.0, 0.0])  # label 2 is better by 1 ...
    frames[0, 50, 2, 0] = -5.0  # ... until frame 50
    frames = frames.flatten(2)
    free = BestPathSearch(lattice, margin=100.0)
    found = free.finish(run(free, frames, torch.tensor([64]), size=64))[0]
    assert (found.labels, found.weight, found.num_cuts) == ((1,), -1.0, 0)
    search = BestPathSearch(lattice, margin=100.0, max_tail=20)
    for size in (24, 1):  # at frame 24, whatever the chunks
        state = run(search, frames[:, :24], torch.tensor([24]), size)
        found = search.partial(state)[0]
        assert (found.labels, found.num_committed, found.num_cuts) == ((2,), 1, 1)
        assert int(state.tail) == 20
    state = search.step(frames[:, 24:], torch.tensor([40]), state)
    found = search.finish(state)[0]
    assert (found.labels, found.frames, found.weight) == ((2,), (0,), -5.0)
    assert found.num_cuts == 1  # the rival is gone: the rest is agreed on


@pytest.mark.parametrize("weights", ["shared-embedding", "shared-rnn", "unshared"])
@pytest.mark.parametrize("deduplicate", [False, True])
def test_streams_of_a_batch_are_as_alone(engine, weights, deduplicate):
    lattice = model(weights, deduplicate=deduplicate)
    frames = 3.0 * torch.randn(3, 50, 8, generator=torch.Generator().manual_seed(8))
    search = BestPathSearch(lattice, margin=15.0, max_tail=30)
    alone = [
        search.finish(run(search, frames[row : row + 1], torch.tensor([50 - 7 * row]), size=9))[0]
        for row in range(3)
    ]
    # Streams that hear different numbers of frames at a time, wait, are joined and split.
    state = search.step(frames[:2, :20], torch.tensor([20, 11]), search.start(2))
    state = SearchState.join([state, search.start(1)])
    state = search.step(
        torch.stack([frames[0, 20:50], frames[1, 11:41], frames[2, :30]]),
        torch.tensor([30, 0, 30]),
        state,
    )
    first, rest = state.split([1, 2])
    rest = search.step(
        torch.stack([frames[1, 11:43], frames[2, 18:50]]), torch.tensor([32, 0]), rest
    )
    last = rest.split()
    last[1] = search.step(frames[2:, 30:], torch.tensor([6]), last[1])
    together = [search.finish(part)[0] for part in (first, *last)]
    for mine, theirs in zip(together, alone, strict=True):
        assert len(mine.labels) > 3
        # One stream after the other in C++; one product for all of them in PyTorch.
        assert_same(mine, theirs, within=0.0 if engine == "native" else 1e-4)


@pytest.mark.parametrize("weights", ["shared-embedding", "shared-rnn", "unshared"])
@pytest.mark.parametrize("normalization", ["global", "softmax", "hat"])
def test_models_agree_with_the_shortest_path(engine, weights, normalization):
    lattice = model(weights, normalization)
    frames = 3.0 * torch.randn(2, 40, 8, generator=torch.Generator().manual_seed(9))
    num_frames = torch.tensor([40, 33])
    path = lattice.shortest_path(frames, num_frames)
    for margin in (15.0, 200.0, math.inf):
        search = BestPathSearch(lattice, margin)
        for row, found in enumerate(search.finish(run(search, frames, num_frames, size=6))):
            assert found.weight == pytest.approx(float(path.weight[row]), abs=1e-4)
            assert (found.labels, found.frames) == spelled(path, row)


def model(
    weights: str, normalization: str = "global", deduplicate: bool = False
) -> midge.RecognitionLattice:
    """A small model with peaked weights, as trained ones are."""
    parts = midge.named_model(
        "gnat", weights=weights, normalization=normalization, deduplicate=deduplicate
    )
    torch.manual_seed(10)
    lattice = parts.build(7, 8, hidden_size=16, embedding_size=8, rnn_size=16)
    with torch.no_grad():
        for parameter in lattice.weights.parameters():
            parameter.mul_(3.0)
    return lattice


def test_later_training_does_not_reach_a_search(engine):
    lattice = model("shared-rnn")
    frames = torch.randn(1, 30, 8, generator=torch.Generator().manual_seed(11))
    search = BestPathSearch(lattice)
    before = search.finish(run(search, frames, torch.tensor([30]), size=30))
    with torch.no_grad():
        for parameter in lattice.weights.parameters():
            parameter.normal_()
    assert search.finish(run(search, frames, torch.tensor([30]), size=30)) == before


def test_padding_never_matters(engine):
    lattice = model("shared-embedding")
    frames = torch.randn(1, 10, 8, generator=torch.Generator().manual_seed(12))
    search = BestPathSearch(lattice)
    state = search.step(frames, torch.tensor([10]), search.start(1))
    junk = torch.cat([frames, torch.full((1, 4, 8), torch.nan)], dim=1)
    other = search.step(junk, torch.tensor([10]), search.start(1))
    assert search.finish(state) == search.finish(other)
    assert torch.equal(state.alpha, other.alpha)


def test_where_no_path_is_left_what_was_committed_stays(engine):
    case = Case("0-gram", "frame-no-blank")
    frames = noise(case, 1, 20, seed=13)
    frames[0, 12:] = -torch.inf
    search = BestPathSearch(case.lattice(), margin=5.0, interval=4)
    alive = search.finish(run(search, frames[:, :12], torch.tensor([12]), size=12))[0]
    state = run(search, frames, torch.tensor([20]), size=20)
    for found in (search.partial(state)[0], search.finish(state)[0]):
        assert found.weight == -math.inf
        assert found.labels == alive.labels
        assert len(found.labels) == 12
    assert int(state.tail) == 0


def test_nothing_heard(engine):
    case = Case("1-gram", "frame")
    search = BestPathSearch(case.lattice())
    state = search.step(torch.zeros(2, 0, 9), torch.tensor([0, 0]), search.start(2))
    nothing = Hypothesis((), (), num_committed=0, num_frames=0, num_cuts=0, weight=0.0)
    assert search.partial(state) == search.finish(state) == [nothing, nothing]
    assert search.finish(search.start(0)) == []


def test_bad_arguments_are_named():
    context = midge.FullNGram(2, 1)
    lattice = Case("1-gram", "frame").lattice()
    for name, value in {"margin": -1.0, "max_tail": 0, "interval": 0}.items():
        with pytest.raises(ValueError, match=f"{name} should be at least"):
            BestPathSearch(lattice, **{name: value})
    with pytest.raises(ValueError, match="margin should be"):
        BestPathSearch(lattice, margin=math.nan)
    others = [
        midge.named_model("rnn-t").build(2, 4, hidden_size=4, rnn_size=4),
        Case("1-gram", "label:all").lattice(),
        midge.RecognitionLattice(
            context, midge.LabelFrameDependent(None), midge.TableWeights(context), "softmax"
        ),
    ]
    for other in others:
        with pytest.raises(ValueError, match="lattice should have a finite context"):
            BestPathSearch(other)
    search = BestPathSearch(lattice)
    with pytest.raises(ValueError, match="batch_size should be at least 0"):
        search.start(-1)
    with pytest.raises(ValueError, match=r"frames should be \[2, max_num_frames"):
        search.step(torch.zeros(1, 3, 9), torch.tensor([3]), search.start(2))
    with pytest.raises(ValueError, match="frames should be torch.float32 as the state"):
        search.step(torch.zeros(1, 3, 9, dtype=torch.float64), torch.tensor([3]), search.start(1))
    with pytest.raises(ValueError, match=r"frames should be \[\*batch, max_num_frames, 9\]"):
        search.step(torch.zeros(1, 3, 8), torch.tensor([3]), search.start(1))
    with pytest.raises(ValueError, match="states should hold at least one"):
        SearchState.join([])
    with pytest.raises(ValueError, match="sum to 2"):
        search.start(2).split([1])
