"""The recognition lattice: what a researcher builds, trains and reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from midge.alignments import AlignmentLattice, LabelDependent, LabelFrameDependent
from midge.contexts import ContextDependency, FiniteContext, FullHistory
from midge.kernels import native
from midge.lattices.batches import Batch, checked_batch
from midge.lattices.fast import FastLattice, has_lone_repeats
from midge.lattices.marginals import (
    ArcMarginals,
    scatter_positions,
    string_marginals,
    whole_marginals,
)
from midge.lattices.numerator import StringBatch, StringLattice, distinct_states
from midge.lattices.paths import Path, best_path, merge_paths, path_of_symbols, sample_paths
from midge.lattices.pieces import part_sizes, split_scorer
from midge.lattices.pushing import PushedArcs, pushed_arcs
from midge.lattices.recursion import Recursion
from midge.lattices.whole import WholeLattice
from midge.semirings import Log, LogEntropy, Semiring
from midge.weights import (
    AttentionWeights,
    Normalization,
    Scorer,
    WeightFn,
)
from midge.weights.normalization import NORMALIZATIONS

_Result = TypeVar("_Result")


class RecognitionLattice(nn.Module):
    """A model of label sequences given frames, made of three parts (paper, section 3.3).

    The lattice A has the topology of L_T ∩ C and the weights of omega. A path's weight is the sum
    of its arcs' log weights; P(y | x) is the sum over the paths that spell y, over the sum over all
    paths. The denominator Z is 1 when the weights are locally normalized, and is computed exactly
    when they are not. The lattice is never built in full.

    All methods take `frames` [*batch, max_num_frames, input_size] and `num_frames` [*batch], and
    may take `labels` [*batch, max_num_labels] and `num_labels` [*batch]: then they speak of A ∩ y,
    the alignments of those labels, instead of A. What lies beyond the numbers is padding and never
    matters.

    Args:
        context: which label history a weight may depend on.
        alignment: when labels may come.
        weights: the weight function.
        normalization: "global"; or "softmax" or "hat", which normalize the arcs that leave a
            state.
        deduplicate: whether a run of one label spells it once, as in CTC.

    Raises:
        ValueError: for parts that do not go together.

    Example:
        >>> import midge
        >>> context = midge.FullNGram(vocab_size=2, context_size=1)
        >>> weights = midge.TableWeights(context)
        >>> lattice = RecognitionLattice(context, midge.FrameDependent(), weights)
        >>> frames = torch.zeros(4, 9)  # all 3^4 paths weigh the same
        >>> labels, num_labels = torch.tensor([1, 2]), torch.tensor(2)
        >>> loss = lattice(frames, torch.tensor(4), labels, num_labels)
        >>> round(float((-loss).exp()) * 81)  # alignments of (1, 2)
        6
    """

    def __init__(
        self,
        context: ContextDependency,
        alignment: AlignmentLattice,
        weights: WeightFn,
        normalization: Normalization = "global",
        deduplicate: bool = False,
    ) -> None:
        """Checks that the parts go together."""
        super().__init__()
        _check_parts(context, alignment, weights, normalization, deduplicate)
        self.context = context
        self.alignment = alignment
        self.weights = weights
        self.normalization = normalization
        self.deduplicate = deduplicate
        self._has_lone_repeats = deduplicate and has_lone_repeats(context)
        self._strings = StringLattice(context, alignment, normalization, deduplicate)
        self.needs_denominator = _needs_denominator(context, alignment, normalization)
        """Whether log Z may differ from 0 for any frames; see `needs_denominator_of`."""
        self._whole = None
        if isinstance(context, FiniteContext) and not _is_unbounded(alignment):
            self._whole = WholeLattice(context, alignment, normalization, deduplicate)

    def forward(
        self,
        frames: Tensor,
        num_frames: Tensor,
        labels: Tensor,
        num_labels: Tensor,
        label_bonus: Tensor | None = None,
    ) -> Tensor:
        """The sequence loss.

        Args:
            frames: [*batch, max_num_frames, input_size].
            num_frames: [*batch] integers.
            labels: [*batch, max_num_labels] integers in 1..vocab_size.
            num_labels: [*batch] integers.
            label_bonus: [*batch, max_num_frames] constants: alignments count exp(the sum of the
                bonuses of the frames that emit their labels) times in the numerator, so that a
                falling bonus makes late labels costly. A repeat, with deduplication, has none.

        Returns:
            [*batch] -log P(labels | frames), in nats; +inf, with zero gradient, for labels that
            no path spells.
        """
        batch = checked_batch(frames, num_frames, labels, num_labels, self.context.vocab_size)
        if batch.labels is None:
            raise ValueError("labels and num_labels should be given")
        if label_bonus is not None:
            if isinstance(self.alignment, LabelDependent):
                raise ValueError("label_bonus is for lattices that move along frames")
            batch = batch.with_label_bonus(label_bonus)
        whole = self.needs_denominator_of(batch.frames, batch.num_frames)
        what = native.NUMERATOR | (native.LOG_Z if whole else 0)
        if self._is_fast(batch, what):
            with _exact(batch):
                denominator, numerator, _, _ = self._fast.distances(batch, what)
            losses = _loss(denominator if whole else None, numerator)
        else:
            losses = torch.cat(
                self._map_parts(
                    batch,
                    lambda part: _loss(
                        part.whole().distance(Log) if whole else None,
                        part.strings().distance(Log),
                    ),
                    whole=whole,
                )
            )
        return batch.unflatten(losses.to(batch.frames.dtype))

    def needs_denominator_of(self, frames: Tensor, num_frames: Tensor) -> bool:
        """Whether log Z of an utterance may differ from 0, so that its loss has to compute it.

        Locally normalized arcs sum to 1 unless all that leave a state are -inf, which is a dead
        end. Only a table can hold such weights.

        Args:
            frames: [*batch, max_num_frames, input_size].
            num_frames: [*batch] integers.
        """
        if self.needs_denominator or self._whole is None or self.weights.kind != "table":
            return self.needs_denominator
        is_real = torch.arange(frames.shape[-2], device=frames.device) < num_frames[..., None]
        return bool((frames.isneginf() & is_real[..., None]).any())

    def shortest_distance(
        self,
        frames: Tensor,
        num_frames: Tensor,
        semiring: Semiring = Log,
        labels: Tensor | None = None,
        num_labels: Tensor | None = None,
    ) -> Tensor:
        """The sum over all paths.

        Args:
            frames: [*batch, max_num_frames, input_size].
            num_frames: [*batch] integers.
            semiring: what a sum is; under `Log` this is log Z(x), under `MaxTropical` the best
                path's weight.
            labels: [*batch, max_num_labels], to sum over their alignments alone.
            num_labels: [*batch].

        Returns:
            [*batch]; for a composite semiring [num_components, *batch]. Differentiable.
        """
        if not isinstance(semiring, Semiring):
            raise ValueError(
                f"semiring should be a Semiring such as midge.Log, got {type(semiring).__name__}; "
                "give labels and num_labels by name"
            )
        batch = self._checked(frames, num_frames, labels, num_labels)
        if semiring in (Log, LogEntropy) and self._is_fast(batch):
            total = self._fast_distance(batch, semiring)
        else:
            parts = self._map_parts(batch, lambda part: part.chosen().distance(semiring))
            total = torch.cat(parts, dim=-1)
        return batch.unflatten(total.to(batch.frames.dtype), dim=total.dim() - 1)

    def _fast_distance(self, batch: Batch, semiring: Semiring) -> Tensor:
        """The sum over all paths under Log or LogEntropy, by the native engine."""
        what = native.LOG_Z if batch.labels is None else native.NUMERATOR
        with _exact(batch):
            if semiring is Log:
                return torch.cat(self._fast.distances(batch, what)[:2])
            values = self._fast.distances(batch, what | native.ENTROPY)
            return torch.stack([torch.cat(values[:2]), torch.cat(values[2:])])

    def entropy(
        self,
        frames: Tensor,
        num_frames: Tensor,
        labels: Tensor | None = None,
        num_labels: Tensor | None = None,
    ) -> Tensor:
        """The entropy of the distribution over alignment paths.

        Args:
            frames: [*batch, max_num_frames, input_size].
            num_frames: [*batch] integers.
            labels: [*batch, max_num_labels], for the paths that spell them alone.
            num_labels: [*batch].

        Returns:
            [*batch] nats; 0 where there is no path. Differentiable.
        """
        return self.shortest_distance(frames, num_frames, LogEntropy, labels, num_labels)[1]

    def shortest_path(
        self,
        frames: Tensor,
        num_frames: Tensor,
        labels: Tensor | None = None,
        num_labels: Tensor | None = None,
    ) -> Path:
        """The best path; with labels, their best alignment (forced alignment).

        Ties are won by blank, then by the smallest label, then by the smallest source state.

        Args:
            frames: [*batch, max_num_frames, input_size].
            num_frames: [*batch] integers.
            labels: [*batch, max_num_labels], to align.
            num_labels: [*batch].
        """
        batch = self._checked(frames, num_frames, labels, num_labels)

        def path(part: _Part) -> Path:
            symbols, weight = best_path(part.chosen(), self.context.vocab_size)
            return self._path(symbols, weight, batch)

        with torch.no_grad():
            if self._is_fast(batch):
                with _exact(batch):
                    paths = self._fast.best_paths(batch)
            else:
                paths = self._map_parts(batch, path)
            return merge_paths(paths, batch.unflatten)

    def sample(
        self,
        frames: Tensor,
        num_frames: Tensor,
        num_samples: int,
        generator: torch.Generator | None = None,
        labels: Tensor | None = None,
        num_labels: Tensor | None = None,
    ) -> Path:
        """Paths drawn independently, each with its posterior probability.

        Args:
            frames: [*batch, max_num_frames, input_size].
            num_frames: [*batch] integers.
            num_samples: how many per utterance.
            generator: a source of random numbers.
            labels: [*batch, max_num_labels], for the paths that spell them alone.
            num_labels: [*batch].

        Returns:
            A path with batch dims [num_samples, *batch].
        """
        if num_samples < 0:
            raise ValueError(f"num_samples should be at least 0, got {num_samples}")
        batch = self._checked(frames, num_frames, labels, num_labels)

        def path(part: _Part) -> Path:
            symbols, weight = sample_paths(part.chosen(), num_samples, generator)
            return self._path(symbols, weight, batch)

        with torch.no_grad():
            return merge_paths(self._map_parts(batch, path), batch.unflatten, dim=1)

    def arc_marginals(
        self,
        frames: Tensor,
        num_frames: Tensor,
        labels: Tensor | None = None,
        num_labels: Tensor | None = None,
    ) -> ArcMarginals:
        """The posterior probability of every arc: the derivative of log Z by its weight.

        Args:
            frames: [*batch, max_num_frames, input_size].
            num_frames: [*batch] integers.
            labels: [*batch, max_num_labels], for the paths that spell them alone.
            num_labels: [*batch].

        Returns:
            Blank [*batch, T, Q] and lexical [*batch, T, Q, V] probabilities, 0 on padding, summed
            over the labels emitted so far in a frame, and over new and repeated labels. T is
            max_num_frames, or the largest l(T) on a label-dependent lattice; with `FullHistory` Q
            stands for the label positions.
        """
        batch = self._checked(frames, num_frames, labels, num_labels)
        num_steps = self._max_num_steps(batch)

        def marginals(part: _Part) -> tuple[Tensor, Tensor]:
            recursion = part.chosen()
            if part.string_batch is None:
                assert self._whole is not None
                return whole_marginals(recursion, self._whole, num_steps)
            return string_marginals(
                recursion, self._strings, part.string_batch, part.num_frames, num_steps
            )

        with torch.no_grad():
            if self._is_fast(batch):
                with _exact(batch):
                    parts = [self._fast_marginals(batch)]
            else:
                parts = self._map_parts(batch, marginals)
            # Along labels the readable engine sums in float64.
            dtype = batch.frames.dtype
            blank = torch.cat([blank for blank, _ in parts]).to(dtype)
            lexical = torch.cat([lexical for _, lexical in parts]).to(dtype)
        return ArcMarginals(batch.unflatten(blank), batch.unflatten(lexical))

    def _fast_marginals(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """[B, T, Q] blank and [B, T, Q, V] label posteriors, by the native engine."""
        if batch.labels is None or batch.num_labels is None:
            return self._fast.whole_marginals(batch)
        blank, following, repeat = self._fast.string_marginals(batch)
        states = torch.arange(batch.labels.shape[1] + 1).expand(len(batch.labels), -1)
        if isinstance(self.context, FiniteContext):
            states = self.context.walk_states(batch.labels)
        return scatter_positions(
            blank,
            following,
            repeat if self.deduplicate else None,
            states,
            batch.labels,
            self.context,
        )

    def push(self, frames: Tensor, num_frames: Tensor) -> PushedArcs:
        """Weight pushing: the same path posteriors by locally normalized weights.

        Args:
            frames: [*batch, max_num_frames, input_size].
            num_frames: [*batch] integers.
        """
        batch = self._checked(frames, num_frames, None, None)
        num_steps = self._max_num_steps(batch)
        with torch.no_grad():
            parts = self._map_parts(
                batch, lambda part: pushed_arcs(part.whole(), self.context.vocab_size, num_steps)
            )
            blank, lexical, log_z = (torch.cat(fields) for fields in zip(*parts, strict=True))
        if not isinstance(self.alignment, LabelFrameDependent):
            blank, lexical = blank[:, :, 0], lexical[:, :, 0]
        return PushedArcs(
            batch.unflatten(blank),
            batch.unflatten(lexical),
            batch.unflatten(log_z.to(batch.frames.dtype)),
        )

    def recursion_of(
        self, frames: Tensor, num_frames: int, labels: Tensor | None = None
    ) -> tuple[Recursion, bool]:
        """The recursion behind one utterance, for exports and pictures.

        Args:
            frames: [max_num_frames, input_size].
            num_frames: how many are real.
            labels: [num_labels], for A ∩ y.

        Returns:
            The recursion, and whether its steps are diagonals (frame + label position), as they
            are where the labels of a frame are not bounded.
        """
        num_labels = None if labels is None else torch.tensor(len(labels))
        batch = self._checked(frames, torch.tensor(num_frames), labels, num_labels)

        def chosen(part: _Part) -> tuple[Recursion, bool]:
            strings = part.string_batch
            return part.chosen(), strings is not None and self._strings.is_skewed(strings)

        (found,) = self._map_parts(batch, chosen)
        return found

    def extra_repr(self) -> str:
        """The parts that are not modules."""
        return (
            f"context={self.context}, alignment={self.alignment}, "
            f"normalization={self.normalization!r}, deduplicate={self.deduplicate}"
        )

    def _checked(
        self, frames: Tensor, num_frames: Tensor, labels: Tensor | None, num_labels: Tensor | None
    ) -> Batch:
        """The arguments, refused where the whole lattice is meant and has no end."""
        if labels is None and self._whole is None:
            what = (
                "FullHistory has infinitely many states"
                if isinstance(self.context, FullHistory)
                else "without a bound on the labels of a frame there are infinitely many paths"
            )
            raise ValueError(
                f"{what}, so there is no sum or best path over all of them. Decode it by beam "
                "search (midge.beam_search); or give labels and num_labels, or a finite context "
                "(FullNGram) with a finite max_labels_per_frame"
            )
        return checked_batch(frames, num_frames, labels, num_labels, self.context.vocab_size)

    @property
    def _fast(self) -> FastLattice:
        """The lattice as the native engine sees it; made anew, since `weights` may be replaced."""
        return FastLattice(
            self.context,
            self.alignment,
            self.weights,
            self.normalization,
            self.deduplicate,
            self._has_lone_repeats,
        )

    def _is_fast(self, batch: Batch, what: int | None = None) -> bool:
        """Whether the native engine takes the batch; by default for A, or A ∩ y with labels."""
        self._check_frames(batch)
        if what is None:
            what = native.LOG_Z if batch.labels is None else native.NUMERATOR
        return self._fast.serves(batch, what)

    def _max_num_steps(self, batch: Batch) -> int:
        """The size of a result's time dim."""
        if not isinstance(self.alignment, LabelDependent):
            return batch.frames.shape[1]
        limits = self.alignment.num_steps(batch.num_frames)
        return int(limits.max()) if limits.numel() else 0

    def _path(self, symbols: list[Tensor], weight: Tensor, batch: Batch) -> Path:
        weight = weight.to(batch.frames.dtype)
        return path_of_symbols(symbols, weight, self.alignment, self.deduplicate)

    def _map_parts(
        self,
        batch: Batch,
        function: Callable[[_Part], _Result],
        whole: bool | None = None,
    ) -> list[_Result]:
        """Applies a function to parts of the batch whose pieces fit into memory.

        Args:
            batch: the utterances.
            function: what to do with each part.
            whole: whether it needs the whole lattice; by default where there are no labels.
        """
        with _exact(batch):
            return [
                function(part)
                for part in self._parts(batch, batch.labels is None if whole is None else whole)
            ]

    def _parts(self, batch: Batch, whole: bool) -> Iterator[_Part]:
        self._check_frames(batch)
        all_states = self.weights.scorer(batch.frames, batch.num_frames, None) if whole else None
        by_string, strings = self._string_scorer(batch, all_states)
        elements = 0
        if all_states is not None and isinstance(self.context, FiniteContext):
            elements = self.context.num_states * all_states.num_elements
        if strings is not None and by_string is not None:
            per_state = sum(x[:1].numel() for x in by_string.state)
            elements = max(elements, strings.rows.shape[1] * max(by_string.num_elements, per_state))
        sizes = part_sizes(len(batch.frames), elements)
        whole_parts = split_scorer(all_states, sizes) if all_states else [None] * len(sizes)
        if by_string is all_states:
            string_parts = whole_parts
        else:
            string_parts = split_scorer(by_string, sizes) if by_string else [None] * len(sizes)
        first = 0
        for size, whole_part, string_part in zip(sizes, whole_parts, string_parts, strict=True):
            last = first + size
            yield _Part(
                lattice=self,
                num_frames=batch.num_frames[first:last],
                whole_scorer=whole_part,
                string_scorer=string_part,
                string_batch=None if strings is None else strings.part(first, last),
            )
            first = last

    def _string_scorer(
        self, batch: Batch, all_states: Scorer | None
    ) -> tuple[Scorer | None, StringBatch | None]:
        """The scores of the states that the labels visit, and which position needs which."""
        labels, num_labels = batch.labels, batch.num_labels
        if labels is None or num_labels is None:
            return None, None
        if not isinstance(self.context, FiniteContext):
            size = (len(labels), labels.shape[1] + 1)
            rows = torch.arange(size[0] * size[1], device=labels.device).view(size)
            position = torch.arange(size[1], device=labels.device).expand(size)
            scorer = self.weights.history_scorer(batch.frames, batch.num_frames, labels)
            strings = StringBatch(labels, num_labels, position, rows, position, batch.label_bonus)
            return scorer, strings
        states = self.context.walk_states(labels)
        rows, row_of_position = distinct_states(states.clamp(min=0))
        if all_states is not None:
            return all_states, StringBatch(
                labels, num_labels, states, rows, row_of_position, batch.label_bonus
            )
        visited = rows.unique()
        scorer = self.weights.scorer(batch.frames, batch.num_frames, visited)
        rows = torch.searchsorted(visited, rows)
        return scorer, StringBatch(
            labels, num_labels, states, rows, row_of_position, batch.label_bonus
        )

    def _check_frames(self, batch: Batch) -> None:
        """Checks what only shows with an input."""
        if batch.frames.shape[-1] != self.weights.input_size:
            raise ValueError(
                f"frames should be [*batch, max_num_frames, {self.weights.input_size}], "
                f"got [..., {', '.join(map(str, batch.frames.shape[1:]))}]"
            )
        for parameter in self.weights.parameters():
            if parameter.dtype != batch.frames.dtype:
                raise ValueError(
                    f"frames are {batch.frames.dtype} and the parameters {parameter.dtype}; "
                    f"convert one of them, for instance by lattice.to({batch.frames.dtype})"
                )
            break
        if isinstance(self.alignment, LabelDependent) and not self.weights.reads_all_frames:
            limits = self.alignment.num_steps(batch.num_frames)
            if bool((limits > batch.num_frames).any()):
                raise ValueError(
                    f"{type(self.weights).__name__} reads frame u at label position u, so on a "
                    "label-dependent lattice max_num_labels should be at most num_frames; got "
                    f"{int(limits.max())} for {int(batch.num_frames.min())} frames"
                )


