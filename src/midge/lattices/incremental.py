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
from midge.lattices.back_traces import agreement, traced_symbols
from midge.lattices.batches import Batch, checked_batch
from midge.lattices.fast import FastLattice, has_lone_repeats
from midge.lattices.recognition import RecognitionLattice
from midge.lattices.search_engines import (
    NativeEngine,
    ReadableEngine,
    SearchEngine,
    pointer_type,
    serves_natively,
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
        room = (FIRST_CAPACITY, self._alignment.num_levels, math.prod(shape))
        return SearchState(
            alpha=self._space.start(like).expand(batch_size, *shape).clone(),
            offset=zeros.double(),
            num_frames=zeros.clone(),
            num_settled=zeros.clone(),
            num_cuts=zeros.clone(),
            pointers=[
                torch.zeros(room, dtype=pointer_type(self._whole)) for _ in range(batch_size)
            ],
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
                for row, needed in enumerate((state.tail + count).tolist()):
                    state.reserve(row, needed)
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
        alive = (state.alpha[rows] > -torch.inf).flatten(1).cpu()
        settled, tails = state.num_settled[rows].tolist(), state.tail[rows].tolist()
        each = zip(rows.tolist(), settled, tails, alive.unbind(), strict=True)
        counts = [self._settled(*stream, state) for stream in each]
        state.num_settled[rows] += torch.tensor(counts, dtype=torch.int64, device=rows.device)

    def _settled(self, row: int, first: int, tail: int, alive: Tensor, state: SearchState) -> int:
        """Commits what can be of a stream's tail; the number of frames.

        Args:
            row: of the stream.
            first: number of the first frame of its tail.
            tail: number of frames of its tail.
            alive: [F] its survivors.
            state: of the search.
        """
        if not alive.any():
            return tail  # nobody will ask for their past
        count, last = agreement(state.pointers[row], tail, alive)
        self._commit(row, first, tail, count, last, state)
        if self.max_tail is None or tail - count <= self.max_tail:
            return count
        return count + self._cut(row, first + count, tail - count, self.max_tail, state)

    def _cut(self, row: int, first: int, tail: int, max_tail: int, state: SearchState) -> int:
        """Commits the best path but for its last frames, and drops whoever came another way."""
        alpha = state.alpha[row].flatten()
        states = torch.arange(len(alpha))
        for frame in reversed(range(tail - max_tail, tail)):
            pointers = state.pointers[row][frame].long()[:, None]
            shape = (len(pointers), len(alpha), len(alpha))
            _, states = self._alignment.trace(pointers.expand(shape), states)
        origin = int(states[int(alpha.argmax())])
        others = (states != origin).to(alpha.device)
        state.alpha[row] = alpha.masked_fill(others, -torch.inf).view(self._space.state_shape)
        state.num_cuts[row] += 1
        self._commit(row, first, tail, tail - max_tail, origin, state)
        return tail - max_tail

    def _commit(
        self, row: int, first: int, tail: int, count: int, last: int, state: SearchState
    ) -> None:
        """Commits the first frames of a tail, `count` of them, which end in a state."""
        symbols = traced_symbols(state.pointers[row], count, last)
        width = self._alignment.num_levels
        state.committed[row].extend(first, width, symbols, self._whole.deduplicate)
        state.forget(row, count, tail)

    def _hypotheses(self, state: SearchState, weights: Tensor, is_final: bool) -> list[Hypothesis]:
        """The best paths, by the weights [B, F] of ending in each state."""
        if not len(weights):
            return []
        best, last = weights.max(-1)
        total = best.double() + state.offset
        found = []
        for row, (committed, at, weight, num_frames, num_settled, num_cuts) in enumerate(
            zip(
                state.committed,
                last.tolist(),
                total.tolist(),
                state.num_frames.tolist(),
                state.num_settled.tolist(),
                state.num_cuts.tolist(),
                strict=True,
            )
        ):
            spelling = committed.copy()
            if weight > -math.inf:
                symbols = traced_symbols(state.pointers[row], num_frames - num_settled, at)
                width = self._alignment.num_levels
                spelling.extend(num_settled, width, symbols, self._whole.deduplicate)
            found.append(
                Hypothesis(
                    labels=tuple(spelling.labels),
                    frames=tuple(spelling.frames),
                    num_committed=len((spelling if is_final else committed).labels),
                    num_frames=num_frames,
                    num_cuts=num_cuts,
                    weight=weight,
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
