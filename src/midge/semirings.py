"""Semirings: the two operations a shortest distance is made of.

The lowest layer; knows nothing of automata. A semiring value is a tensor whose *trailing* dims are
the caller's; composite semirings put their components on one extra *leading* dim. All code above
therefore indexes dims from the end, and works for every semiring alike.

Numerical contract: `zero` ("no path", -inf in log weights) is legal everywhere and never yields a
NaN, neither in a value nor in a gradient. +inf and NaN do, so that the bug is seen.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import final

import torch
from torch import Tensor


class Semiring(ABC):
    """A semiring (K, plus, times, zero, one) over tensors.

    `plus` is associative and commutative with identity `zero`; `times` is associative with identity
    `one`, distributes over `plus`, and `zero` annihilates it. `from_log` maps log weights (larger
    is better) into the semiring.
    """

    zero: float
    """The identity of plus; for a composite semiring, of its log weight."""
    one: float
    """The identity of times; for a composite semiring, of its log weight."""
    num_components: int = 0
    """Size of the extra leading dim of a value; 0 where a value is a plain tensor."""

    @abstractmethod
    def times(self, a: Tensor, b: Tensor) -> Tensor:
        """The product of two values of broadcastable shapes."""

    @abstractmethod
    def sum(self, x: Tensor, dim: int) -> Tensor:
        """The plus-sum over one dim (negative for composite values); an empty dim gives zero."""

    @abstractmethod
    def from_log(self, w: Tensor) -> Tensor:
        """The semiring value of a log weight."""

    def plus(self, a: Tensor, b: Tensor) -> Tensor:
        """The sum of two values of broadcastable shapes."""
        return self.sum(torch.stack(torch.broadcast_tensors(a, b), dim=-1), dim=-1)

    def zeros(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """A value of the given shape filled with the identity of plus."""
        return self.from_log(like.new_full(shape, -torch.inf))

    def ones(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """A value of the given shape filled with the identity of times."""
        return self.from_log(like.new_zeros(shape))

    def recentre(self, x: Tensor, num_dims: int) -> tuple[Tensor, Tensor]:
        """Splits x, whose last `num_dims` dims are states, into x = times(offset, smaller x).

        The offset is a float64 log weight without the state dims. Long sums then stay near 0,
        where float32 is dense: plain recursion over 1024 frames loses the gradient to 6e-4,
        recentred 5e-7. A semiring that is not logarithmic returns x itself and an offset of 0.
        """
        return x, x.new_zeros(x.shape[:-num_dims], dtype=torch.float64)


def _finite_maximum(x: Tensor, num_dims: int) -> Tensor:
    """The largest entry over the last dims, 0 where there is no finite one."""
    maximum = x.detach().flatten(-num_dims).amax(-1)
    return maximum.masked_fill(maximum == -torch.inf, 0.0)


def _detach_unreachable(x: Tensor) -> Tensor:
    """X with zero gradient where it is -inf."""
    return x.masked_fill(x == -torch.inf, -torch.inf)


def _shift(x: Tensor, offset: Tensor, num_dims: int) -> Tensor:
    return x - offset[(...,) + (None,) * num_dims]


@final
class RealSemiring(Semiring):
    """Probabilities: (R+, +, x, 0, 1). Overflows where `Log` does not; for counting and tests."""

    zero = 0.0
    one = 1.0

    def times(self, a: Tensor, b: Tensor) -> Tensor:
        """The product a * b."""
        return a * b

    def plus(self, a: Tensor, b: Tensor) -> Tensor:
        """The sum a + b."""
        return a + b

    def sum(self, x: Tensor, dim: int) -> Tensor:
        """The ordinary sum."""
        return x.sum(dim)

    def from_log(self, w: Tensor) -> Tensor:
        """The probability exp(w)."""
        return w.exp()


@final
class LogSemiring(Semiring):
    """Log weights: (R with -inf, logaddexp, +, -inf, 0); the paper's log semiring negated."""

    zero = -torch.inf
    one = 0.0

    def times(self, a: Tensor, b: Tensor) -> Tensor:
        """The sum a + b."""
        return a + b

    def plus(self, a: Tensor, b: Tensor) -> Tensor:
        """The log of exp(a) + exp(b), with zero gradient where both are -inf."""
        unreachable = (a == -torch.inf) & (b == -torch.inf)
        # A constant inside, overwritten outside: torch.logaddexp has NaN gradients at -inf, -inf.
        y = torch.logaddexp(a.masked_fill(unreachable, 0.0), b.masked_fill(unreachable, 0.0))
        return y.masked_fill(unreachable, -torch.inf)

    def sum(self, x: Tensor, dim: int) -> Tensor:
        """The log of the summed exponentials, with zero gradient where every operand is -inf."""
        unreachable = (x == -torch.inf).all(dim, keepdim=True)
        y = torch.logsumexp(x.masked_fill(unreachable, 0.0), dim)
        return y.masked_fill(unreachable.squeeze(dim), -torch.inf)

    def from_log(self, w: Tensor) -> Tensor:
        """The weight itself."""
        return w

    def recentre(self, x: Tensor, num_dims: int) -> tuple[Tensor, Tensor]:
        """Subtracts the largest entry."""
        maximum = _finite_maximum(x, num_dims)
        return _shift(x, maximum, num_dims), maximum.double()


