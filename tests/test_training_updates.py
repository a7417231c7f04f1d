"""One step: what it sums, what it leaves out, and what a penalty does to the loss."""

import math

import pytest
import torch

from midge.audio import FrontEndConfig
from midge.data.loading import Batch
from midge.encoders import LSTMConfig
from midge.models import LatticeConfig, Recognizer, RecognizerConfig
from midge.tokens import TokensConfig, build_tokens
from midge.training import TrainingConfig
from midge.training.distributed import ProcessGroup
from midge.training.losses import batch_losses, batch_without
from midge.training.updates import Updates

FEATURE_SIZE = 6
LENGTHS = {"a": (9, 2), "b": (7, 3), "c": (8, 1), "d": (5, 4)}


def recognizer(**changes):
    torch.manual_seed(3)
    config = RecognizerConfig(
        front_end=FrontEndConfig(num_mels=3, stacking=2, stride=2),
        encoder=LSTMConfig(num_layers=1, size=5, dropout=changes.pop("dropout", 0.0)),
        lattice=LatticeConfig(
            context_size=1, hidden_size=4, embedding_size=4, rnn_size=4, **changes
        ),
    )
    return Recognizer(config, build_tokens(TokensConfig(), [("x", "AB C")]))


def batch(names="abcd", **lengths):
    """Some utterances, each the same in whichever batch it is."""
    chosen = {name: lengths.get(name, LENGTHS[name]) for name in names}
    num_frames, num_labels = (torch.tensor(x) for x in zip(*chosen.values(), strict=True))
    features = torch.zeros(len(chosen), int(num_frames.max()), FEATURE_SIZE)
    labels = torch.zeros(len(chosen), int(num_labels.max()), dtype=torch.int64)
    for row, (name, (frames, size)) in enumerate(chosen.items()):
        generator = torch.Generator().manual_seed(ord(name))
        features[row, :frames] = torch.randn(frames, FEATURE_SIZE, generator=generator)
        labels[row, :size] = torch.randint(1, 5, (size,), generator=generator)
    return Batch(
        epoch=0,
        index=0,
        ids=list(chosen),
        texts=[""] * len(chosen),
        features=features,
        num_features=num_frames,
        labels=labels,
        num_labels=num_labels,
        seconds=1.0,
        skipped=(),
    )


def parameters_after(batches, config=None, **changes):
    model = recognizer(**changes)
    config = config or TrainingConfig(learning_rate=0.1)
    result = Updates(model, config, ProcessGroup()).step(1, batches)
    return torch.cat([x.detach().flatten() for x in model.parameters()]), result


def test_the_loss_is_the_sum_over_the_label_count():
    model = recognizer()
    config = TrainingConfig(clip_norm=math.inf)
    one = batch()
    result = Updates(model, config, ProcessGroup()).step(1, [one])
    gradients = [x.grad.clone() for x in model.parameters()]
    fresh = recognizer()
    loss = fresh(one.features, one.num_features, one.labels, one.num_labels).sum()
    (loss / 10).backward()
    for found, parameter in zip(gradients, fresh.parameters(), strict=True):
        torch.testing.assert_close(found, parameter.grad)
    assert result.loss == pytest.approx(loss.item(), rel=1e-5)
    assert (result.num_labels, result.num_frames) == (10, 29)
    norm = math.sqrt(sum(float(x.grad.square().sum()) for x in fresh.parameters()))
    assert result.gradient_norm == pytest.approx(norm, rel=1e-4)


def test_batches_of_a_step_are_as_one():
    apart, _ = parameters_after([batch("ab"), batch("cd")])
    together, _ = parameters_after([batch("abcd")])
    torch.testing.assert_close(apart, together, rtol=1e-4, atol=1e-5)


def test_dropout_is_a_function_of_the_step():
    first, _ = parameters_after([batch()], dropout=0.5)
    torch.rand(7)
    again, _ = parameters_after([batch()], dropout=0.5)
    assert torch.equal(first, again)


@pytest.mark.parametrize("normalization", ["global", "softmax"])
def test_what_has_no_finite_loss_is_left_out_and_named(normalization):
    broken = batch("abcd", c=(8, 8), d=(3, 4))  # d has more labels than frames
    broken.features[2, 4] = math.nan
    found, result = parameters_after([broken], normalization=normalization)
    expected, alone = parameters_after([batch("ab")], normalization=normalization)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert not result.is_skipped and result.num_labels == alone.num_labels == 5
    assert [(each.id, each.reason) for each in result.skipped] == [
        ("c", "its loss is not a number"),
        ("d", "no path spells its labels"),
    ]


@pytest.mark.parametrize("batches", [[], [batch_without(batch("ab"), torch.tensor([True, True]))]])
def test_a_step_without_data_changes_nothing(batches):
    found, result = parameters_after(batches)
    before = torch.cat([x.detach().flatten() for x in recognizer().parameters()])
    assert torch.equal(found, before)
    assert result.is_skipped and result.num_labels == 0 and result.example is None