@dataclass(frozen=True)
class _Part:
    """Some utterances of a batch."""

    lattice: RecognitionLattice
    num_frames: Tensor
    whole_scorer: Scorer | None
    string_scorer: Scorer | None
    string_batch: StringBatch | None

    def whole(self) -> Recursion:
        """A."""
        assert self.lattice._whole is not None and self.whole_scorer is not None
        return self.lattice._whole.recursion(self.whole_scorer, self.num_frames)

    def strings(self) -> Recursion:
        """A ∩ y."""
        assert self.string_scorer is not None and self.string_batch is not None
        return self.lattice._strings.recursion(
            self.string_scorer, self.num_frames, self.string_batch
        )

    def chosen(self) -> Recursion:
        """A ∩ y if there are labels, else A."""
        return self.whole() if self.string_batch is None else self.strings()


def _exact(batch: Batch) -> torch.autocast:
    """Lattice arithmetic is float32 or wider, also under autocast."""
    return torch.autocast(batch.frames.device.type, enabled=False)


def _loss(denominator: Tensor | None, numerator: Tensor) -> Tensor:
    """[B] float64; +inf without a gradient where the numerator has no path."""
    loss = -numerator if denominator is None else denominator - numerator
    return torch.where(numerator > -torch.inf, loss, torch.inf)


