"""The native engine against the list of all paths, and against the readable engine."""

from __future__ import annotations

import copy
import math
import os
import subprocess
import sys

import pytest
import torch

import midge
from cases import CASES, Case, parameters, random_frames
from midge import kernels
from test_lattices_enumeration import padded, some_labels

CLOSE = {"rtol": 1e-4, "atol": 1e-4}
FAST = [case for case in CASES if not case.alignment_name.startswith("label:")]


@pytest.fixture(autouse=True)
def native_is_there():
    """These tests are about it: make setup builds it."""
    assert kernels.engine_name().startswith("native")


def problem(case: Case, seed: int):
    """Three float32 utterances with junk on padding, a label sequence each, and their oracles."""
    frames = random_frames(case, 3, seed=seed).float()
    num_frames = torch.tensor([frames.shape[1], 1, 0])
    oracles = [
        case.enumeration(each, int(count)) for each, count in zip(frames, num_frames, strict=True)
    ]
    padding = torch.arange(frames.shape[1]) >= num_frames[:, None]
    frames = frames.masked_fill(padding[..., None], torch.nan)
    targets = [some_labels(oracle, case.context().vocab_size, seed) for oracle in oracles]
    return frames, num_frames, oracles, targets


@pytest.mark.parametrize("case", parameters(FAST))
def test_native_sums(case: Case):
    frames, num_frames, oracles, targets = problem(case, seed=31)
    lattice = case.lattice()
    labels, num_labels = padded(targets)
    found = {
        "log_z": lattice.shortest_distance(frames, num_frames),
        "entropy": lattice.entropy(frames, num_frames),
        "numerator": lattice.shortest_distance(
            frames, num_frames, labels=labels, num_labels=num_labels
        ),
        "given": lattice.entropy(frames, num_frames, labels, num_labels),
        "loss": lattice(frames, num_frames, labels, num_labels),
    }
    for row, (oracle, target) in enumerate(zip(oracles, targets, strict=True)):
        log_z, numerator = oracle.log_z(), oracle.log_z(target)
        loss = log_z - numerator if numerator > -math.inf else math.inf
        expected = {"log_z": log_z, "numerator": numerator, "loss": loss}
        if log_z > -math.inf:
            expected["entropy"] = oracle.entropy()
        if numerator > -math.inf:
            expected["given"] = oracle.entropy(target)
        for name, value in expected.items():
            torch.testing.assert_close(float(found[name][row]), value, **CLOSE, msg=name)


@pytest.mark.parametrize("case", parameters(FAST))
def test_native_paths_and_posteriors(case: Case):
    frames, num_frames, oracles, targets = problem(case, seed=32)
    lattice = case.lattice()
    labels, num_labels = padded(targets)
    path = lattice.shortest_path(frames, num_frames)
    aligned = lattice.shortest_path(frames, num_frames, labels, num_labels)
    whole = lattice.arc_marginals(frames, num_frames)
    along = lattice.arc_marginals(frames, num_frames, labels, num_labels)
    for row, (oracle, target) in enumerate(zip(oracles, targets, strict=True)):
        for given, which, marginals in ((None, path, whole), (target, aligned, along)):
            best = oracle.best(given)
            length = int(which.num_alignment_labels[row])
            if best is None:
                assert which.weight[row] == -torch.inf and length == 0
                continue
            assert tuple(which.alignment_labels[row, :length].tolist()) == best.symbols
            assert tuple(which.alignment_frames[row, :length].tolist()) == tuple(
                step for step, _, _ in best.arcs
            )
            torch.testing.assert_close(float(which.weight[row]), best.weight, **CLOSE)
            expected = oracle.marginals(given)
            found = torch.cat([marginals.blank[row][..., None], marginals.lexical[row]], dim=-1)
            torch.testing.assert_close(found[: len(expected)].double(), expected, **CLOSE)
            assert not found[len(expected) :].any()


def medium(kind: str, normalization: str, alignment: midge.AlignmentLattice, deduplicate: bool):
    """A lattice with parameters, large enough to leave the smallest tiles."""
    torch.manual_seed(3)
    context = {
        "history": lambda: midge.FullHistory(7),
        "no context": lambda: midge.FullNGram(7, 0),
        "table": lambda: midge.clustered_context([0, 0, 1, 2, 2, 1, 0], 2),
    }.get(kind, lambda: midge.FullNGram(7, 2))()
    weights = {
        "unshared": lambda: midge.UnsharedWeights(context, 19),
        "no context": lambda: midge.UnsharedWeights(context, 19),
        "embedding": lambda: midge.SharedEmbeddingWeights(context, 19, 37, 11),
    }.get(kind, lambda: midge.SharedRNNWeights(context, 19, 37, 11, 13))()
    lattice = midge.RecognitionLattice(context, alignment, weights, normalization, deduplicate)
    frames = torch.randn(3, 41, 19)
    num_frames, num_labels = torch.tensor([41, 30, 17]), torch.tensor([11, 9, 0])
    labels = torch.randint(1, 8, (3, 11))
    labels[0, 4:7] = 3
    return lattice, frames, (num_frames, labels, num_labels)


