"""The best path, a chunk of frames at a time: what offline and live decoding stand on.

A search keeps the best way to every state of the lattice, drops states that fall far behind, and
remembers by back-pointers how each survivor was reached. Where all survivors have the same past,
that past is *committed*: it can never change, and its pointers are freed.

Frames come one after the other, and commitment at fixed frame numbers: chunks do not matter.
"""

from __future__ import annotations

import copy
import math
from functools import cached_property

import torch
from torch import Tensor

from midge.alignments import LabelDependent
from midge.lattices.batches import Batch, checked_batch
from midge.lattices.fast import FastLattice, has_lone_repeats
from midge.lattices.recognition import RecognitionLattice
from midge.lattices.search_engines import (
    NativeEngine,
    ReadableEngine,
    SearchEngine,
    listed,
    pointer_type,
    serves_natively,
    traced_symbols,
)
from midge.lattices.search_state import FIRST_CAPACITY, Hypothesis, SearchState, Spelling


class BestPathSearch:
    """Max-path search over a finite lattice, a chunk of frames at a time.

    After each frame, states more than `margin` below its best are dropped: they are no longer kept
    nor, on lattices with at most one label per frame, scored. Every `interval` frames the search
    commits what the survivors agree on. Ties are won as in `RecognitionLattice.shortest_path`,
    whose path this is with an infinite margin and without `max_tail`.

    Agreement alone, without a margin, would often commit nothing: the states of a short history
    (all blank so far) have no rivals and would live for ever.

    The parameters are read once, here; later changes of the lattice do not reach the search.

    Args:
        lattice: with a finite context, moving along frames.
        margin: how far below the best, in nats, a state may fall. Infinity is the exact search.
            A small one, about 20, is a beam: faster, and no longer sure to find the best path.
        max_tail: number of frames that may stay uncommitted. When there are more, the best path is
            committed up to there, and survivors with another past are dropped. None is no limit.
        interval: number of frames between two looks for agreement.

    Raises:
        ValueError: for a lattice without a finite set of states, or a number out of range.

    Example:
        >>> import midge
        >>> context = midge.FullNGram(vocab_size=2, context_size=1)
        >>> weights = midge.TableWeights(context)
        >>> lattice = RecognitionLattice(context, midge.FrameDependent(), weights)
        >>> search = BestPathSearch(lattice)
        >>> state = search.start(batch_size=1)
        >>> frames = torch.zeros(1, 4, 3, 3)
        >>> frames[..., 0] = 1.0  # blank
        >>> frames[0, 1, :, 2] = 2.0  # but label 2 at frame 1
        >>> for chunk in frames.flatten(2).split(2, dim=1):
        ...     state = search.step(chunk, torch.tensor([2]), state)
        >>> found = search.finish(state)[0]
        >>> found.labels, found.frames, found.weight
        ((2,), (1,), 5.0)
    """

    def __init__(
        self,
        lattice: RecognitionLattice,
        margin: float = 200.0,
        max_tail: int | None = None,
        interval: int = 8,
    ) -> None:
        """Checks the arguments, and embeds the context states."""
        _check_numbers(margin, max_tail, interval)
        whole = lattice._whole
        if whole is None or isinstance(lattice.alignment, LabelDependent):
            raise ValueError(
                "lattice should have a finite context and move along frames with a bounded number "
                f"of labels each, got {lattice.context} and {lattice.alignment}; decode others by "
                "beam search (midge.beam_search)"
            )
        self.margin = margin
        self.max_tail = max_tail
        self.interval = interval
        self._whole = whole
        self._alignment = whole.alignment
        self._space = whole.space
        self._weights = copy.deepcopy(lattice.weights).requires_grad_(False)
        self._like = next(self._weights.parameters(), torch.empty(0)).new_empty(0)
        self._native_engine = self._new_native_engine()

    def start(self, batch_size: int, dtype: torch.dtype | None = None) -> SearchState:
        """Streams of which nothing has been heard.

        Args:
            batch_size: number of streams.
            dtype: of the frames to come, float32 or float64; by default that of the parameters.
        """
        if batch_size < 0:
            raise ValueError(f"batch_size should be at least 0, got {batch_size}")
        like = self._like.to(self._like.dtype if dtype is None else dtype)
        shape = self._space.state_shape
        zeros = torch.zeros(batch_size, dtype=torch.int64, device=like.device)
        pointers = zeros.new_zeros(
            (batch_size, FIRST_CAPACITY, self._alignment.num_levels, math.prod(shape)),
            dtype=pointer_type(self._whole),
        )
        return SearchState(
            alpha=self._space.start(like).expand(batch_size, *shape).clone(),
            offset=zeros.double(),
            num_frames=zeros.clone(),
            num_settled=zeros.clone(),
            num_cuts=zeros.clone(),
            pointers=pointers,
            committed=[Spelling() for _ in range(batch_size)],
        )

    def _new_native_engine(self) -> NativeEngine | None:
        whole = self._whole
        fast = FastLattice(
            whole.context,
            whole.alignment,
            self._weights,
            whole.normalization,
            whole.deduplicate,
            whole.deduplicate and has_lone_repeats(whole.context),
        )
        return NativeEngine(fast, whole, self.margin) if serves_natively(fast, whole) else None

    @cached_property
    def _readable_engine(self) -> ReadableEngine:
        return ReadableEngine(self._whole, self._weights, self.margin)

    def _engine(self, frames: Tensor) -> SearchEngine:
        """The engine for the type of some frames."""
        if frames.dtype == torch.float32 and self._native_engine is not None:
            return self._native_engine
        return self._readable_engine

    @torch.no_grad()
    def step(self, frames: Tensor, num_frames: Tensor, state: SearchState) -> SearchState:
        """Hears more frames.

        Args:
            frames: [B, max_num_frames, input_size].
            num_frames: [B] integers; a stream with 0 waits, at no cost.
            state: where the streams are.

        Returns:
            The same state, changed in place.

        Raises:
            ValueError: if an argument does not fit; names it.
        """
        batch = checked_batch(frames, num_frames, None, None, self._whole.context.vocab_size)
        _check_state(batch, state)
        with torch.autocast(batch.frames.device.type, enabled=False):
            engine = self._engine(batch.frames)
            inputs = engine.inputs(batch.frames, batch.num_frames)
            done = torch.zeros_like(batch.num_frames)
            while bool((done < batch.num_frames).any()):
                until_look = self.interval - state.num_frames % self.interval
                count = torch.minimum(batch.num_frames - done, until_look)
                rows = count.nonzero().squeeze(-1)
                state.reserve(int((state.tail + count).max()))
                engine.hear(inputs, rows, done[rows], count[rows], state)
                done = done + count
                self._settle(rows[state.num_frames[rows] % self.interval == 0], state)
        return state

    @torch.no_grad()
    def partial(self, state: SearchState) -> list[Hypothesis]:
        """What each stream seems to say so far: committed labels, and a tail that may change."""
        return self._hypotheses(state, state.alpha.flatten(1), is_final=False)

    @torch.no_grad()
    def finish(self, state: SearchState) -> list[Hypothesis]:
        """What each stream said if it ends here; all its labels count as committed.

        The state is left as it is.
        """
        ended = state.alpha + self._space.final(state.alpha)
        return self._hypotheses(state, ended.flatten(1), is_final=True)

    def whole(self, frames: Tensor, num_frames: Tensor) -> list[Hypothesis]:
        """What whole utterances say: what streams of them end with, under the same rules.

        Args:
            frames: [B, max_num_frames, input_size].
            num_frames: [B] integers.
        """
        state = self.start(len(frames), frames.dtype)
        return self.finish(self.step(frames, num_frames, state))

    def _settle(self, rows: Tensor, state: SearchState) -> None:
        """Commits what the survivors of some streams agree on, and what is older than allowed."""
        alive = (state.alpha[rows] > -torch.inf).flatten(1)
        has_path = alive.any(-1)
        gone = rows[~has_path]
        state.num_settled[gone] = state.num_frames[gone]  # nobody will ask for their past
        rows, alive = rows[has_path], alive[has_path]
        if len(rows):
            self._commit(rows, *self._agreement(rows, listed(alive), state), state)
        if self.max_tail is not None:
            late = rows[state.tail[rows] > self.max_tail]
            if len(late):
                self._cut(late, self.max_tail, state)

    def _agreement(
        self, rows: Tensor, survivors: Tensor, state: SearchState
    ) -> tuple[Tensor, Tensor]:
        """[R] how many frames of the tail the survivors agree on, and [R] the state after them.

        Args:
            rows: [R] streams.
            survivors: [R, A] flat states.
            state: of the search.
        """
        states, place = survivors, state.tail[rows]
        # All ways begin in one state, so that this ends at the latest there.
        while bool((going := (states != states[:, :1]).any(-1)).any()):
            _, before = self._before(rows, place - 1, states, state)
            states = torch.where(going[:, None], before, states)
            place = place - going.long()
            # Ways meet soon. To list the distinct states costs about as much as one step.
            if states.shape[1] > 8 and bool((place % 4 == 0).any()):
                there = torch.zeros_like(state.alpha[rows].flatten(1), dtype=torch.bool)
                states = listed(there.scatter_(1, states, True))
        return place, states[:, 0]

    def _cut(self, rows: Tensor, max_tail: int, state: SearchState) -> None:
        """Commits the best path but for its last frames, and drops whoever came another way."""
        alpha = state.alpha[rows].flatten(1)
        tail = state.tail[rows]
        states = torch.arange(alpha.shape[1], device=rows.device).expand(alpha.shape)
        for back in range(1, max_tail + 1):
            _, states = self._before(rows, tail - back, states, state)
        origin = states.gather(1, alpha.argmax(1)[:, None])
        alpha = alpha.masked_fill(states != origin, -torch.inf)
        state.alpha[rows] = alpha.view(len(rows), *self._space.state_shape)
        state.num_cuts[rows] += 1
        self._commit(rows, tail - max_tail, origin[:, 0], state)

    def _commit(self, rows: Tensor, count: Tensor, last: Tensor, state: SearchState) -> None:
        """Commits the first frames of the tails, [R] so many, that end in states [R]."""
        symbols = self._symbols(rows, count, last, state)
        tails = state.tail[rows].tolist()
        each = zip(rows.tolist(), count.tolist(), tails, symbols, strict=True)
        for row, number, tail, emitted in each:
            self._spell(state.committed[row], int(state.num_settled[row]), emitted[:number])
            state.pointers[row, : tail - number] = state.pointers[row, number:tail].clone()
        state.num_settled[rows] += count

    def _before(
        self, rows: Tensor, place: Tensor, states: Tensor, state: SearchState
    ) -> tuple[Tensor, Tensor]:
        """One frame back: the symbols [R, A, any] it emitted, and the states [R, A] before it.

        Args:
            rows: [R] streams.
            place: [R] which frame of their tails; a negative one gives anything.
            states: [R, A] flat states after that frame.
            state: of the search.
        """
        pointers = state.pointers[rows, place.clamp(min=0)].long().movedim(1, 0)[:, :, None]
        shape = (*pointers.shape[:2], states.shape[1], pointers.shape[3])
        return self._alignment.trace(pointers.expand(shape), states)

    def _symbols(
        self, rows: Tensor, count: Tensor, last: Tensor, state: SearchState
    ) -> list[list[list[int]]]:
        """What the first frames of the tails emitted, on the way to the states after them.

        Args:
            rows: [R] streams.
            count: [R] number of frames.
            last: [R] flat states after them.
            state: of the search.

        Returns:
            Per stream and frame the symbols.
        """
        each = zip(rows.tolist(), count.tolist(), last.tolist(), strict=True)
        return [
            traced_symbols(state.pointers[row, :number].cpu().numpy(), at)
            for row, number, at in each
        ]

    def _spell(self, spelling: Spelling, first: int, symbols: list[list[int]]) -> None:
        """Adds the symbols of frames to a spelling."""
        for offset, emitted in enumerate(symbols):
            spelling.append(first + offset, emitted, self._whole.deduplicate)

    def _hypotheses(self, state: SearchState, weights: Tensor, is_final: bool) -> list[Hypothesis]:
        """The best paths, by the weights [B, F] of ending in each state."""
        if not len(weights):
            return []
        best, last = weights.max(-1)
        count = torch.where(best > -torch.inf, state.tail, 0)
        symbols = self._symbols(torch.arange(len(last), device=last.device), count, last, state)
        total = (best.double() + state.offset).tolist()
        found = []
        for row, committed in enumerate(state.committed):
            spelling = committed.copy()
            self._spell(spelling, int(state.num_settled[row]), symbols[row][: int(count[row])])
            found.append(
                Hypothesis(
                    labels=tuple(spelling.labels),
                    frames=tuple(spelling.frames),
                    num_committed=len((spelling if is_final else committed).labels),
                    num_frames=int(state.num_frames[row]),
                    num_cuts=int(state.num_cuts[row]),
                    weight=total[row],
                )
            )
        return found


def _check_numbers(margin: float, max_tail: int | None, interval: int) -> None:
    if not margin >= 0:
        raise ValueError(f"margin should be at least 0 nats, or infinity, got {margin}")
    if max_tail is not None and max_tail < 1:
        raise ValueError(f"max_tail should be at least 1 frame, or None, got {max_tail}")
    if interval < 1:
        raise ValueError(f"interval should be at least 1 frame, got {interval}")


def _check_state(batch: Batch, state: SearchState) -> None:
    if len(batch.shape) != 1 or len(batch.frames) != len(state.committed):
        raise ValueError(
            f"frames should be [{len(state.committed)}, max_num_frames, input_size] for the "
            f"streams of the state, got batch dims {list(batch.shape)}"
        )
    if batch.frames.dtype != state.alpha.dtype:
        raise ValueError(
            f"frames should be {state.alpha.dtype} as the state is, got {batch.frames.dtype}; "
            "give start() the dtype, or convert the frames"
        )
