"""The linear layer by oneDNN is torch's own, rounding apart."""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

import midge.encoders.linear as linear_layers
from midge.encoders.linear import Linear, bfloat16_products
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


@pytest.mark.parametrize("has_onednn", [True, False])
@pytest.mark.parametrize("has_bias", [True, False])
def test_products_in_bfloat16_are_those_of_rounded_operands(monkeypatch, has_onednn, has_bias):
    if not has_onednn:
        monkeypatch.setattr(linear_layers, "_has_onednn_bfloat16", lambda: False)
    torch.manual_seed(0)
    layer = Linear(48, 40, bias=has_bias)
    frames = torch.randn(3, 7, 48, requires_grad=True)
    gradient = torch.randn(3, 7, 40)
    with bfloat16_products("cpu"):
        product = layer(frames)
        with torch.no_grad():
            assert torch.equal(layer(frames), product)
    product.backward(gradient)
    rounded = copy.deepcopy(layer).bfloat16().double()
    given = frames.detach().bfloat16().double()
    expected = rounded(given)
    assert product.dtype == frames.grad.dtype == layer.weight.grad.dtype == torch.float32
    assert not torch.equal(product, nn.functional.linear(frames, layer.weight, layer.bias))
    # One rounding to 8 bits of the result; the operands are alike.
    torch.testing.assert_close(product.double(), expected, rtol=2**-8, atol=1e-5)
    by_frames = gradient.bfloat16().double() @ rounded.weight
    by_weight = gradient.bfloat16().double().flatten(0, 1).T @ given.flatten(0, 1)
    torch.testing.assert_close(frames.grad.double(), by_frames, rtol=2**-8, atol=1e-5)
    torch.testing.assert_close(layer.weight.grad.double(), by_weight, rtol=2**-8, atol=1e-5)
    if has_bias:
        torch.testing.assert_close(layer.bias.grad, gradient.sum((0, 1)), **SINGLE_GRADIENT)


def test_products_in_bfloat16_end_with_their_block():
    layer, frames = Linear(6, 4), torch.randn(3, 6)
    plain = layer(frames)
    with pytest.raises(KeyError), bfloat16_products("cpu"):
        raise KeyError
    assert torch.equal(layer(frames), plain)
    layer, frames = layer.double(), frames.double()
    with bfloat16_products("cpu"):  # of float32 alone
        product = layer(frames)
    assert torch.equal(product, nn.functional.linear(frames, layer.weight, layer.bias))


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
