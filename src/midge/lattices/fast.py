"""Lattices on the native engine: what it can do, and how a lattice is described to it.

The engine computes what `recursion` and `numerator` compute, in one pass over the frames that
serves numerator and denominator alike. It takes float32 on the CPU, all lattices that move along
frames, and the weight functions without attention; the rest goes the readable way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from midge.alignments import AlignmentLattice, FrameDependent, LabelDependent, LabelFrameDependent
from midge.contexts import ContextDependency, FiniteContext, FullNGram
from midge.contexts.deduplication import entering_labels
from midge.kernels import native, operators, use_native
from midge.lattices.batches import Batch
from midge.lattices.paths import Path
from midge.weights import Normalization, Scorer, WeightFn

_SCORERS = {"joint": native.JOINT, "unshared": native.UNSHARED, "table": native.TABLE}
_MAX_EMBEDDED_STATES = 2**16
_PART_FRAMES = 2**11
_NORMALIZATIONS = {"global": native.GLOBAL, "softmax": native.SOFTMAX, "hat": native.HAT}


@dataclass(frozen=True)
class FastLattice:
    """What is the same for every input: topology and normalization."""

    context: ContextDependency
    """The context dependency."""
    alignment: AlignmentLattice
    """The alignment lattice."""
    weights: WeightFn
    """The weight function."""
    normalization: Normalization
    """How scores become weights."""
    deduplicate: bool
    """Whether the CTC transducer stands between."""
    has_lone_repeats: bool
    """What `has_lone_repeats` says of the context."""

    def serves(self, batch: Batch, what: int) -> bool:
        """Whether the engine can take a batch, and should."""
        if batch.frames.dtype != torch.float32 or batch.frames.device.type != "cpu":
            return False
        if len(batch.frames) == 0:
            return False
        if isinstance(self.alignment, LabelDependent) or self.weights.kind not in _SCORERS:
            return False
        if self.deduplicate and (not self.alignment.has_blank or self.has_lone_repeats):
            return False
        is_finite = isinstance(self.context, FiniteContext)
        if isinstance(self.context, FiniteContext) and self.context.label_weights is not None:
            return False
        if not is_finite and (
            self.deduplicate or self._alignment(batch, native.NUMERATOR) == native.K_CONSTRAINED
        ):
            return False
        if is_finite and not what & native.LOG_Z and self._embeds_too_much(batch, what):
            return False
        return use_native()

    def distances(self, batch: Batch, what: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """[B] float64 log Z, log numerator, and their entropies; empty where not asked for."""
        inputs = self._inputs(batch, what)
        differentiable = torch.is_grad_enabled() and any(
            t is not None and t.requires_grad for t in inputs.tensors[:4]
        )
        what = what | native.KEEP if differentiable else what
        log_z, log_numerator, entropy_z, entropy_numerator, _ = operators.distances(
            *inputs.tensors, *inputs.numbers, inputs.choices, what
        )
        return log_z, log_numerator, entropy_z, entropy_numerator

    def _best_path(self, batch: Batch, embedded: Scorer | None) -> Path:
        """The best path, or with labels the best alignment."""
        what = native.LOG_Z if batch.labels is None else native.NUMERATOR
        problem = self.problem(batch, what, embedded)
        weight, length, labels, frames = operators.best_path(problem, what)
        size = int(length.max()) if length.numel() else 0
        return Path(labels[:, :size], frames[:, :size], length, weight.float(), self.deduplicate)

    def best_paths(self, batch: Batch) -> list[Path]:
        """The best paths of parts of the batch, in order.

        A search keeps nothing of the projected frames, so those of some utterances at a time will
        do. Parts are small: glibc keeps the room of four of them, however many there are.
        """
        size = max(_PART_FRAMES // max(batch.frames.shape[1], 1), 2)
        embedded = None
        if batch.labels is None and len(batch.frames) > size:
            embedded = self.weights.scorer(
                batch.frames[:, :0], torch.zeros_like(batch.num_frames), None, operators.linear
            )
        return [self._best_path(part, embedded) for part in batch.split(size)]

    def whole_marginals(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """[B, T, Q] blank and [B, T, Q, V] label posteriors of A."""
        return operators.marginals(self.problem(batch, native.LOG_Z))

    def string_marginals(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """[B, T, U + 1] posteriors of blank, next label and repeat at each position of A ∩ y."""
        return operators.chain_marginals(self.problem(batch, native.NUMERATOR))

    def problem(self, batch: Batch, what: int, embedded: Scorer | None = None) -> native.Problem:
        """The batch as the engine reads it.

        Args:
            batch: the utterances.
            what: what will be asked for.
            embedded: the scores of all states without frames, where they are known.
        """
        with torch.no_grad():
            inputs = self._inputs(batch, what, embedded)
        x, embedding, weight, bias, num_frames, *rest = inputs.tensors
        assert x is not None and num_frames is not None
        labels, num_labels, next_state, final_weight, label_bonus = rest
        return native.Problem(
            x,
            embedding,
            weight,
            bias,
            num_frames,
            labels,
            num_labels,
            next_state,
            final_weight,
            label_bonus,
            *inputs.numbers,
            inputs.choices,
        )

    def _inputs(self, batch: Batch, what: int, embedded: Scorer | None = None) -> _Inputs:
        """The operator's arguments."""
        context = self.context
        visited = self._visited(batch, what)
        scorer, is_history = (
            self._scorer(batch, visited)
            if embedded is None
            else (self._with_frames(embedded, batch), False)
        )
        embedding = weight = bias = None
        if self.weights.kind == "joint":
            (embedding,), (weight, bias) = scorer.state, scorer.shared
            if is_history:
                embedding = embedding.unflatten(0, (len(batch.frames), -1))
        elif self.weights.kind == "unshared":
            weight, bias = scorer.state
        kind, order, start, next_state, final = native.FULL_HISTORY, 0, 0, None, None
        num_states = 0
        if not is_history and isinstance(context, FiniteContext):
            num_states, start = context.num_states, context.start
            final = context.final_weights
            final = None if final is None else final.float()
            if visited is not None:
                kind, num_states = native.NEXT_STATE_TABLE, len(visited.states)
                start, next_state = visited.arcs(context)
            elif isinstance(context, FullNGram):
                kind, order = native.NGRAM, context.context_size
            else:
                kind = native.NEXT_STATE_TABLE
                next_state = context.next_state_table().int()
        tensors = (
            scorer.step[0],
            embedding,
            weight,
            bias,
            batch.num_frames,
            batch.labels,
            batch.num_labels,
            next_state,
            final,
            batch.label_bonus,
        )
        k = 0
        if isinstance(self.alignment, LabelFrameDependent):
            k = self.alignment.max_labels_per_frame or 0
        choices = [
            _SCORERS[self.weights.kind],
            _NORMALIZATIONS[self.normalization],
            kind,
            self._alignment(batch, what),
            k,
            order,
            start,
            int(self.deduplicate),
        ]
        return _Inputs(tensors, (num_states, context.vocab_size), choices)

    def _alignment(self, batch: Batch, what: int) -> int:
        """The kind of alignment; along labels a bound that cannot be felt is none."""
        if isinstance(self.alignment, FrameDependent):
            return native.FRAME if self.alignment.allow_blank else native.FRAME_WITHOUT_BLANK
        assert isinstance(self.alignment, LabelFrameDependent)
        limit = self.alignment.max_labels_per_frame
        is_felt = limit is not None and (
            batch.labels is None
            or bool(what & native.LOG_Z)
            or self.normalization == "global"
            or self.deduplicate
            or limit <= batch.labels.shape[1]
        )
        return native.K_CONSTRAINED if is_felt else native.UNBOUNDED

    def _scorer(self, batch: Batch, visited: _Visited | None) -> tuple[Scorer, bool]:
        """The scores, and whether their states are label positions instead of context states."""
        if not isinstance(self.context, FiniteContext):
            assert batch.labels is not None
            scorer = self.weights.history_scorer(
                batch.frames, batch.num_frames, batch.labels, operators.linear
            )
            return scorer, True
        states = None if visited is None else visited.states
        scorer = self.weights.scorer(batch.frames, batch.num_frames, states, operators.linear)
        if visited is None or not visited.is_by_position:
            return scorer, False
        state = tuple(x[visited.position.flatten()] for x in scorer.state)
        return replace(scorer, state=state), True

    def _with_frames(self, embedded: Scorer, batch: Batch) -> Scorer:
        """The scores of states that are embedded already."""
        assert isinstance(self.context, FiniteContext)
        start = torch.tensor([self.context.start])
        heard = self.weights.scorer(batch.frames, batch.num_frames, start, operators.linear)
        return replace(embedded, step=heard.step)

    def _embeds_too_much(self, batch: Batch, what: int) -> bool:
        """Whether a loss along labels would have to embed far more states than it visits."""
        context = self.context
        assert isinstance(context, FiniteContext)
        is_large = context.num_states > _MAX_EMBEDDED_STATES
        return self.weights.kind == "joint" and is_large and not self._visits_few(batch, what)

    def _visited(self, batch: Batch, what: int) -> _Visited | None:
        """The states that a loss along labels visits, if it should embed no others."""
        if not self._visits_few(batch, what):
            return None
        assert isinstance(self.context, FiniteContext) and batch.labels is not None
        states, position = self.context.walk_states(batch.labels).unique(return_inverse=True)
        is_felt = self._alignment(batch, what) == native.K_CONSTRAINED
        return _Visited(states, position, is_by_position=not is_felt)

    def _visits_few(self, batch: Batch, what: int) -> bool:
        """Whether a loss along labels visits fewer states than there are."""
        if what & native.LOG_Z or batch.labels is None or self.deduplicate:
            return False
        if torch.compiler.is_compiling():  # the number of visited states depends on the labels
            return False
        context = self.context
        if not isinstance(context, FiniteContext) or context.arc_mask is not None:
            return False
        if context.final_weights is not None:
            return False
        num_positions = batch.labels.numel() + len(batch.labels)
        return self.weights.kind == "joint" and context.num_states > num_positions


