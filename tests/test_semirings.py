"""The laws of every semiring, and gradients where there is no path."""

from __future__ import annotations

import math

import pytest
import torch

import midge
from tolerances import EXACT

SEMIRINGS = [midge.Real, midge.Log, midge.MaxTropical, midge.LogExpectation, midge.LogEntropy]
LOGARITHMIC = SEMIRINGS[1:]


def values(semiring, seed: int, size: int = 40) -> torch.Tensor:
    """Random values, some of them zero."""
    generator = torch.Generator().manual_seed(seed)
    w = torch.randn(size, generator=generator, dtype=torch.float64)
    w = w.masked_fill(torch.rand(size, generator=generator) < 0.2, -torch.inf)
    if semiring is midge.LogExpectation:
        return semiring.from_log(w, torch.randn(size, generator=generator, dtype=torch.float64))
    x = semiring.from_log(w)
    if semiring is midge.LogEntropy:
        entropy = torch.rand(size, generator=generator, dtype=torch.float64)
        x = torch.stack([x[0], entropy.masked_fill(w == -torch.inf, 0.0)])
    return x


@pytest.mark.parametrize("semiring", SEMIRINGS, ids=lambda s: type(s).__name__)
def test_laws(semiring):
    a, b, c = (values(semiring, seed) for seed in range(3))
    zero = semiring.zeros((40,), like=torch.zeros(1, dtype=torch.float64))
    one = semiring.ones((40,), like=torch.zeros(1, dtype=torch.float64))
    plus, times = semiring.plus, semiring.times

    def same(x, y):
        torch.testing.assert_close(x, y, **EXACT)

    same(plus(plus(a, b), c), plus(a, plus(b, c)))
    same(plus(a, b), plus(b, a))
    same(plus(a, zero), a)
    same(times(times(a, b), c), times(a, times(b, c)))
    same(times(a, one), a)
    same(times(one, a), a)
    same(times(a, zero), zero)
    same(times(a, plus(b, c)), plus(times(a, b), times(a, c)))
    same(semiring.sum(torch.stack([a, b, c], dim=-1), dim=-1), plus(plus(a, b), c))
    same(semiring.sum(a[..., :0], dim=-1), zero[..., 0])


@pytest.mark.parametrize("semiring", SEMIRINGS[:3], ids=lambda s: type(s).__name__)
def test_identities_are_numbers(semiring):
    assert semiring.from_log(torch.tensor(-torch.inf)) == semiring.zero
    assert semiring.from_log(torch.tensor(0.0)) == semiring.one
    x = torch.tensor([[1.0, 2.0], [3.0, 0.5]])
    torch.testing.assert_close(semiring.sum(x, 0), semiring.plus(x[0], x[1]))


@pytest.mark.parametrize("semiring", LOGARITHMIC, ids=lambda s: type(s).__name__)
def test_no_path_has_no_gradient(semiring):
    """torch.logsumexp and torch.logaddexp are NaN there."""
    w = torch.full((3, 4), -torch.inf, dtype=torch.float64)
    w[1] = torch.tensor([0.0, -torch.inf, 1.0, -torch.inf])
    w.requires_grad_()
    x = semiring.from_log(w)
    total = semiring.sum(x, dim=-1)
    assert not total.isnan().any()
    reached = total[0] if semiring.num_components else total
    assert reached[0] == -torch.inf
    kept = total[..., 1] * 1.0
    (kept.sum() + semiring.plus(x[..., 0], x[..., 1])[..., 1].sum()).backward()
    assert w.grad.isfinite().all()
    assert not w.grad[0].any() and not w.grad[2].any()


def test_a_tie_has_one_winner():
    x = torch.tensor([1.0, 3.0, 3.0], requires_grad=True)
    midge.MaxTropical.sum(x, dim=-1).backward()
    assert x.grad.tolist() == [0.0, 1.0, 0.0]
    a = torch.tensor(2.0, requires_grad=True)
    b = torch.tensor(2.0, requires_grad=True)
    midge.MaxTropical.plus(a, b).backward()
    assert (a.grad, b.grad) == (torch.tensor(1.0), None) or float(b.grad) == 0.0


def test_infinity_is_seen():
    """+inf is a bug, and stays visible."""
    x = torch.tensor([0.0, torch.inf], requires_grad=True)
    total = midge.Log.sum(x, dim=-1)
    total.backward()
    assert not total.isfinite() and x.grad.isnan().any()


def test_entropy_and_expectation_of_a_distribution():
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    entropy = midge.LogEntropy.sum(midge.LogEntropy.from_log(p.log()), dim=-1)
    expected = -(p * p.log()).sum()
    torch.testing.assert_close(entropy, torch.stack([torch.zeros_like(expected), expected]))
    surprisal = midge.LogExpectation.sum(midge.LogExpectation.from_log(p.log() + 7.0), dim=-1)
    torch.testing.assert_close(surprisal[0] + surprisal[1], expected)
    value = torch.tensor([1.0, -2.0, 10.0], dtype=torch.float64)
    mean = midge.LogExpectation.sum(midge.LogExpectation.from_log(p.log(), value), dim=-1)[1]
    assert math.isclose(float(mean), 0.5 - 0.6 + 2.0)


@pytest.mark.parametrize("semiring", LOGARITHMIC, ids=lambda s: type(s).__name__)
def test_recentring_loses_nothing(semiring):
    x = semiring.from_log(torch.tensor([[300.0, 290.0], [-torch.inf, -torch.inf]]))
    smaller, offset = semiring.recentre(x, 1)
    assert offset.tolist() == [300.0, 0.0] and offset.dtype == torch.float64
    weights = smaller[0] if semiring.num_components else smaller
    assert weights.tolist() == [[0.0, -10.0], [-math.inf, -math.inf]]
