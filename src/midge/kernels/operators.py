"""The native engine as torch operators, with gradients.

Registered with `torch.library`, so that `torch.compile` and `torch.export` see operators with known
shapes instead of Python code. An optional tensor that is not there is passed as None; a result that
was not asked for is empty.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from midge.kernels.native import ENTROPY, KEEP, LOG_Z, NUMERATOR, POSITIONS, Problem, product


@torch.library.custom_op("midge::distances", mutates_args=())
def distances(
    x: Tensor,
    embedding: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    num_frames: Tensor,
    labels: Tensor | None,
    num_labels: Tensor | None,
    next_state: Tensor | None,
    final_weight: Tensor | None,
    label_bonus: Tensor | None,
    num_states: int,
    vocab_size: int,
    choices: list[int],
    what: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Log-sums over paths: [B] float64 log Z, log numerator, their entropies, and what was kept."""
    problem = Problem(
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
        num_states,
        vocab_size,
        choices,
    )
    values = [
        torch.empty(problem.batch_size if asked else 0, dtype=torch.float64)
        for asked in _asked(what)
    ]
    size = problem.ask("kept_bytes", what) if what & KEEP else 0
    kept = torch.empty(size, dtype=torch.uint8)
    problem.call("forward", what, *(t if t.numel() else None for t in (kept, *values)))
    log_z, log_numerator, entropy_z, entropy_numerator = values
    return log_z, log_numerator, entropy_z, entropy_numerator, kept


def _asked(what: int) -> list[bool]:
    """Which of the four values are asked for."""
    whole, strings, entropy = (bool(what & flag) for flag in (LOG_Z, NUMERATOR, ENTROPY))
    return [whole, strings, whole and entropy, strings and entropy]


