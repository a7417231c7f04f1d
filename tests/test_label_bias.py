"""The label-bias demonstration does what the theory says: some models must fail, others succeed."""

import dataclasses
import json
import math
import xml.etree.ElementTree

import pytest
import torch

from midge.demos import label_bias, label_bias_report
from midge.demos.label_bias import CASES, Case, Config

SMALL = Config(vocab_size=3, num_labels=3, hidden_size=8, num_steps=2, batch_size=8)
STREAMING_LOCAL, STREAMING_GLOBAL, OFFLINE_LOCAL, OFFLINE_GLOBAL, SPARE = CASES


@pytest.fixture(scope="module")
def results():
    """The demonstration itself, trained once for all tests: about 10 s of one core."""
    return label_bias.run(Config())


@pytest.fixture(scope="module")
def small():
    return label_bias.run(SMALL)


def model(results, case):
    (found,) = [model for model in results.models if model.case == case]
    return found


def test_streaming_and_local_must_fail(results):
    found = model(results, STREAMING_LOCAL)
    bound = 4 * math.log(4)
    assert found.prediction.bound == pytest.approx(bound)
    assert bound - 1e-4 <= found.measurement.loss <= bound + 0.2  # it did learn what it can
    assert found.measurement.accuracy == 0.25  # over all inputs chance is exact


@pytest.mark.parametrize(
    "case", [STREAMING_GLOBAL, OFFLINE_LOCAL, OFFLINE_GLOBAL], ids=lambda case: case.name
)
def test_the_others_must_succeed(results, case):
    found = model(results, case).measurement
    assert found.loss < 0.05
    assert found.accuracy == found.best_path_accuracy == 1.0
    assert found.delay == pytest.approx(0.0, abs=1e-5)


def test_with_a_spare_frame_streaming_and_local_succeeds_by_waiting(results):
    found = model(results, SPARE).measurement
    assert found.loss < 0.05
    assert found.accuracy == 1.0
    assert found.delay == pytest.approx(1.0, abs=0.01)


def test_theory_and_measurement_agree(results):
    assert results.agrees
    assert len({found.measurement.num_parameters for found in results.models}) == 1


def test_only_the_global_model_revises(results):
    """Given frame 1 alone label 1 is open; frame 2 decides it for the global model alone."""
    local, globally = (revision.posteriors for revision in results.revisions)
    labels = [*results.utterance[1:], results.utterance[0]]
    for label in range(len(labels) - 1):
        first, *later = [heard[label] for heard in local[label:]]
        assert max(first) < 0.5
        for posterior in later:
            assert posterior == pytest.approx(first, abs=1e-5)
        first, *later = [heard[label] for heard in globally[label:]]
        assert max(first) < 0.6
        for posterior in later:
            assert posterior[labels[label] - 1] > 0.95


@pytest.mark.parametrize("seed", range(5))
def test_no_parameters_take_streaming_and_local_below_the_bound(seed):
    """The two statements of the theory hold for any parameters, however wild."""
    torch.manual_seed(seed)
    recognizer = label_bias.Recognizer(SMALL, STREAMING_LOCAL)
    for parameter in recognizer.parameters():
        torch.nn.init.normal_(parameter, std=3.0)
    found = label_bias.measure(SMALL, STREAMING_LOCAL, recognizer, label_bias.all_inputs(SMALL))
    assert found.loss >= 2 * math.log(3) - 1e-4
    assert found.accuracy == pytest.approx(1 / 3)


def test_without_context_global_fails_too():
    config = dataclasses.replace(SMALL, context_size=0, num_steps=40, learning_rate=0.1)
    inputs = label_bias.all_inputs(config)
    recognizer = label_bias.train(config, STREAMING_GLOBAL, inputs)
    found = label_bias.measure(config, STREAMING_GLOBAL, recognizer, inputs)
    prediction = label_bias.predict(config, STREAMING_GLOBAL)
    assert not prediction.can_succeed
    assert prediction.bound - 1e-4 <= found.loss <= prediction.bound + 0.5
    assert found.accuracy == pytest.approx(1 / 3)


def test_the_task():
    batch = label_bias.utterances(torch.tensor([[2, 0, 1]]), 3, num_spare_frames=1)
    assert batch.labels.tolist() == [[1, 2, 3]]  # symbols of frames 2, 3 and 1
    assert batch.frames.argmax(-1).tolist() == [[2, 0, 1, 0]]
    assert batch.frames.sum(-1).tolist() == [[1, 1, 1, 0]]  # silence is all zeros
    assert batch.num_frames.tolist() == [4] and batch.num_labels.tolist() == [3]


def test_all_inputs_are_there_once():
    inputs = label_bias.all_inputs(SMALL)
    assert inputs.shape == (27, 3)
    assert len(inputs.unique(dim=0)) == 27