@final
class MaxTropicalSemiring(Semiring):
    """Best paths: (R with -inf, max, +, -inf, 0); OpenFst's tropical semiring negated."""

    zero = -torch.inf
    one = 0.0

    def times(self, a: Tensor, b: Tensor) -> Tensor:
        """The sum a + b."""
        return a + b

    def plus(self, a: Tensor, b: Tensor) -> Tensor:
        """The larger one; a tie is won by a alone (torch.maximum would split the gradient)."""
        return _detach_unreachable(torch.where(a >= b, a, b))

    def sum(self, x: Tensor, dim: int) -> Tensor:
        """The largest entry; a tie is won by the first alone (amax would split the gradient)."""
        if x.shape[dim] == 0:
            return x.new_full(x.sum(dim).shape, -torch.inf)
        return _detach_unreachable(x.gather(dim, x.argmax(dim, keepdim=True)).squeeze(dim))

    def from_log(self, w: Tensor) -> Tensor:
        """The weight itself."""
        return w

    def recentre(self, x: Tensor, num_dims: int) -> tuple[Tensor, Tensor]:
        """Subtracts the largest entry."""
        maximum = _finite_maximum(x, num_dims)
        return _shift(x, maximum, num_dims), maximum.double()


class _LogPair(Semiring):
    """A log weight with a companion; values are [2, ...]. What differs is the companion's sum."""

    zero = -torch.inf
    one = 0.0
    num_components = 2

    def times(self, a: Tensor, b: Tensor) -> Tensor:
        """Log weights add, and so do the companions; zero stays zero."""
        weight, companion = a[0] + b[0], a[1] + b[1]
        return torch.stack([weight, companion.masked_fill(weight == -torch.inf, 0.0)])

    def _shares(self, x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        """The log-sum of the weights over dim, and the log-share of each operand in it."""
        weight = x[0]
        total = Log.sum(weight, dim)
        gone = weight == -torch.inf
        share = weight.masked_fill(gone, 0.0) - total.masked_fill(
            total == -torch.inf, 0.0
        ).unsqueeze(dim)
        return total, share.masked_fill(gone, -torch.inf)

    def recentre(self, x: Tensor, num_dims: int) -> tuple[Tensor, Tensor]:
        """Subtracts the largest log weight; the companion stays."""
        maximum = _finite_maximum(x[0], num_dims)
        return torch.stack([_shift(x[0], maximum, num_dims), x[1]]), maximum.double()


@final
class LogExpectationSemiring(_LogPair):
    """A log weight with the mean of an additive quantity: values [2, ...] = (log w, mean).

    An arc has a weight and a value; a path's value is the sum of its arcs'. The shortest distance
    is then (log Z, expectation of the path's value). This is the expectation semiring (p, p v) in
    coordinates that neither overflow nor lose sign: times adds both, plus averages the means by
    weight.
    """

    def sum(self, x: Tensor, dim: int) -> Tensor:
        """(logsumexp of the weights, mean of the means by weight)."""
        total, share = self._shares(x, dim)
        return torch.stack([total, (share.exp() * x[1]).sum(dim)])

    def from_log(self, w: Tensor, value: Tensor | None = None) -> Tensor:
        """(w, value); without a value, (w, -w): the mean is then the expected surprisal."""
        value = -w if value is None else value
        return torch.stack(torch.broadcast_tensors(w, value.masked_fill(w == -torch.inf, 0.0)))


@final
class LogEntropySemiring(_LogPair):
    """A log weight with the entropy behind it: values [2, ...] = (log w, H in nats).

    `LogExpectation` of the surprisal in other coordinates, H = log w + mean surprisal, which
    spares the cancellation of two large numbers. By the grouping rule of entropy, plus is
    (logsumexp, sum of share_i (H_i - log share_i)); times adds both; an arc has entropy 0.
    """

    def sum(self, x: Tensor, dim: int) -> Tensor:
        """(logsumexp of the weights, entropy of the shares plus the mean of the entropies)."""
        total, share = self._shares(x, dim)
        surprisal = -share.masked_fill(share == -torch.inf, 0.0)
        return torch.stack([total, (share.exp() * (x[1] + surprisal)).sum(dim)])

    def from_log(self, w: Tensor) -> Tensor:
        """The pair (w, 0)."""
        return torch.stack([w, torch.zeros_like(w)])


Real = RealSemiring()
Log = LogSemiring()
MaxTropical = MaxTropicalSemiring()
LogExpectation = LogExpectationSemiring()
LogEntropy = LogEntropySemiring()
