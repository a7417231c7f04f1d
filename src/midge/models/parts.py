"""The named models of the paper as choices of the three parts (its appendix B).

| model | context | alignment lattice | weight function | normalization | deduplicates |
|---|---|---|---|---|---|
| CE | 0-gram | frame dependent, no blank | unshared | softmax | no |
| CTC | 0-gram | frame dependent | unshared | softmax | yes |
| LAS | full history | label dependent | attention | softmax | no |
| RNN-T | full history | label and frame dependent | shared RNN | softmax | no |
| HAT | full history | label and frame dependent | shared RNN | hat | no |
| GNAT | 2-gram | frame dependent | shared RNN | global | no |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from midge.alignments import (
    AlignmentLattice,
    FrameDependent,
    LabelDependent,
    LabelFrameDependent,
)
from midge.contexts import ContextDependency, FiniteContext, FullHistory, FullNGram
from midge.lattices import RecognitionLattice
from midge.weights import (
    AttentionWeights,
    Normalization,
    SharedEmbeddingWeights,
    SharedRNNWeights,
    UnsharedWeights,
    WeightFn,
)

AlignmentKind = Literal["frame", "frame-without-blank", "label-frame", "label"]
WeightsKind = Literal["unshared", "shared-embedding", "shared-rnn", "attention"]


@dataclass(frozen=True, kw_only=True)
class ModelParts:
    """The choices that make a model; sizes are given when it is built."""

    context_size: int | None
    """Length of the label history; None is all of it."""
    alignment: AlignmentKind
    """The alignment lattice."""
    weights: WeightsKind
    """The weight function."""
    normalization: Normalization
    """Local ("softmax", "hat") or "global"."""
    deduplicate: bool = False
    """Whether a run of one label spells it once."""
    max_labels_per_frame: int | None = None
    """k of the label and frame dependent lattice; None is unbounded."""

    @property
    def is_finite(self) -> bool:
        """Whether the lattice over some frames is finite, so that exact searches end."""
        is_unbounded = self.alignment == "label-frame" and self.max_labels_per_frame is None
        return self.context_size is not None and not is_unbounded

    def build(
        self,
        vocab_size: int,
        input_size: int,
        *,
        hidden_size: int = 640,
        embedding_size: int = 128,
        rnn_size: int = 640,
        max_num_labels: int | Callable[[int], int] | None = None,
    ) -> RecognitionLattice:
        """The lattice, with fresh parameters.

        Args:
            vocab_size: number of lexical labels.
            input_size: size of a frame.
            hidden_size: size of the joint's hidden layer, for shared weights and attention.
            embedding_size: size of a label's (or state's) embedding.
            rnn_size: number of LSTM cells.
            max_num_labels: l(T) of a label-dependent lattice; by default the number of frames.

        Returns:
            The lattice; it takes frames of `input_size`.
        """
        context: ContextDependency = FullHistory(vocab_size)
        if self.context_size is not None:
            context = FullNGram(vocab_size, self.context_size)
        sizes = (hidden_size, embedding_size, rnn_size)
        return RecognitionLattice(
            context,
            self._alignment(max_num_labels),
            _weights(self.weights, context, input_size, *sizes),
            normalization=self.normalization,
            deduplicate=self.deduplicate,
        )

    def _alignment(self, max_num_labels: int | Callable[[int], int] | None) -> AlignmentLattice:
        if self.alignment == "label":
            return LabelDependent(_all_frames if max_num_labels is None else max_num_labels)
        if self.alignment == "label-frame":
            return LabelFrameDependent(self.max_labels_per_frame)
        return FrameDependent(allow_blank=self.alignment == "frame")


NAMED_MODELS: dict[str, ModelParts] = {
    "ce": ModelParts(
        context_size=0,
        alignment="frame-without-blank",
        weights="unshared",
        normalization="softmax",
    ),
    "ctc": ModelParts(
        context_size=0,
        alignment="frame",
        weights="unshared",
        normalization="softmax",
        deduplicate=True,
    ),
    "las": ModelParts(
        context_size=None, alignment="label", weights="attention", normalization="softmax"
    ),
    "rnn-t": ModelParts(
        context_size=None, alignment="label-frame", weights="shared-rnn", normalization="softmax"
    ),
    "hat": ModelParts(
        context_size=None, alignment="label-frame", weights="shared-rnn", normalization="hat"
    ),
    "gnat": ModelParts(
        context_size=2, alignment="frame", weights="shared-rnn", normalization="global"
    ),
}
"""The paper's models by name. Change a choice with `dataclasses.replace`."""


def named_model(name: str, **changes: object) -> ModelParts:
    """The parts of a model of the paper, with some of them changed.

    The globally normalized counterpart of a local model is `normalization="global"`, for those
    with full history together with a finite `context_size`, and for RNN-T and HAT with a finite
    `max_labels_per_frame`.

    Args:
        name: "ce", "ctc", "las", "rnn-t", "hat" or "gnat".
        **changes: fields of `ModelParts`.

    Raises:
        ValueError: for an unknown name or field.

    Example:
        >>> named_model("rnn-t").build(vocab_size=28, input_size=8, hidden_size=16).normalization
        'softmax'
        >>> fair = named_model(
        ...     "rnn-t", normalization="global", context_size=1, max_labels_per_frame=1
        ... )
        >>> fair.build(vocab_size=28, input_size=8, hidden_size=16).context.num_states
        29
    """
    if name not in NAMED_MODELS:
        raise ValueError(f"name should be one of {list(NAMED_MODELS)}, got {name!r}")
    known = list(ModelParts.__dataclass_fields__)
    if unknown := sorted(changes.keys() - set(known)):
        raise ValueError(f"unknown part(s) {unknown}; known: {known}")
    return replace(NAMED_MODELS[name], **changes)  # type: ignore[arg-type]


def _weights(
    kind: WeightsKind,
    context: ContextDependency,
    input_size: int,
    hidden_size: int,
    embedding_size: int,
    rnn_size: int,
) -> WeightFn:
    if kind == "shared-rnn":
        return SharedRNNWeights(context, input_size, hidden_size, embedding_size, rnn_size)
    if kind == "attention":
        return AttentionWeights(context, input_size, hidden_size, embedding_size, rnn_size)
    if not isinstance(context, FiniteContext):
        raise ValueError(
            f"weights={kind!r} has parameters for each state; give context_size a number"
        )
    if kind == "unshared":
        return UnsharedWeights(context, input_size)
    if kind == "shared-embedding":
        return SharedEmbeddingWeights(context, input_size, hidden_size, embedding_size)
    raise ValueError(
        "weights should be 'unshared', 'shared-embedding', 'shared-rnn' or 'attention', "
        f"got {kind!r}"
    )


def _all_frames(num_frames: int) -> int:
    """l(T) = T."""
    return num_frames
