"""The linear layer by oneDNN is torch's own, rounding apart."""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

import midge.encoders.linear as linear_layers
from midge.encoders.linear import Linear
from tolerances import SINGLE, SINGLE_GRADIENT


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lets every processor use oneDNN; lists the rows of each product."""
    calls: list[int] = []
    times_transposed = linear_layers._times_transposed

    def counted(left, right, bias):
        calls.append(len(left))
        return times_transposed(left, right, bias)

    monkeypatch.setattr(linear_layers, "prefers_onednn", lambda: True)
    monkeypatch.setattr(linear_layers, "_times_transposed", counted)
    return calls


@pytest.mark.parametrize("batch", [(), (5,), (3, 7), (2, 0)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_value_and_gradients_are_those_of_torch(served, batch, has_bias):
    torch.manual_seed(0)
    ours = Linear(6, 4, bias=has_bias)
    theirs = nn.Linear(6, 4, bias=has_bias)
    theirs.load_state_dict(ours.state_dict())
    frames = torch.randn(*batch, 6)
    results = []
    for layer in (ours, theirs):
        given = frames.clone().requires_grad_()
        product = layer(given)
        (product * torch.linspace(-1, 1, product.numel()).view_as(product)).sum().backward()
        results.append((product.detach(), given.grad, *(x.grad for x in layer.parameters())))
    assert bool(served) == bool(frames.numel())
    torch.testing.assert_close(results[0][0], results[1][0], **SINGLE)
    for mine, reference in zip(results[0][1:], results[1][1:], strict=True):
        torch.testing.assert_close(mine, reference, **SINGLE_GRADIENT)


def test_frames_that_are_not_contiguous_and_a_gradient_that_is_spread(served):
    torch.manual_seed(0)
    ours = Linear(6, 4)
    wide = copy.deepcopy(ours).double()
    frames = torch.randn(5, 6, 3).transpose(1, 2)
    ours(frames).sum().backward()  # the gradient of a sum has strides of 0
    nn.functional.linear(frames.double(), wide.weight, wide.bias).sum().backward()
    assert served
    for mine, reference in zip(ours.parameters(), wide.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, reference.grad.float(), **SINGLE_GRADIENT)


def test_only_what_is_asked_for_has_a_gradient(served):
    layer = Linear(6, 4)
    layer.weight.requires_grad_(False)
    frames = torch.randn(3, 6)
    layer(frames).sum().backward()
    assert frames.grad is None and layer.weight.grad is None
    torch.testing.assert_close(layer.bias.grad, torch.full((4,), 3.0))


def test_streams_float64_and_autocast_are_left_to_torch(served):
    layer = Linear(6, 4)
    with torch.no_grad():
        layer(torch.randn(3, 6))
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(torch.randn(3, 6)).dtype == torch.bfloat16
    layer.double()(torch.randn(3, 6, dtype=torch.float64))
    assert not served


@pytest.mark.parametrize(
    ("capability", "vendor", "expected"),
    [
        ("AVX512", "AuthenticAMD", True),
        ("AVX512", "GenuineIntel", False),
        ("AVX2", "AuthenticAMD", False),
    ],
)
def test_only_a_processor_that_mkl_serves_badly_leaves_it(
    monkeypatch, capability, vendor, expected
):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: f"vendor_id : {vendor}")
    assert linear_layers.prefers_onednn.__wrapped__() == expected