def _is_unbounded(alignment: AlignmentLattice) -> bool:
    return isinstance(alignment, LabelFrameDependent) and alignment.max_labels_per_frame is None


def _needs_denominator(
    context: ContextDependency, alignment: AlignmentLattice, normalization: Normalization
) -> bool:
    """Whether log Z may differ from 0.

    Besides global normalization, weights of the context's own arcs and ends make it so; and states
    that no label leaves, where there is no blank to leave by.
    """
    if normalization == "global":
        return True
    if not isinstance(context, FiniteContext):
        return False
    mask = context.arc_mask
    may_end_early = mask is not None and not alignment.has_blank and not bool(mask.any(-1).all())
    return _is_weighted(context) or may_end_early


def _is_weighted(context: FiniteContext) -> bool:
    """Whether the context's arcs or ends have weights of their own."""
    return context.final_weights is not None or context.label_weights is not None


def _check_parts(
    context: ContextDependency,
    alignment: AlignmentLattice,
    weights: WeightFn,
    normalization: Normalization,
    deduplicate: bool,
) -> None:
    """Refuses parts that do not go together."""
    if normalization not in NORMALIZATIONS:
        raise ValueError(
            f"normalization should be one of {list(NORMALIZATIONS)}, got {normalization!r}"
        )
    is_known = weights.context == context or (
        isinstance(context, FiniteContext) and context.is_same_automaton(weights.context)
    )
    if not is_known:
        raise ValueError(
            f"weights should be made for the lattice's context {context}, got {weights.context}"
        )
    unbounded = _is_unbounded(alignment)
    has_full_history = isinstance(context, FullHistory)
    reasons = {
        "global normalization with FullHistory: the denominator sums over infinitely many states; "
        "use FullNGram, or normalization='softmax' or 'hat'": normalization == "global"
        and has_full_history,
        "global normalization with unbounded labels per frame: the denominator may be infinite; "
        "give max_labels_per_frame a number": normalization == "global" and unbounded,
        "normalization='hat' without blank: HAT is a model of when to emit blank; use 'softmax'": (
            normalization == "hat" and not alignment.has_blank
        ),
        "weights of the context's own arcs or ends with unbounded labels per frame: their sum may "
        "be infinite; give max_labels_per_frame a number": unbounded
        and isinstance(context, FiniteContext)
        and _is_weighted(context),
        "deduplicate=True with unbounded labels per frame: a label could repeat without end; "
        "give max_labels_per_frame a number": deduplicate and unbounded,
        "deduplicate=True with LabelDependent: there are no frames over which a label could "
        "last": deduplicate and isinstance(alignment, LabelDependent),
        "AttentionWeights with a lattice that moves along frames; use LabelDependent": (
            isinstance(weights, AttentionWeights) and not isinstance(alignment, LabelDependent)
        ),
    }
    for reason, holds in reasons.items():
        if holds:
            raise ValueError(f"cannot combine {reason}")