FRAME, TWO = midge.FrameDependent(), midge.LabelFrameDependent(2)
MEDIUM = [
    (kind, normalization, alignment, deduplicate)
    for kind in ("rnn", "embedding", "unshared", "table", "no context")
    for normalization in ("global", "softmax", "hat")
    for alignment in (FRAME, TWO)
    for deduplicate in (False, True)
] + [
    ("history", normalization, alignment, False)
    for normalization in ("softmax", "hat")
    for alignment in (FRAME, midge.LabelFrameDependent(None), midge.LabelFrameDependent(50))
]


@pytest.mark.parametrize("arguments", MEDIUM, ids=str)
def test_native_gradients_follow_float64(arguments):
    """Of the loss and of the entropy, down to frames and every parameter."""
    lattice, frames, rest = medium(*arguments)
    results = []
    for dtype in (torch.float32, torch.float64):
        lattice.to(dtype).zero_grad()
        x = frames.detach().clone().to(dtype).requires_grad_()
        weight = torch.tensor([0.5, 1.0, 2.0], dtype=dtype)
        total = (weight * lattice(x, *rest)).sum()
        if not isinstance(lattice.context, midge.FullHistory):
            total = total + 0.3 * lattice.entropy(x, rest[0]).sum()
        total = total + 0.2 * lattice.entropy(x, *rest).sum()
        total.backward()
        gradients = [x.grad, *[parameter.grad for parameter in lattice.parameters()]]
        results.append([total.detach(), *gradients])
    for native, exact in zip(*results, strict=True):
        error = (native.double() - exact).norm() / exact.norm().clamp(min=1e-3)
        assert float(error) < 1e-4


@pytest.mark.parametrize("normalization", ["global", "hat"])
@pytest.mark.parametrize("context_size", [1, 2])
def test_unshared_weights_of_more_frames_than_are_packed_at_once(context_size, normalization):
    torch.manual_seed(5)
    context = midge.FullNGram(11, context_size)
    weights = midge.UnsharedWeights(context, 37)
    lattice = midge.RecognitionLattice(context, FRAME, weights, normalization)
    num_frames, labels = torch.tensor([170, 163, 95]), torch.randint(1, 12, (3, 20))
    results, paths = [], []
    for dtype in (torch.float32, torch.float64):
        lattice.to(dtype).zero_grad()
        x = torch.randn(3, 170, 37, generator=torch.Generator().manual_seed(1)).to(dtype)
        x.requires_grad_()
        loss = lattice(x, num_frames, labels, torch.tensor([20, 3, 11]))
        loss.sum().backward()
        results.append([loss.detach(), x.grad, weights.weight.grad, weights.bias.grad])
        paths.append(lattice.shortest_path(x.detach(), num_frames))
    for native, exact in zip(*results, strict=True):
        assert float((native.double() - exact).norm() / exact.norm()) < 1e-5
    assert paths[0].labels() == paths[1].labels()
    torch.testing.assert_close(paths[0].weight.double(), paths[1].weight, atol=1e-3, rtol=0)


