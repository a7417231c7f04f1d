"""A recognizer: front end, tokens, encoder and lattice, from samples to words.

It is saved as a folder of two files: `model.safetensors` holds every tensor, `model.json` all else
(format version, configuration, tokens, how it was trained), so that nothing is executed by loading.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from midge.alignments import LabelDependent
from midge.audio import FrontEnd, FrontEndConfig
from midge.configuration import from_table, to_table
from midge.encoders import ConformerConfig, LSTMConfig
from midge.lattices import Path as LatticePath
from midge.lattices import RecognitionLattice, greedy_path
from midge.models.best_paths import BestPathRules
from midge.models.parts import AlignmentKind, ModelParts, WeightsKind, named_model
from midge.models.transcripts import Transcript, transcript_of
from midge.tokens import Tokens, TokensConfig
from midge.weights import Normalization

FORMAT_VERSION = 1
"""Of a saved recognizer; a reader refuses one that it does not know."""
MODEL_FILES = ("model.safetensors", "model.json")
"""Tensors, and everything else."""


@dataclass(frozen=True, kw_only=True)
class LatticeConfig:
    """Which model it is: one of the paper's by name, some of its parts changed, and sizes."""

    model: Literal["ce", "ctc", "las", "rnn-t", "hat", "gnat"] = "gnat"
    """A model of the paper, which gives the parts that are not named below."""
    context_size: int | Literal["full"] | None = None
    """Length of the label history; "full" is all of it."""
    alignment: AlignmentKind | None = None
    """The alignment lattice."""
    weights: WeightsKind | None = None
    """The weight function."""
    normalization: Normalization | None = None
    """Local ("softmax", "hat") or "global"."""
    deduplicate: bool | None = None
    """Whether a run of one label spells it once."""
    max_labels_per_frame: int | Literal["unbounded"] | None = None
    """k of the label and frame dependent lattice."""
    hidden_size: int = 640
    """Size of the joint's hidden layer."""
    embedding_size: int = 128
    """Size of the embedding of a label, or state."""
    rnn_size: int = 640
    """Number of LSTM cells over labels."""

    def __post_init__(self) -> None:
        for name in ("hidden_size", "embedding_size", "rnn_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} should be at least 1, got {getattr(self, name)}")
        self.parts()

    def parts(self) -> ModelParts:
        """The choices, without sizes."""
        given = {
            name: getattr(self, name)
            for name in ("alignment", "weights", "normalization", "deduplicate")
        }
        changes = {name: x for name, x in given.items() if x is not None}
        unlimited = {"context_size": "full", "max_labels_per_frame": "unbounded"}
        for name, none in unlimited.items():
            value = getattr(self, name)
            if value is not None:
                changes[name] = None if value == none else value
        return named_model(self.model, **changes)

    def build(self, vocab_size: int, input_size: int) -> RecognitionLattice:
        """The lattice, with fresh parameters."""
        return self.parts().build(
            vocab_size,
            input_size,
            hidden_size=self.hidden_size,
            embedding_size=self.embedding_size,
            rnn_size=self.rnn_size,
        )


@dataclass(frozen=True, kw_only=True)
class RecognizerConfig:
    """Everything that makes a recognizer but its tokens and parameters."""

    front_end: FrontEndConfig = field(default_factory=FrontEndConfig)
    tokens: TokensConfig = field(default_factory=TokensConfig)
    encoder: ConformerConfig | LSTMConfig = field(default_factory=ConformerConfig)
    lattice: LatticeConfig = field(default_factory=LatticeConfig)