@distances.register_fake
def _(x: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    what: int = rest[-1]
    values = [
        x.new_empty(x.shape[0] if asked else 0, dtype=torch.float64) for asked in _asked(what)
    ]
    size: Any = torch.library.get_ctx().new_dynamic_size() if what & KEEP else 0
    return (*values, x.new_empty(size, dtype=torch.uint8))


@torch.library.custom_op("midge::distances_backward", mutates_args=())
def distances_backward(
    grads: list[Tensor],
    kept: Tensor,
    x: Tensor,
    embedding: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    num_frames: Tensor,
    labels: Tensor | None,
    num_labels: Tensor | None,
    next_state: Tensor | None,
    final_weight: Tensor | None,
    label_bonus: Tensor | None,
    num_states: int,
    vocab_size: int,
    choices: list[int],
    what: int,
    needed: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of the inputs x, embedding, weight and bias; empty where not needed."""
    problem = Problem(
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
        num_states,
        vocab_size,
        choices,
    )
    found = [
        torch.zeros_like(t) if t is not None and wanted else None
        for t, wanted in zip(problem.inputs, needed, strict=True)
    ]
    upstream = [grad.double().contiguous() if grad.numel() else None for grad in grads]
    problem.call("backward", what, kept, *upstream, *found)
    d_x, d_embedding, d_weight, d_bias = (x.new_empty(0) if t is None else t for t in found)
    return d_x, d_embedding, d_weight, d_bias


@distances_backward.register_fake
def _(grads: list[Tensor], kept: Tensor, x: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    inputs, needed = (x, *rest[:3]), rest[-1]
    return tuple(
        torch.empty_like(t) if t is not None and wanted else x.new_empty(0)
        for t, wanted in zip(inputs, needed, strict=True)
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    tensors, ctx.rest = inputs[:10], inputs[10:]
    ctx.save_for_backward(output[4], *tensors)
    ctx.set_materialize_grads(False)  # what was kept would get a gradient of zeros of its size


def _gradients(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    kept, *tensors = ctx.saved_tensors
    needed = [bool(wanted) for wanted in ctx.needs_input_grad[:4]]
    nothing = kept.new_empty(0, dtype=torch.float64)
    upstream = [nothing if grad is None else grad for grad in grads[:4]]
    found = distances_backward(upstream, kept, *tensors, *ctx.rest, needed)
    gradients = [t if wanted else None for t, wanted in zip(found, needed, strict=True)]
    return (*gradients, *[None] * 10)


def _refuse(ctx: Any, *grads: Tensor) -> Any:
    raise RuntimeError(
        "a lattice has no second derivative: its gradient is the forward-backward algorithm, which "
        "is not differentiable again. Call backward() without create_graph=True"
    )


distances.register_autograd(_gradients, setup_context=_save)
distances_backward.register_autograd(_refuse)


@torch.library.custom_op("midge::linear", mutates_args=())
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """X [*batch, K] times weight [N, K] transposed, plus bias [N]: `torch.nn.functional.linear`.

    The same bits for any number of threads, which torch's own does not give.
    """
    y = product(x.reshape(-1, x.shape[-1]), weight.T)
    if bias is not None:
        y += bias
    return y.view(*x.shape[:-1], weight.shape[0])


@linear.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


@torch.library.custom_op("midge::linear_backward", mutates_args=())
def linear_backward(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, weight and bias."""
    flat = grad.reshape(-1, grad.shape[-1])
    d_x = product(flat, weight).view(x.shape)
    d_weight = product(flat.T, x.reshape(-1, x.shape[-1]))
    ones = flat.new_ones(1, len(flat))
    return d_x, d_weight, product(ones, flat).view(-1)


@linear_backward.register_fake
def _(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(weight), x.new_empty(weight.shape[0])


def _save_linear(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0], inputs[1])
    ctx.has_bias = inputs[2] is not None


def _linear_gradients(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    d_x, d_weight, d_bias = linear_backward(grad, *ctx.saved_tensors)
    return d_x, d_weight, d_bias if ctx.has_bias else None


linear.register_autograd(_linear_gradients, setup_context=_save_linear)
linear_backward.register_autograd(_refuse)


def marginals(problem: Problem) -> tuple[Tensor, Tensor]:
    """Arc posteriors of A: blank [B, T, S] and lexical [B, T, S, V]."""
    kept = _kept(problem, LOG_Z)
    shape = (problem.batch_size, problem.num_frames, problem.num_states)
    blank, lexical = torch.zeros(shape), torch.zeros(*shape, problem.vocab_size)
    problem.call("marginals", LOG_Z | KEEP, kept, blank, lexical)
    return blank, lexical


def chain_marginals(problem: Problem) -> tuple[Tensor, Tensor, Tensor]:
    """Arc posteriors of A ∩ y by label position: blank, next label, repeat; [B, T, U + 1] each."""
    kept = _kept(problem, NUMERATOR | POSITIONS)
    shape = (problem.batch_size, problem.num_frames, problem.num_labels + 1)
    blank, following, repeat = (torch.zeros(shape) for _ in range(3))
    problem.call("chain_marginals", NUMERATOR | POSITIONS | KEEP, kept, blank, following, repeat)
    return blank, following, repeat


def _kept(problem: Problem, what: int) -> Tensor:
    """What the library keeps of a forward pass."""
    kept = torch.empty(problem.ask("kept_bytes", what | KEEP), dtype=torch.uint8)
    value = torch.empty(problem.batch_size, dtype=torch.float64)
    values = (value, None) if what == LOG_Z else (None, value)
    problem.call("forward", what | KEEP, kept, *values, None, None)
    return kept


def best_path(problem: Problem, what: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """[B] float64 weight, [B] length, and [B, L] labels and frames of the best path."""
    longest = problem.ask("path_length", what)
    weight = torch.empty(problem.batch_size, dtype=torch.float64)
    length = torch.zeros(problem.batch_size, dtype=torch.int64)
    labels, frames = (torch.zeros(problem.batch_size, longest, dtype=torch.int64) for _ in "ab")
    problem.call("best_path", what, weight, length, labels, frames)
    return weight, length, labels, frames