@pytest.mark.parametrize(
    "arguments", [("rnn", "global", FRAME, False), ("no context", "softmax", FRAME, True)], ids=str
)
def test_same_bits_for_any_number_of_threads(arguments):
    lattice, frames, rest = medium(*arguments)
    found = []
    before = torch.get_num_threads()
    for count in (1, 2):
        torch.set_num_threads(count)
        lattice.zero_grad()
        x = frames.clone().requires_grad_()
        loss = lattice(x, *rest)
        loss.sum().backward()
        found.append([loss.detach(), x.grad, *[p.grad.clone() for p in lattice.parameters()]])
    torch.set_num_threads(before)
    for one, two in zip(*found, strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("deduplicate", [False, True])
@pytest.mark.parametrize("name", ["0-gram-3", "1-gram", "2-gram", "random-0", "random-1"])
@pytest.mark.parametrize("alignment", ["frame", "label-frame:2"])
def test_ties_are_won_by_the_same_path_in_both_engines(name, alignment, deduplicate):
    case = Case(name, alignment, deduplicate=deduplicate)
    lattice = case.lattice()
    for seed in range(10):
        generator = torch.Generator().manual_seed(seed)
        frames = torch.randint(0, 2, random_frames(case, 2).shape, generator=generator).double()
        count = torch.tensor([frames.shape[1], 1])
        exact = lattice.shortest_path(frames, count)
        native = lattice.shortest_path(frames.float(), count)
        assert torch.equal(native.alignment_labels, exact.alignment_labels)
        assert torch.equal(native.alignment_frames, exact.alignment_frames)


def test_large_arguments_of_tanh():
    """Where e^(2a) e^(2b) would overflow or vanish, tanh(a + b) is still right."""
    context = midge.FullNGram(3, 1)
    lattice = midge.RecognitionLattice(
        context, midge.FrameDependent(), midge.SharedEmbeddingWeights(context, 5, 8, 4)
    )
    with torch.no_grad():
        lattice.weights.embedding.weight.mul_(60)
        lattice.weights.joint.hidden_bias.copy_(torch.linspace(-90, 90, 8))
    frames = 80 * torch.randn(2, 9, 5)
    rest = (torch.tensor([9, 7]), torch.tensor([[1, 2], [3, 3]]), torch.tensor([2, 2]))
    native = lattice(frames, *rest)
    exact = lattice.double()(frames.double(), *rest)
    torch.testing.assert_close(native.double(), exact, **CLOSE)


def test_the_engine_can_be_forced_off(monkeypatch):
    monkeypatch.setenv("MIDGE_ENGINE", "reference")
    assert kernels.engine_name() == "reference"
    monkeypatch.setenv("MIDGE_ENGINE", "cuda")
    with pytest.raises(ValueError, match="MIDGE_ENGINE should be"):
        kernels.engine_name()


def test_without_the_library_it_says_so_once(monkeypatch):
    monkeypatch.setattr(kernels.native, "library", lambda: None)
    kernels._is_there.cache_clear()
    try:
        with pytest.warns(RuntimeWarning, match="native engine was not built") as caught:
            for _ in range(3):
                assert kernels.engine_name() == "reference"
        assert len(caught) == 1
        case = Case("1-gram", "frame")
        loss = case.lattice()(
            torch.zeros(4, 9), torch.tensor(4), torch.tensor([1, 2]), torch.tensor(2)
        )
        assert math.isclose(float(loss), math.log(81 / 6), rel_tol=1e-6)
    finally:
        kernels._is_there.cache_clear()


@pytest.mark.parametrize("name", ["portable"])
def test_other_instruction_sets_agree(name):
    """A process of its own, because the variant is chosen when the library is loaded."""
    code = (
        "import torch, midge, midge.kernels as k; torch.manual_seed(0); c = midge.FullNGram(7, 2);"
        "l = midge.RecognitionLattice(c, midge.FrameDependent(),"
        " midge.SharedRNNWeights(c, 19, 37, 11, 13)); x = torch.randn(2, 20, 19);"
        "print(k.engine_name(), float(l(x, torch.tensor([20, 9]), torch.tensor([[1, 2], [3, 3]]),"
        " torch.tensor([2, 2])).detach().sum()))"
    )
    outputs = []
    for environment in ({}, {"MIDGE_VARIANT": name}):
        result = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **environment},
            check=True,
            capture_output=True,
            text=True,
        )
        engine, value = result.stdout.strip().rsplit(" ", 1)
        outputs.append((engine, float(value)))
    assert outputs[1][0] == f"native ({name})"
    assert math.isclose(outputs[0][1], outputs[1][1], rel_tol=1e-5)


class Recognizer(torch.nn.Module):
    """An encoder and a lattice."""

    def __init__(self, lattice: midge.RecognitionLattice) -> None:
        super().__init__()
        self.encoder = torch.nn.Linear(6, 19)
        self.lattice = lattice

    def forward(self, x, num_frames, labels, num_labels):
        return self.lattice(self.encoder(x), num_frames, labels, num_labels)


@pytest.mark.parametrize("kind, normalization", [("rnn", "global"), ("unshared", "hat")])
def test_compile_and_export(kind, normalization):
    """One graph, with the engine's operators in it; the same loss and gradients."""
    lattice, _, rest = medium(kind, normalization, FRAME, False)
    model = Recognizer(lattice)
    x = torch.randn(3, 41, 6)
    expected = model(x, *rest)
    expected.sum().backward()
    gradient = model.encoder.weight.grad.clone()
    model.zero_grad()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    found = compiled(x, *rest)
    found.sum().backward()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(model.encoder.weight.grad, gradient)
    exported = torch.export.export(model, (x, *rest))
    torch.testing.assert_close(exported.module()(x, *rest), expected)
    assert "midge.distances" in exported.graph_module.print_readable(print_output=False)