class Recognizer(nn.Module):
    """From samples to words.

    Args:
        config: its parts.
        tokens: text as labels.
        training: what is to be told of its training; kept as it is, and saved.
    """

    def __init__(
        self,
        config: RecognizerConfig,
        tokens: Tokens,
        training: Mapping[str, Any] | None = None,
    ) -> None:
        """Draws fresh parameters."""
        super().__init__()
        self.config = config
        self.tokens = tokens
        self.training_summary = dict(training or {})
        self.front_end = FrontEnd(config.front_end)
        self.encoder = config.encoder.build(self.front_end.feature_size)
        self.lattice = config.lattice.build(tokens.vocab_size, self.encoder.output_size)

    def encode(self, features: Tensor, num_features: Tensor) -> Tensor:
        """Encoder frames.

        Args:
            features: [batch, max_num_frames, feature_size], normalized and stacked.
            num_features: [batch] number of real ones.

        Returns:
            [batch, max_num_frames, encoder.output_size], 0 on padding.
        """
        frames: Tensor = self.encoder(features, num_features)
        return frames

    def forward(
        self, features: Tensor, num_features: Tensor, labels: Tensor, num_labels: Tensor
    ) -> Tensor:
        """The sequence loss.

        Args:
            features: [batch, max_num_frames, feature_size].
            num_features: [batch].
            labels: [batch, max_num_labels].
            num_labels: [batch].

        Returns:
            [batch] -log P(labels | features); +inf for labels that no path spells.
        """
        frames = self.encode(features, num_features)
        losses: Tensor = self.lattice(frames, num_features, labels, num_labels)
        return losses

    @torch.no_grad()
    def best_path(self, frames: Tensor, num_frames: Tensor) -> LatticePath:
        """The best path over encoder frames, nothing dropped.

        Exact where the context is finite; with unbounded history or labels per frame greedy, the
        best arc at each step.
        """
        if self.is_exact:
            return self.lattice.shortest_path(frames, num_frames)
        return greedy_path(self.lattice, frames, num_frames)

    @property
    def is_exact(self) -> bool:
        """Whether the best path is the best of all."""
        return self.config.lattice.parts().is_finite

    @property
    def can_run_live(self) -> bool:
        """Whether streams can run on it: encoder and lattice move along frames, in finite memory.

        Its best path then keeps the rules of streams, also offline.
        """
        is_along_labels = isinstance(self.lattice.alignment, LabelDependent)
        return self.encoder.is_streaming and self.is_exact and not is_along_labels

    @torch.no_grad()
    def transcribe(
        self, samples: np.ndarray, sample_rate: int, rules: BestPathRules | None = None
    ) -> Transcript:
        """What is said in a recording, by the best path.

        Of a model that can run live it is what a stream without endpoints ends with.

        Args:
            samples: [num_samples] mono, floats in [-1, 1].
            sample_rate: of the samples, in Hz; any.
            rules: of the best path, where the model can run live; the default ones if not given.
                Other models follow the exact one.
        """
        features = self.front_end.features(samples, sample_rate)
        return self.transcribe_features([features], [len(samples) / sample_rate], rules)[0]

    @torch.no_grad()
    def transcribe_features(
        self,
        features: Sequence[Tensor],
        seconds: Sequence[float],
        rules: BestPathRules | None = None,
    ) -> list[Transcript]:
        """What is said in several recordings, in one batch.

        Args:
            features: of each, [num_frames, feature_size].
            seconds: length of each recording.
            rules: as for `transcribe`.
        """
        batch = nn.utils.rnn.pad_sequence(list(features), batch_first=True)
        num_features = torch.tensor([len(x) for x in features])
        frames = self.encode(batch, num_features)
        if not self.can_run_live:
            return self.transcripts_of(self.best_path(frames, num_features), seconds)
        search = (rules or BestPathRules()).search(self.lattice, self.front_end.frame_seconds)
        return [
            transcript_of(
                found.labels, found.frames, found.weight, end, self.tokens, self.front_end
            )
            for found, end in zip(search.whole(frames, num_features), seconds, strict=True)
        ]

    @torch.no_grad()
    def align(self, samples: np.ndarray, sample_rate: int, text: str) -> Transcript:
        """When each word of a known text is said, by the best alignment.

        Args:
            samples: [num_samples] mono, floats in [-1, 1].
            sample_rate: of the samples, in Hz.
            text: what is said.

        Raises:
            ValueError: if no path spells the text, as when it has more labels than the recording
                has room for.
        """
        features = self.front_end.features(samples, sample_rate)[None]
        num_features = torch.tensor([features.shape[1]])
        labels = torch.tensor([self.tokens.encode(text)], dtype=torch.int64)
        path = self.lattice.shortest_path(
            self.encode(features, num_features),
            num_features,
            labels,
            torch.tensor([labels.shape[1]]),
        )
        if not bool(path.weight.isfinite().all()):
            raise ValueError(
                f"the text has {labels.shape[1]} labels, which no path over "
                f"{features.shape[1]} frames spells: {text!r}"
            )
        return self.transcripts_of(path, [len(samples) / sample_rate])[0]

    def transcripts_of(self, path: LatticePath, seconds: Sequence[float]) -> list[Transcript]:
        """The transcripts of paths [batch] over recordings of these lengths."""
        columns = (path.alignment_labels, path.alignment_frames)
        lengths = path.num_alignment_labels.tolist()
        transcripts = []
        for row, (length, end) in enumerate(zip(lengths, seconds, strict=True)):
            emitted, at = (column[row, :length].tolist() for column in columns)
            kept = emitting_places(emitted, path.deduplicate)
            transcripts.append(
                transcript_of(
                    [emitted[place] for place in kept],
                    [at[place] for place in kept],
                    float(path.weight[row]),
                    end,
                    self.tokens,
                    self.front_end,
                )
            )
        return transcripts

    def save(self, folder: Path, *, is_half: bool = False) -> None:
        """Writes the folder; see `load`.

        Args:
            folder: where to; files of an older model there are replaced.
            is_half: whether parameters are rounded to float16, for half the size. They are float32
                again when loaded.
        """
        folder.mkdir(parents=True, exist_ok=True)
        tensors, rest = (folder / name for name in MODEL_FILES)
        described = {
            "format_version": FORMAT_VERSION,
            "config": to_table(self.config),
            "tokens": self.tokens.to_json(),
            "training": self.training_summary,
        }
        # Clones: safetensors refuses tensors that share memory.
        state = {name: x.detach().contiguous().clone() for name, x in self.state_dict().items()}
        if is_half:
            state.update({name: state[name].half() for name, _ in self.named_parameters()})
        safetensors.torch.save_file(state, tensors)
        rest.write_text(json.dumps(described, indent=2, ensure_ascii=False) + "\n", "utf-8")