@dataclass(frozen=True)
class _Visited:
    """The context states along the labels of a batch."""

    states: Tensor
    """[S] ascending."""
    position: Tensor
    """[B, U + 1] which of them each label position is at."""
    is_by_position: bool
    """Whether the engine takes label positions for states, which a bound on labels forbids."""

    def arcs(self, context: FiniteContext) -> tuple[int, Tensor]:
        """The start among the states, and [S, V] the state after each label.

        Where that is not visited it is any: no label leads there, and the arc counts for the
        normalization alone.
        """
        labels = torch.arange(1, context.vocab_size + 1, device=self.states.device)
        after = context.next_state(self.states[:, None], labels)
        found = torch.searchsorted(self.states, after).clamp(max=len(self.states) - 1)
        return int(self.position[0, 0]), found.int()


def has_lone_repeats(context: ContextDependency) -> bool:
    """Whether a label enters a state from which the context has no arc for it.

    With deduplication its repeat is then an arc that leaves (q, y) alone, which the engine does not
    know.
    """
    if not isinstance(context, FiniteContext) or context.arc_mask is None:
        return False
    _, slot = entering_labels(context)
    return bool(((slot > 0) & ~context.arc_mask).any())


@dataclass(frozen=True)
class _Inputs:
    """Arguments of `operators.distances`, without what is asked for."""

    tensors: tuple[Tensor | None, ...]
    numbers: tuple[int, int]
    choices: list[int]
