"""The parts of training, each alone."""

import importlib
import io
import json
import math

import pytest
import torch

from midge.alignments import FrameDependent, LabelDependent, LabelFrameDependent
from midge.data import Utterance
from midge.models import LatticeConfig, Recognizer, named_model
from midge.tokens import build_tokens
from midge.training import DataConfig, TrainingConfig, initialize_blank
from midge.training.averaging import Averaging
from midge.training.corpus import Room, least_frames, read_utterances, training_corpus
from midge.training.diagnostics import diagnose, labels_per_frame
from midge.training.distributed import ProcessGroup, process_group
from midge.training.estimate import check_context, saved_bytes
from midge.training.initialization import start_from
from midge.training.logs import Display, RunLog, cut_log
from midge.training.output_layer import output_parameters
from midge.training.updates import step_seed
from training_cases import tiny_recipe, write_corpus

MODELS = {
    "global": {},
    "softmax": {"normalization": "softmax"},
    "hat": {"normalization": "hat"},
    "k": {"alignment": "label-frame", "max_labels_per_frame": 2},
    "k-softmax": {
        "alignment": "label-frame",
        "max_labels_per_frame": 2,
        "normalization": "softmax",
    },
    "k-hat": {"alignment": "label-frame", "max_labels_per_frame": 3, "normalization": "hat"},
    "unshared": {"weights": "unshared"},
    "shared-embedding": {"weights": "shared-embedding"},
}


def zero_lattice(**changes):
    """A lattice whose scores are its output bias alone."""
    parts = named_model("gnat", context_size=1, **changes)
    lattice = parts.build(5, 3, hidden_size=4, embedding_size=4, rnn_size=4)
    with torch.no_grad():
        for name, parameter in output_parameters(lattice.weights).items():
            if not name.endswith("bias"):
                parameter.zero_()
    return lattice


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("rate", [0.05, 0.3, 0.8])
def test_the_blank_bias_starts_at_the_rate_of_labels(name, rate):
    lattice = zero_lattice(**MODELS[name])
    initialize_blank(lattice, rate)
    assert labels_per_frame(lattice, torch.randn(7, 3)) == pytest.approx(rate, abs=1e-4)


def test_the_blank_bias_of_an_unbounded_lattice_is_a_geometric_mean():
    lattice = named_model("rnn-t").build(5, 3, hidden_size=4, embedding_size=4, rnn_size=4)
    initialize_blank(lattice, 2.0)
    bias = lattice.weights.joint.output.bias
    blank = bias.softmax(0)[0].item()
    assert (1 - blank) / blank == pytest.approx(2.0)


def test_a_rate_of_nothing_is_refused_and_no_blank_is_left_alone():
    with pytest.raises(ValueError, match="labels_per_frame should be"):
        initialize_blank(zero_lattice(), 0.0)
    without = zero_lattice(alignment="frame-without-blank")
    before = without.weights.joint.output.bias.clone()
    initialize_blank(without, 0.3)
    assert torch.equal(before, without.weights.joint.output.bias)


@pytest.mark.parametrize("weights", ["shared-rnn", "shared-embedding", "unshared"])
def test_the_output_layer_is_where_arc_weights_are_made(weights):
    lattice = named_model("gnat", context_size=1, weights=weights).build(
        5, 3, hidden_size=4, embedding_size=4, rnn_size=4
    )
    names = output_parameters(lattice.weights)
    if weights == "unshared":
        assert set(names) == {"weight", "bias"}
    else:
        assert set(names) == {"joint.output.weight", "joint.output.bias"}


def test_diagnostics_agree_with_the_loss():
    torch.manual_seed(1)
    lattice = named_model("gnat", context_size=1).build(
        3, 4, hidden_size=5, embedding_size=4, rnn_size=4
    )
    frames, labels = torch.randn(9, 4), torch.tensor([1, 3, 3])
    found = diagnose(lattice, frames, labels)
    loss = lattice(frames, torch.tensor(9), labels, torch.tensor(3))
    assert 3 * (found.denominator - found.numerator) == pytest.approx(loss.item(), abs=1e-4)
    assert found.labels_per_frame == pytest.approx(
        lattice.arc_marginals(frames, torch.tensor(9)).lexical.sum().item() / 9, abs=1e-5
    )
    with torch.no_grad():
        before = found.max_arc_weight
        lattice.weights.joint.output.bias.add_(100.0)  # cancels in the loss; the log shows it
    assert diagnose(lattice, frames, labels).max_arc_weight > before + 90


@pytest.mark.parametrize("model", ["hat", "las", "ctc"])
def test_diagnostics_serve_every_model(model):
    lattice = named_model(model).build(3, 4, hidden_size=5, embedding_size=4, rnn_size=4)
    found = diagnose(lattice, torch.randn(9, 4), torch.tensor([1, 3, 2]))
    assert found.denominator == 0 and found.numerator < 0 and found.max_arc_weight > 0
    assert (found.labels_per_frame is None) == (model != "ctc")