def emitting_places(alignment_labels: Sequence[int], deduplicate: bool) -> list[int]:
    """Where along a path a new label is emitted.

    Example:
        >>> emitting_places([0, 1, 1, 0, 1], deduplicate=True)
        [1, 4]
    """
    before = [0, *alignment_labels]
    return [
        place
        for place, label in enumerate(alignment_labels)
        if label != 0 and not (deduplicate and label == before[place])
    ]


def load(path: str | Path) -> Recognizer:
    """Reads a recognizer that was saved.

    Args:
        path: the folder, or that of the training run whose `model` it is.

    Returns:
        The recognizer, ready to transcribe (`eval`).

    Raises:
        ValueError: if there is none, or it is of another format.
    """
    folder = Path(path)
    if (folder / "model").is_dir():
        folder = folder / "model"
    for name in MODEL_FILES:
        if not (folder / name).is_file():
            raise ValueError(f"{folder} is no model of midge: it has no {name}")
    tensors, rest = (folder / name for name in MODEL_FILES)
    try:
        described = json.loads(rest.read_text("utf-8"))
        version = described["format_version"]
        if version != FORMAT_VERSION:
            raise ValueError(
                f"{rest} has format version {version}; this midge reads {FORMAT_VERSION}"
            )
        config = from_table(RecognizerConfig, described["config"], "config")
        tokens = Tokens.from_json(described["tokens"])
        recognizer = Recognizer(config, tokens, described.get("training"))
        recognizer.load_state_dict(safetensors.torch.load_file(tensors))
    except (json.JSONDecodeError, KeyError, RuntimeError, safetensors.SafetensorError) as error:
        raise ValueError(f"{folder} is not a whole model of midge: {error}") from error
    return recognizer.eval()
