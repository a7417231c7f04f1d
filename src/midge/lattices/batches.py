"""Checked and flattened arguments of a lattice's methods."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Utterances with the batch dims flattened to one, and padding made harmless."""

    shape: tuple[int, ...]
    """The batch dims."""
    frames: Tensor
    """[B, max_num_frames, input_size], float32 or wider, 0 on padding."""
    num_frames: Tensor
    """[B] int64."""
    labels: Tensor | None = None
    """[B, max_num_labels] int64, 0 on padding; None if none were given."""
    num_labels: Tensor | None = None
    """[B] int64."""
    label_bonus: Tensor | None = None
    """[B, max_num_frames] what to add to the weight of a new label at each frame of A ∩ y."""

    def with_label_bonus(self, label_bonus: Tensor) -> Batch:
        """The same with `label_bonus` [*batch, max_num_frames], checked."""
        wanted = (*self.shape, self.frames.shape[1])
        if not label_bonus.is_floating_point() or tuple(label_bonus.shape) != wanted:
            raise ValueError(
                f"label_bonus should be floating point {list(wanted)}, "
                f"got {label_bonus.dtype} {list(label_bonus.shape)}"
            )
        flat = label_bonus.detach().reshape(self.frames.shape[:2]).to(self.frames.dtype)
        is_real = torch.arange(flat.shape[1], device=flat.device) < self.num_frames[:, None]
        return replace(self, label_bonus=flat.masked_fill(~is_real, 0.0))

    def split(self, size: int) -> list[Batch]:
        """Parts of at most so many utterances, with one batch dim."""
        tensors = (self.frames, self.num_frames, self.labels, self.num_labels, self.label_bonus)
        parts = [[None] * len(self.frames) if x is None else x.split(size) for x in tensors]
        return [Batch((len(part[0]),), *part) for part in zip(*parts, strict=False)]

    def unflatten(self, x: Tensor, dim: int = 0) -> Tensor:
        """Puts the batch dims back in the place of dim."""
        return x.reshape((*x.shape[:dim], *self.shape, *x.shape[dim + 1 :]))


def checked_batch(
    frames: Tensor,
    num_frames: Tensor,
    labels: Tensor | None,
    num_labels: Tensor | None,
    vocab_size: int,
) -> Batch:
    """Checks the arguments that every method of a lattice takes.

    Args:
        frames: [*batch, max_num_frames, input_size] floating point.
        num_frames: [*batch] integers.
        labels: [*batch, max_num_labels] integers, or None.
        num_labels: [*batch] integers, or None.
        vocab_size: the largest label.

    Raises:
        ValueError: if a shape, a type or a value does not fit; names the argument.
    """
    if not isinstance(frames, Tensor) or not frames.is_floating_point() or frames.dim() < 2:
        raise ValueError(
            "frames should be floating point [*batch, max_num_frames, input_size], got "
            + (
                f"{frames.dtype} {list(frames.shape)}"
                if isinstance(frames, Tensor)
                else f"{frames!r}"
            )
        )
    shape = tuple(frames.shape[:-2])
    count = _checked_lengths("num_frames", num_frames, shape, frames.shape[-2], frames.device)
    flat = frames.reshape(math.prod(shape), *frames.shape[-2:])
    flat = flat.to(torch.promote_types(frames.dtype, torch.float32))
    is_real = torch.arange(flat.shape[1], device=flat.device) < count[:, None]
    if torch.compiler.is_compiling() or not bool(is_real.all()):
        flat = flat.masked_fill(~is_real[..., None], 0.0)
    if labels is None and num_labels is None:
        return Batch(shape, flat, count)
    if labels is None or num_labels is None:
        raise ValueError("labels and num_labels should be given together")
    return Batch(
        shape, flat, count, *_checked_labels(labels, num_labels, shape, vocab_size, frames.device)
    )


def _checked_labels(
    labels: Tensor,
    num_labels: Tensor,
    shape: tuple[int, ...],
    vocab_size: int,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """Labels [B, U] with 0 on padding, and their counts [B]."""
    labels = torch.as_tensor(labels, device=device)
    if labels.is_floating_point() or tuple(labels.shape[:-1]) != shape or labels.dim() < 1:
        raise ValueError(
            f"labels should be integers [{', '.join(map(str, shape))}{', ' if shape else ''}"
            f"max_num_labels], got {labels.dtype} {list(labels.shape)}"
        )
    count = _checked_lengths("num_labels", num_labels, shape, labels.shape[-1], device)
    flat = labels.reshape(math.prod(shape), labels.shape[-1]).long()
    is_real = torch.arange(flat.shape[1], device=device) < count[:, None]
    wrong = is_real & ((flat < 1) | (flat > vocab_size))
    if _is_seen(wrong):
        row, column = (int(x) for x in wrong.nonzero()[0])
        raise ValueError(
            f"labels should be 1..{vocab_size} (0 is blank), got {int(flat[row, column])} "
            f"at position {column} of utterance {_place(row, shape)}"
        )
    return flat.masked_fill(~is_real, 0), count


def _checked_lengths(
    name: str, lengths: Tensor, shape: tuple[int, ...], limit: int, device: torch.device
) -> Tensor:
    """Lengths as int64 [B]."""
    lengths = torch.as_tensor(lengths, device=device)
    if lengths.is_floating_point() or lengths.is_complex() or tuple(lengths.shape) != shape:
        raise ValueError(
            f"{name} should be integers {list(shape)}, got {lengths.dtype} {list(lengths.shape)}"
        )
    lengths = lengths.reshape(-1).long()
    wrong = (lengths < 0) | (lengths > limit)
    if _is_seen(wrong):
        row = int(wrong.nonzero()[0])
        raise ValueError(
            f"{name} should be 0..{limit}, got {int(lengths[row])} "
            f"for utterance {_place(row, shape)}"
        )
    return lengths


def _is_seen(wrong: Tensor) -> bool:
    """Whether anything is wrong; a compiled graph cannot depend on it, and does not check."""
    return not torch.compiler.is_compiling() and bool(wrong.any())


def _place(row: int, shape: tuple[int, ...]) -> str:
    """The index of an utterance as the caller would write it."""
    if not shape:
        return "0"
    numbers = [int(x) for x in torch.unravel_index(torch.tensor(row), shape)]
    return str(numbers[0]) if len(numbers) == 1 else str(numbers)