@pytest.mark.parametrize("is_streaming", [True, False])
def test_a_streaming_encoder_does_not_hear_the_future(is_streaming):
    encoder = label_bias.WindowEncoder(4, 8, max_num_frames=5, is_streaming=is_streaming)
    frames = torch.rand(2, 5, 4)
    changed = frames.clone()
    changed[:, 3:] = torch.rand(2, 2, 4)
    same = (encoder(frames) == encoder(changed)).all(-1).all(0).tolist()
    assert same == [is_streaming] * 3 + [False] * 2


def test_the_same_seed_gives_the_same_results(small):
    again = label_bias.run(SMALL)
    other = label_bias.run(dataclasses.replace(SMALL, seed=1))
    losses = [[found.measurement.loss for found in run.models] for run in (small, again, other)]
    assert losses[0] == losses[1] != losses[2]
    assert small.revisions == again.revisions


def test_nothing_global_is_changed():
    num_threads, state = torch.get_num_threads(), torch.get_rng_state()
    label_bias.run(SMALL)
    assert torch.get_num_threads() == num_threads
    assert torch.equal(torch.get_rng_state(), state)


def test_the_pictured_utterance_is_not_trained_on(monkeypatch):
    pools = []
    train = label_bias.train
    monkeypatch.setattr(
        label_bias,
        "train",
        lambda config, case, pool, _: (pools.append(pool), train(config, case, pool))[1],
    )
    utterance = [symbol - 1 for symbol in label_bias.run(SMALL).utterance]
    assert len(pools) == len(CASES)
    assert all(len(pool) == 26 and utterance not in pool.tolist() for pool in pools)


def test_progress_is_told_of_every_step():
    notes = []
    label_bias.run(SMALL, notes.append)
    assert len(notes) == label_bias.num_training_steps(SMALL) == 10
    assert notes[0] == "streaming, local: loss 4.159"  # 3 log 4: three labels and blank, untrained


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"vocab_size": 1}, "vocab_size should be at least 2, got 1"),
        ({"num_steps": 0}, "num_steps should be at least 1, got 0"),
        ({"learning_rate": 0.0}, "learning_rate should be positive"),
        ({"learning_rate": math.nan}, "learning_rate should be positive"),
        ({"seed": -1}, "seed should be"),
        ({"num_labels": 20}, "should be at most 65536"),
    ],
)
def test_a_wrong_configuration_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        Config(**wrong)


def test_disagreement_is_told(small):
    """A few steps are too few to succeed, but the model that must fail fails at once."""
    assert not small.agrees
    assert model(small, STREAMING_LOCAL).agrees
    table = label_bias_report.table(small)
    assert "do NOT agree for: streaming, global; non-streaming, local" in table


@pytest.mark.parametrize(
    "case, change",
    [
        (STREAMING_LOCAL, {"loss": 5.0}),
        (STREAMING_LOCAL, {"accuracy": 0.3}),
        (STREAMING_GLOBAL, {"loss": 0.5}),
        (STREAMING_GLOBAL, {"loss": math.nan}),
        (OFFLINE_LOCAL, {"accuracy": 0.9}),
        (SPARE, {"delay": 0.5}),
    ],
)
def test_each_number_can_disagree(results, case, change):
    found = model(results, case)
    measurement = dataclasses.replace(found.measurement, **change)
    assert found.agrees
    assert not dataclasses.replace(found, measurement=measurement).agrees


def test_the_table_has_theory_beside_measurement(results):
    table = label_bias_report.table(results)
    (row,) = [line for line in table.splitlines() if line.startswith("streaming, local   ")]
    assert row.split()[2:8] == [">=", "5.545", f"{results.models[0].measurement.loss:.3f}"] + [
        "25.0%",
        "25.0%",
        "0.00",
    ]
    assert "agree for every model" in table
    assert max(map(len, table.splitlines())) <= 100


def test_the_files(results, tmp_path):
    written = label_bias_report.save(results, tmp_path / "new" / "folder")
    assert [path.name for path in written] == ["results.json", "label-bias.png", "label-bias.svg"]
    found = json.loads(written[0].read_text())
    assert found["agrees"] and found["config"]["seed"] == 0
    assert [entry["name"] for entry in found["models"]] == [case.name for case in CASES]
    assert found["models"][0]["prediction"]["bound"] == pytest.approx(4 * math.log(4))
    assert written[1].read_bytes().startswith(b"\x89PNG")
    assert xml.etree.ElementTree.parse(written[2]).getroot().tag.endswith("svg")


def test_the_same_results_give_the_same_picture(small, tmp_path):
    first, second = (label_bias_report.save(small, tmp_path / name)[2] for name in "ab")
    assert first.read_bytes() == second.read_bytes()


def test_names_are_different():
    assert len({case.name for case in CASES}) == len(CASES)
    assert Case(is_streaming=False, normalization="global").name == "non-streaming, global"