def test_an_exponential_mean_and_a_plain_one():
    line = torch.nn.Linear(1, 1, bias=False)
    config = TrainingConfig(num_steps=6, averaging="last", averaging_steps=3)
    last = Averaging(line, config)
    exponential = Averaging(line, TrainingConfig(averaging="exponential", averaging_decay=0.25))
    expected = 0.0
    for step in range(1, 7):
        with torch.no_grad():
            line.weight.fill_(float(step))
        last.update(step)
        exponential.update(step)
        decay = min(0.25, (1 + step) / (10 + step))
        expected = 1.0 if step == 1 else decay * expected + (1 - decay) * step
        assert bool(last.tensors) == (step > 3)
    assert last.tensors["weight"].item() == pytest.approx(5.0)
    assert exponential.tensors["weight"].item() == pytest.approx(expected)
    with last.applied():
        assert line.weight.item() == pytest.approx(5.0)
    assert line.weight.item() == 6.0


def test_a_context_that_cannot_fit_is_refused_with_the_fix_named():
    with pytest.raises(ValueError, match="262,657 states") as error:
        check_context(LatticeConfig(model="gnat"), vocab_size=512)
    assert "lattice.context_size=1" in str(error.value)
    assert "at most 321 tokens" in str(error.value)
    assert "graphemes" not in str(error.value)
    with pytest.raises(ValueError, match="vocab_size=321, or graphemes"):
        check_context(LatticeConfig(model="gnat"), vocab_size=512, num_characters=28)
    with pytest.raises(ValueError) as error:  # no number of tokens would do
        check_context(LatticeConfig(model="gnat"), vocab_size=5000, num_characters=4000)
    assert "tokens" not in str(error.value) and "context_size=1" in str(error.value)
    check_context(LatticeConfig(model="gnat", context_size=1), vocab_size=512)
    check_context(LatticeConfig(model="gnat"), vocab_size=321)
    check_context(LatticeConfig(model="rnn-t"), vocab_size=4096)
    with pytest.raises(ValueError, match="context_size='full'"):
        check_context(LatticeConfig(model="gnat", normalization="hat"), vocab_size=512)


def test_the_memory_of_an_encoder_is_found_by_running_it(tmp_path):
    encoder = tiny_recipe(write_corpus(tmp_path)).encoder.build(24)
    short, long = saved_bytes(encoder, 10), saved_bytes(encoder, 100)
    # An LSTM keeps at least input, gates and output of every frame, and nothing grows faster.
    assert 5 * short < long < 11 * short
    assert 100 * 4 * (24 + 4 * 16 + 16) <= long <= 100 * 4 * 4 * (24 + 4 * 16 + 16)


@pytest.mark.parametrize(
    "alignment, deduplicate, least",
    [
        (FrameDependent(), False, 4),
        (FrameDependent(), True, 5),
        (LabelFrameDependent(3), False, 2),
        (LabelFrameDependent(None), False, 1),
        (LabelDependent(9), False, 1),
    ],
)
def test_the_fewest_frames(alignment, deduplicate, least):
    assert least_frames([1, 2, 2, 3], alignment, deduplicate) == least
    room = Room(alignment, deduplicate)
    assert room([1, 2, 2, 3], least) and not room([1, 2, 2, 3], least - 1)


def small_recognizer(folder, *assignments, texts=("AB C",)):
    recipe = tiny_recipe(write_corpus(folder), None, *assignments)
    tokens = build_tokens(recipe.tokens, [(text, text) for text in texts])
    torch.manual_seed(len(assignments))
    return Recognizer(recipe.recognizer, tokens)


def test_utterances_without_room_are_left_out_by_reason(tmp_path):
    recognizer = small_recognizer(tmp_path)
    made = [
        Utterance(id="good", audio="x", duration=1.0, text="AB"),
        Utterance(id="long", audio="x", duration=9.0, text="AB"),
        Utterance(id="wordy", audio="x", duration=3.0, text="ABC " * 20),
        Utterance(id="fast", audio="x", duration=0.1, text="ABCABCABC"),
    ]
    config = DataConfig(train="x", max_frames=400, max_labels=60)
    corpus = training_corpus(made, recognizer, config, fastest_speed=2.0)
    assert [each.id for each in corpus.utterances] == ["good"]
    assert sorted(corpus.left_out.values()) == [["fast"], ["long"], ["wordy"]]
    # 100 ms and 100 ms of tail are 10 frames of 20 ms; at double speed 8.
    easier = training_corpus(made, recognizer, DataConfig(train="x"), fastest_speed=1.0)
    assert len(easier.utterances) == 4
    assert corpus.labels_per_frame == pytest.approx(2 / 55)
    with pytest.raises(ValueError, match="got none .*more than 1 labels: 4"):
        training_corpus(made, recognizer, DataConfig(train="x", max_labels=1))