def test_a_gradient_that_is_not_finite_changes_nothing():
    model = recognizer()
    next(model.lattice.parameters()).register_hook(lambda grad: grad * math.inf)
    before = [x.detach().clone() for x in model.parameters()]
    result = Updates(model, TrainingConfig(), ProcessGroup()).step(1, [batch("ab")])
    assert result.is_skipped
    assert [each.id for each in result.skipped] == ["a", "b"]
    for old, parameter in zip(before, model.parameters(), strict=True):
        assert torch.equal(old, parameter)


def test_decay_of_the_output_layer_holds_what_the_loss_does_not_see():
    """Adding a number to all arcs of a frame changes no global loss; the decay takes it back."""
    biases = {}
    for decay in (0.0, 0.5):
        model = recognizer()
        with torch.no_grad():
            model.lattice.weights.joint.output.bias.add_(10.0)
        config = TrainingConfig(learning_rate=0.1, num_warmup_steps=0, output_weight_decay=decay)
        updates = Updates(model, config, ProcessGroup())
        for step in range(1, 6):
            updates.step(step, [batch()])
        biases[decay] = float(model.lattice.weights.joint.output.bias.detach().mean())
    assert biases[0.0] == pytest.approx(10.0, abs=0.7)
    assert biases[0.5] < 8.5


@pytest.mark.parametrize("normalization", ["global", "softmax", "hat"])
def test_a_delay_penalty_is_the_expected_time_of_labels(normalization):
    """To first order in the penalty, against the posteriors of the alignments of the labels."""
    model = recognizer(normalization=normalization).double()
    one = batch("ab")
    one = type(one)(**{**vars(one), "features": one.features.double()})
    config, weight = TrainingConfig(), 1e-5
    plain = batch_losses(model, one, config)
    penalized = batch_losses(model, one, config, delay_penalty=weight)
    marginals = model.lattice.arc_marginals(
        plain.frames, one.num_features, one.labels, one.num_labels
    )
    time = torch.arange(plain.frames.shape[1])
    delays = time - one.num_features[:, None] / 2
    expected = (marginals.lexical.sum((-1, -2)) * delays).sum(-1)
    change = (penalized.losses - plain.losses) / weight
    torch.testing.assert_close(change, expected, rtol=1e-3, atol=1e-3)


def test_an_entropy_weight_adds_the_entropy_of_alignments():
    model, one, config = recognizer(), batch(), TrainingConfig()
    plain = batch_losses(model, one, config)
    found = batch_losses(model, one, config, entropy_weight=0.5).losses
    entropy = model.lattice.entropy(plain.frames, one.num_features, one.labels, one.num_labels)
    assert (entropy > 0).all()
    torch.testing.assert_close(found, plain.losses + 0.5 * entropy)


def test_moments_are_found_again():
    config = TrainingConfig(learning_rate=0.1, num_warmup_steps=0)
    whole = Updates(first := recognizer(), config, ProcessGroup())
    whole.step(1, [batch("ab")])
    second = recognizer()
    second.load_state_dict(first.state_dict())
    resumed = Updates(second, config, ProcessGroup())
    resumed.load_moments({name: x.clone() for name, x in whole.moments().items()})
    for updates in (whole, resumed):
        updates.step(2, [batch("cd")])
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)


def test_to_try_a_batch_changes_nothing():
    model = recognizer(dropout=0.5)
    updates = Updates(model, TrainingConfig(learning_rate=0.1), ProcessGroup())
    updates.step(1, [batch("ab")])
    before = {name: x.clone() for name, x in (model.state_dict() | updates.moments()).items()}
    random = torch.get_rng_state()
    assert updates.try_batch(2, batch(d=(5, 9))) > 0  # of which one has no finite loss
    assert torch.equal(torch.get_rng_state(), random)
    after = model.state_dict() | updates.moments()
    assert all(torch.equal(x, after[name]) for name, x in before.items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_restored_optimizer_is_where_the_parameters_are():
    """As a fused Adam wants it, its count of steps included; "meta" is any device but the CPU."""
    group = ProcessGroup()
    updates = Updates(recognizer(), TrainingConfig(), group)
    updates.step(1, [batch()])
    moments = updates.moments()
    assert {key.rpartition("/")[2] for key in moments} == {"step", "exp_avg", "exp_avg_sq"}
    elsewhere = Updates(recognizer().to("meta"), TrainingConfig(), group)
    assert elsewhere._optimizer.defaults["fused"]
    elsewhere.load_moments(moments)
    restored = elsewhere.moments()
    assert restored.keys() == moments.keys()
    assert {value.device.type for value in restored.values()} == {"meta"}