def test_linear_is_that_of_torch():
    x, weight = torch.randn(2, 70, 33), torch.randn(21, 33)
    for tensor in (x, weight):
        tensor.requires_grad_()
    found, expected = kernels.operators.linear(x, weight), torch.nn.functional.linear(x, weight)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    upstream = torch.randn_like(expected)
    for ours, theirs in zip(
        torch.autograd.grad(found, (x, weight), upstream),
        torch.autograd.grad(expected, (x, weight), upstream),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-4)


def test_a_weight_function_of_ones_own_goes_the_readable_way():
    """Nothing but the interface is asked of it."""

    class Scaled(midge.WeightFn):
        def __init__(self, inner: midge.WeightFn) -> None:
            super().__init__()
            self.inner, self.context, self.input_size = inner, inner.context, inner.input_size

        def scorer(self, frames, num_frames, states, linear=None):
            return self.inner.scorer(frames / 2, num_frames, states)

    context = midge.FullNGram(2, 1)
    table = midge.TableWeights(context)
    frames, rest = torch.randn(1, 4, 9), (torch.tensor([4]), torch.tensor([[1]]), torch.tensor([1]))
    own = midge.RecognitionLattice(context, FRAME, Scaled(table))(frames, *rest)
    expected = midge.RecognitionLattice(context, FRAME, table)(frames / 2, *rest)
    torch.testing.assert_close(own, expected)


def test_second_derivative_is_refused_clearly():
    lattice, frames, rest = medium("embedding", "global", FRAME, False)
    x = frames.requires_grad_()
    (gradient,) = torch.autograd.grad(lattice(x, *rest).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        gradient.square().sum().backward()


def test_copies_and_replaced_weights_are_used():
    lattice, frames, rest = medium("embedding", "global", FRAME, False)
    loss = lattice(frames, *rest)
    twin = copy.deepcopy(lattice)
    with torch.no_grad():
        twin.weights.joint.output.weight.mul_(2)
    assert torch.equal(lattice(frames, *rest), loss)
    assert not torch.equal(twin(frames, *rest), loss)
    other, _, _ = medium("rnn", "global", FRAME, False)
    lattice.weights = other.weights
    torch.testing.assert_close(lattice(frames, *rest), other(frames, *rest))


@pytest.mark.parametrize("content", [b"", b"not a library"])
def test_a_broken_library_is_none(monkeypatch, tmp_path, content):
    (tmp_path / "_engine.so").write_bytes(content)
    monkeypatch.setattr(kernels.native, "__file__", str(tmp_path / "native.py"))
    assert kernels.native.library.__wrapped__() is None


def test_paths_of_a_batch_in_parts(monkeypatch):
    """A large batch is searched a few utterances at a time, whatever its dims."""
    torch.manual_seed(0)
    context = midge.FullNGram(3, 2)
    weights = midge.SharedRNNWeights(context, 4, 8, 3, 5)
    lattice = midge.RecognitionLattice(context, midge.FrameDependent(), weights)
    frames, num_frames = torch.randn(3, 3, 5, 4), torch.randint(0, 6, (3, 3))
    whole = lattice.shortest_path(frames, num_frames)
    monkeypatch.setattr("midge.lattices.fast._PART_FRAMES", 10)
    parts = lattice.shortest_path(frames, num_frames)
    assert parts.labels() == whole.labels()
    assert torch.equal(parts.weight, whole.weight)


OUT_OF_MEMORY = """
import resource, torch, midge
torch.set_num_threads(2)
def problem(alignment, deduplicate, frames, labels):
    context = midge.FullNGram(1, 0)
    lattice = midge.RecognitionLattice(
        context, alignment, midge.TableWeights(context), "softmax", deduplicate
    )
    count = torch.full((2,), frames)
    scores = torch.zeros(2, frames, 2)
    string = torch.ones(2, labels, dtype=torch.int64)
    return lattice, (scores, count, string, torch.full((2,), labels))
calls = {
    "loss": lambda lattice, inputs: lattice(*inputs),
    "path": lambda lattice, inputs: lattice.shortest_path(*inputs),
}
ctc = (midge.FrameDependent(), True)
many = (midge.LabelFrameDependent(60), False)
for name, kind, size in (("loss", ctc, (4000, 1500)), ("path", many, (2000, 1000))):
    calls[name](*problem(*kind, 8, 3))  # starts the threads
    given = problem(*kind, *size)
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (60 << 20), resource.RLIM_INFINITY))
    try:
        calls[name](*given)
    except MemoryError as error:
        print(error)
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    calls[name](*problem(*kind, 8, 3))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits its address space as Linux does")
def test_a_lack_of_memory_is_an_error_and_not_the_end():
    """Of memory for the threads' own work: nothing may be thrown out of a parallel region."""
    result = subprocess.run(
        [sys.executable, "-c", OUT_OF_MEMORY], capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines() == [
        f"the native engine ran out of memory in {name}" for name in ("forward", "best_path")
    ]