def test_an_id_in_two_manifests_is_refused(tmp_path):
    manifest = write_corpus(tmp_path)
    with pytest.raises(ValueError, match="u0-00"):
        read_utterances([manifest, manifest])


def test_a_model_with_other_labels_keeps_what_fits(tmp_path):
    old = small_recognizer(tmp_path / "a", texts=("ABC",))
    old.front_end.fit([torch.randn(50, 12)])
    old.save(tmp_path / "model")
    new = small_recognizer(tmp_path / "b", "training.seed=1", texts=("BCX",))
    fresh = {name: x.clone() for name, x in new.state_dict().items()}
    told = start_from(new, tmp_path / "model")
    assert "2 are in both" in told
    theirs, ours = old.state_dict(), new.state_dict()
    for name in ours:
        if name.startswith(("encoder.", "front_end.", "lattice.weights.rnn.")):
            assert torch.equal(ours[name], theirs[name]), name
    for name in ("lattice.weights.embedding.weight", "lattice.weights.joint.output.weight"):
        # Ours are B C X, theirs A B C; row 0 is of no label.
        assert torch.equal(ours[name][[0, 1, 2]], theirs[name][[0, 2, 3]])
        assert torch.equal(ours[name][3], fresh[name][3])


def test_parameters_of_states_are_fresh_with_other_labels(tmp_path):
    change = "lattice.weights=unshared"
    small_recognizer(tmp_path / "a", change, texts=("ABC",)).save(tmp_path / "model")
    new = small_recognizer(tmp_path / "b", change, "training.seed=1", texts=("BCX",))
    before = new.lattice.weights.weight.clone()
    told = start_from(new, tmp_path / "model")
    assert torch.equal(new.lattice.weights.weight, before)
    assert "fresh are lattice.weights.weight, lattice.weights.bias" in told


def test_a_model_with_another_encoder_is_refused(tmp_path):
    small_recognizer(tmp_path / "a").save(tmp_path / "model")
    new = small_recognizer(tmp_path / "b", "encoder.size=8", "encoder.num_layers=1")
    with pytest.raises(ValueError, match="another encoder"):
        start_from(new, tmp_path / "model")


def test_a_log_is_cut_back_to_a_step(tmp_path):
    log = RunLog(tmp_path / "log.jsonl")
    for step in (0, 2, 4):
        log.write("step", step=step, loss=math.inf if step == 2 else 1.0)
    log.close()
    with open(tmp_path / "log.jsonl", "a") as file:
        file.write('{"kind": "st')  # killed here
    cut_log(tmp_path / "log.jsonl", 2)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 2]
    assert lines[1]["loss"] is None
    cut_log(tmp_path / "nothing.jsonl", 2)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorboard.*")
def test_tensorboard_has_the_numbers_of_the_log(tmp_path):
    events = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    log = RunLog(tmp_path / "log.jsonl", tmp_path / "events")
    log.write("step", step=3, loss=0.5)
    log.close()
    found = events.EventAccumulator(str(tmp_path / "events"))
    found.Reload()
    (scalar,) = found.Scalars("step/loss")
    assert (scalar.step, scalar.value) == (3, 0.5)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_is_plain_lines_in_a_file_and_live_on_a_terminal():
    times = iter(range(100))
    plain = io.StringIO()
    with Display(10, 2, stream=plain, clock=lambda: float(next(times))) as display:
        display.advance(3, "loss 1", is_logged=False)
        display.advance(4, "loss 2", is_logged=True)
        display.tell("[a note]")
    assert plain.getvalue() == "step 4/10, loss 2, 0:03 left\n[a note]\n"
    live = Terminal()
    with Display(10, 2, stream=live) as display:
        display.advance(4, "loss 2", is_logged=False)
        display.tell("[a note]")
    assert "4/10" in live.getvalue() and "loss 2" in live.getvalue()
    assert "[a note]" in live.getvalue()
    silent = io.StringIO()
    with Display(10, stream=silent, is_silent=True) as display:
        display.advance(4, "loss 2", is_logged=True)
        display.tell("a note")
    assert silent.getvalue() == ""


def test_one_process_alone_is_a_group():
    with process_group("cpu") as group:
        assert group == ProcessGroup()
        assert group.sum(1, 2.5) == [1.0, 2.5]
        assert group.gather(["a"]) == ["a"]
        used, unused = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
        used.grad = torch.ones(2)
        group.sum_gradients([used, unused])
        assert used.grad.tolist() == [1, 1] and unused.grad.tolist() == [0, 0]


def test_a_missing_graphics_processor_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="device should be"), process_group("cuda"):
        pass


def test_seeds_differ_by_step_and_process():
    seeds = {step_seed(s, t, r) for s in range(3) for t in range(5) for r in range(3)}
    assert len(seeds) == 45
    assert all(0 <= seed < 2**63 for seed in seeds)
