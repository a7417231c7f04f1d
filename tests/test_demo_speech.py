"""The demonstration on speech, small: its parts, how it goes on, and its page."""

import base64
import dataclasses
import html.parser
import io
import re
import shlex
import time
import xml.etree.ElementTree
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from midge.cli import _parser, main
from midge.data import Utterance, WordTime
from midge.decoding import Evaluation, UtteranceResult
from midge.decoding.completions import wide_lattice
from midge.demos import (
    homophones,
    label_bias,
    label_bias_report,
    speech,
    speech_pictures,
    speech_posteriors,
    web_page,
)
from midge.demos.speech import Config, Plan, Times
from recognizers import noise, tiny_recognizer

RECIPE = """
[data]
train = "nothing"
batch_seconds = 10.0
num_workers = 0
[front_end]
num_mels = 20
[encoder]
kind = "lstm"
num_layers = 1
size = 16
[lattice]
context_size = 1
hidden_size = 12
embedding_size = 6
rnn_size = 8
[training]
num_steps = 30
learning_rate = 0.01
device = "cpu"
"""
SECTIONS = ["error-rates", "learning", "homophones", "decision", "alignment", "lattice"]
SECTIONS += ["commands", "next"]
KINDS = ("step", "evaluation")


class Page(html.parser.HTMLParser):
    """What a page refers to, and whether its tags are closed in order."""

    VOID = frozenset({"meta", "img", "br"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.sources: list[str] = []
        self.alternatives: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        if tag not in self.VOID:
            self.open.append(tag)
        self.ids += [found["id"]] if "id" in found else []
        self.links += [found["href"]] if "href" in found else []
        self.sources += [found["src"]] if "src" in found else []
        self.alternatives += [found["alt"]] if tag == "img" else []

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A demonstration of a few steps, as the command makes it."""
    folder = tmp_path_factory.mktemp("speech")
    (folder / "recipe.toml").write_text(RECIPE)
    config = label_bias.Config(vocab_size=2, num_labels=2, hidden_size=4, num_steps=1)
    results = dataclasses.replace(label_bias.run(config), config=label_bias.Config())
    label_bias_report.save(results, folder / "demo")
    options = ["--minutes=0.3", "--num-dev=6", "--num-test=8", "--num-steps=2"]
    arguments = ["demo", f"--output={folder}/demo", f"--recipe={folder}/recipe.toml", *options]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["midge", *arguments])
        assert main(arguments) == 1  # the saved results do not agree with the theory
    return folder / "demo", arguments


@pytest.mark.slow
def test_the_page_is_whole(made):
    folder, arguments = made
    page = Page((folder / "report.html").read_text())
    assert page.open == []
    assert page.ids == ["label-bias", *SECTIONS]
    assert page.links == [f"#{name}" for name in page.ids]  # and none that leads outside
    assert len(page.alternatives) == 6 and all(page.alternatives)
    assert " ".join(["midge", *arguments]) in page.text
    assert page.text.count("synthetic") >= 10


@pytest.mark.slow
def test_every_picture_and_sound_is_in_the_page(made):
    page = Page((made[0] / "report.html").read_text())
    kinds = []
    for source in page.sources:
        kind, data = re.fullmatch(r"data:(.+);base64,(.+)", source).groups()
        decoded = base64.b64decode(data, validate=True)
        kinds.append(kind)
        if kind == "audio/flac":
            samples, rate = soundfile.read(io.BytesIO(decoded))
            assert rate == 16000 and len(samples) > 1000
        else:
            assert xml.etree.ElementTree.fromstring(decoded).tag.endswith("svg")
            assert b"prefers-color-scheme: dark" in decoded
    assert sorted(kinds) == ["audio/flac", *["image/svg+xml"] * 6]
    assert "http" not in re.sub(r"base64,[^\"]+", "", (made[0] / "report.html").read_text())


@pytest.mark.slow
def test_both_models_are_trained_alike(made):
    logs = [
        speech.read_log(made[0] / "speech" / name / "log.jsonl") for name in ("local", "global")
    ]
    recipes = [log[0]["recipe"] for log in logs]
    assert [recipe["lattice"].pop("normalization") for recipe in recipes] == ["hat", "global"]
    assert recipes[0] == recipes[1]
    for log in logs:
        assert [line["step"] for line in log if line["kind"] == "step"] == [1, 2]
        assert [line["step"] for line in log if line["kind"] == "evaluation"] == [1, 2]


@pytest.mark.slow
def test_nothing_is_repeated(made, capsys):
    folder, arguments = made
    kept = {
        path: path.stat().st_mtime_ns for path in (folder / "speech").rglob("*") if path.is_file()
    }
    page = (folder / "report.html").read_text()
    assert main(arguments) == 1
    captured = capsys.readouterr()
    assert "step 1/" not in captured.err and "label bias is done" in captured.err
    assert "digits" in captured.out and "homophones" in captured.out and "said" in captured.out
    changed = {p for p, at in kept.items() if p.stat().st_mtime_ns != at}
    assert changed == set()
    # The command is that of the test run this time; all else is the same to the byte.
    assert (
        page.split("<section")[:-2] == (folder / "report.html").read_text().split("<section")[:-2]
    )


@pytest.mark.slow
def test_other_settings_need_another_folder(made, capsys):
    folder, arguments = made
    assert main([*arguments, "--minutes=0.4"]) == 2
    assert "other settings (minutes)" in capsys.readouterr().err


@pytest.mark.slow
def test_the_time_of_a_step_is_measured(made):
    folder, _ = made
    job = speech.Job(Config(recipe=str(folder.parent / "recipe.toml")), folder / "speech")
    before = time.perf_counter()
    times = speech.measured(job, "global")
    spent = time.perf_counter() - before
    assert min(times.start, times.step, times.evaluation) > 0
    assert times.start + 8 * times.step + times.evaluation < spent  # 8 of the 12 steps are timed
    assert not list(job.folder.glob("measured-*"))


def test_again_removes_nothing_but_its_own(tmp_path):
    (tmp_path / "recipe.toml").write_text(RECIPE)
    config = Config(recipe=str(tmp_path / "recipe.toml"))
    folder = tmp_path / "speech"
    folder.mkdir()
    (folder / "mine").touch()
    speech.prepare(config, folder, is_again=True)
    assert (folder / "mine").exists()
    speech.prepare(config, folder, is_again=True)  # now it is a folder of the demonstration
    assert not (folder / "mine").exists() and (folder / "settings.json").exists()


def test_a_changed_recipe_is_told(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)
    config = Config(recipe=str(path))
    speech.prepare(config, tmp_path / "speech")
    speech.prepare(config, tmp_path / "speech")
    path.write_text(RECIPE.replace("size = 16", "size = 24"))
    with pytest.raises(ValueError, match=r"other settings \(recipe\)"):
        speech.prepare(config, tmp_path / "speech")


@pytest.mark.parametrize(
    "step, seconds, num_steps, told",
    [
        (0.1, 240.0, 600, "all 600 of the recipe fit"),
        (0.5, 240.0, 316, "at most the 600 of the recipe"),
        (100.0, 240.0, 20, "a slower machine gets fewer"),
        (0.1, 1.0, 20, "a slower machine gets fewer"),
    ],
)
def test_the_steps_fit_the_time(step, seconds, num_steps, told):
    times = {name: Times(start=8.0, step=step, evaluation=1.0) for name in ("local", "global")}
    plan = speech.fitting_plan(times, 600, seconds, num_cores=2)
    assert plan.num_steps == num_steps
    assert told in plan.reason and f"{step:.2f} s (global)" in plan.reason


def test_a_plan_is_kept(tmp_path):
    job = speech.Job(Config(num_steps=7), tmp_path)
    told = []
    assert speech.planned(job, told.append) == Plan(7, "as asked for")
    (tmp_path / "plan.json").write_text('{"num_steps": 9, "reason": "planned before"}')
    assert speech.planned(job, told.append) == Plan(9, "planned before")
    assert told == [
        "7 steps for each model: as asked for",
        "9 steps for each model: planned before",
    ]


def test_what_is_done_can_be_typed(tmp_path, monkeypatch):
    """The commands of the page are understood, and train the same models."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.toml").write_text(RECIPE)
    job = speech.Job(Config(recipe="recipe.toml", overrides=("encoder.size=24",)), tmp_path / "a b")
    lines = job.commands(Plan(50, "as asked for"))
    assert [line.split()[1] for line in lines] == ["prepare", "train", "train", *["evaluate"] * 4]
    assert "--minutes=30 --num-dev=60 --num-test=240 --seed=0" in lines[0]
    recipe = job.recipe("local", 50)
    assert recipe.encoder.size == 24 and recipe.training.evaluate_every == 9
    assert recipe.lattice.normalization == "hat" and recipe.training.num_steps == 50
    assert f"'--output={tmp_path}/a b/local'" in lines[1]
    assert "--set=lattice.normalization=hat" in lines[1]
    for line in lines:
        assert _parser().parse_args(shlex.split(line)[1:]).run


def test_the_recipe_of_the_demonstration():
    config = Config(recipe=str(Path(__file__).parent.parent / Config().recipe))
    local, other = (speech.Job(config, Path("x")).recipe(name, 60) for name in ("local", "global"))
    assert local.encoder.is_streaming and other.lattice.normalization == "global"
    assert local.data.train == str(Path("x/data/train.jsonl.gz"))


def test_a_recipe_that_does_not_fit_is_told(tmp_path, monkeypatch, capsys):
    (tmp_path / "recipe.toml").write_text(RECIPE)
    options = ["--minutes=0.1", "--num-dev=1", "--num-test=1", "--num-steps=1"]
    options += [f"--recipe={tmp_path}/recipe.toml", f"--output={tmp_path}/demo"]
    assert main(["demo", "speech", *options, "--set=lattice.context_size=full"]) == 2
    error = capsys.readouterr().err
    assert "midge: error: " in error and "Traceback" not in error


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"minutes": 0.0}, "minutes should be positive, got 0.0"),
        ({"train_seconds": float("nan")}, "train_seconds should be positive"),
        ({"num_steps": 0}, "num_steps should be at least 1, got 0"),
        ({"num_test": 0}, "num_test should be at least 1, got 0"),
        ({"seed": -1}, "seed should be at least 0, got -1"),
    ],
)
def test_a_wrong_configuration_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        Config(**wrong)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["demo"], "there is no recipes/spoken/streaming.toml; run this in the folder of midge"),
        (["demo", "speech", "--recipe", "missing.toml"], "there is no missing.toml"),
        (["demo", "--minutes", "3", "label-bias"], "--minutes does not go with label-bias"),
        (["demo", "--set", "a.b=1", "label-bias"], "--set does not go with label-bias"),
        (["demo", "--again", "label-bias"], "--again does not go with label-bias"),
        (["demo", "speech", "--num-steps", "0"], "num_steps should be at least 1, got 0"),
    ],
)
def test_a_mistake_is_told_before_the_work(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_option_may_stand_before_the_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.toml").write_text("[training]\nnum_step = 1\n")
    assert main(["demo", "--recipe", "recipe.toml", "--output", "there", "speech"]) == 2
    assert "num_step" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["there"]


def recording(folder, seconds=0.2):
    path = folder / "a.wav"
    soundfile.write(path, noise(seconds, seed=3), 8000)
    return Utterance(id="a", audio=str(path), duration=seconds, text="ONE TWO")


@pytest.mark.parametrize("normalization", ["global", "hat"])
def test_a_decision_is_the_posterior_of_the_first_label(normalization, tmp_path, one_thread):
    """Where two words differ from the first letter on, the lattice's own marginals say the same."""
    recognizer = tiny_recognizer(normalization=normalization)
    utterance = recording(tmp_path)
    found = speech_posteriors.decision(recognizer, utterance, ("ONE", "TWO"))
    assert found.prefixes == ("O", "T")
    frames = speech_posteriors.encoded(recognizer, utterance)
    labels = [recognizer.tokens.encode(letter)[0] - 1 for letter in "OT"]
    for heard in range(1, len(frames) + 1):
        arcs = recognizer.lattice.arc_marginals(frames[:heard], torch.tensor(heard))
        first = arcs.lexical[:, 0].sum(0)[labels]  # only the first label leaves the empty history
        np.testing.assert_allclose(found.probabilities[heard - 1], first, atol=1e-5)
    assert found.times[0] == pytest.approx(recognizer.front_end.frame_seconds)


def test_only_a_global_decision_can_fall(tmp_path, one_thread):
    falls = {}
    for normalization in ("global", "hat", "softmax"):
        found = speech_posteriors.decision(
            tiny_recognizer(seed=2, normalization=normalization),
            recording(tmp_path),
            ("ONE", "TWO"),
        )
        falls[normalization] = np.diff(found.probabilities, axis=0).min()
    assert falls["hat"] > -1e-9 and falls["softmax"] > -1e-9
    assert falls["global"] < -0.1


@torch.no_grad()
def test_a_decision_between_longer_beginnings(tmp_path, one_thread):
    """All texts that begin with O are those that go on with some letter, and O itself."""
    recognizer = tiny_recognizer()
    found = speech_posteriors.decision(recognizer, recording(tmp_path), ("ONE", "OWN"))
    assert found.prefixes == ("ON", "OW")
    wide = wide_lattice(recognizer.lattice)
    frames = speech_posteriors.encoded(recognizer, recording(tmp_path))
    (first,) = recognizer.tokens.encode("O")
    labels = range(1, 1 + recognizer.tokens.vocab_size)
    masses = speech_posteriors.prefix_masses(wide, frames, [[first], *([first, x] for x in labels)])
    count, string = torch.tensor(len(frames)), torch.tensor([first])
    alone = recognizer.lattice(frames, count, string, torch.tensor(1)).neg().exp().item()
    assert sum(masses[1:]) + alone == pytest.approx(masses[0], abs=1e-5)
    assert found.probabilities[-1, 0] == masses[recognizer.tokens.encode("N")[0]]


def test_words_that_do_not_differ_are_refused():
    with pytest.raises(ValueError, match="beginning of the other"):
        speech_posteriors.distinct_prefixes("FOR", "FORTY")


def test_label_posteriors_are_those_of_all_paths(tmp_path, one_thread):
    recognizer = tiny_recognizer()
    found = speech_posteriors.label_posteriors(recognizer, recording(tmp_path))
    frames = speech_posteriors.encoded(recognizer, recording(tmp_path))
    arcs = recognizer.lattice.arc_marginals(frames, torch.tensor(len(frames)))
    assert found.labels.shape == (len(frames), recognizer.tokens.vocab_size)
    np.testing.assert_allclose(found.labels.sum(1) + arcs.blank.sum(-1).numpy(), 1.0, atol=1e-5)


def test_the_lattice_of_the_first_word(tmp_path, one_thread):
    recognizer = tiny_recognizer()
    found = speech_posteriors.first_word_lattice(recognizer, recording(tmp_path))
    (end,) = found.final_weights
    assert "ONE" in found.state_names[end]
    assert {found.symbols[arc.input_label] for arc in found.arcs} <= {"ε", "O", "N", "E"}


def pair(name, words):
    return [
        Utterance(id=f"{name}-{word}", audio="", duration=1, text=text, group={"pair": name})
        for word, text in zip(name.split("/"), words, strict=True)
    ]


def test_every_picture_says_that_the_speech_is_synthetic():
    times = np.array([0.1, 0.2])
    words = (WordTime("WRITE", 0.0, 0.1),)
    sound = speech_pictures.Sound(np.zeros((20, 4)), seconds=0.2, recorded=0.2, words=words)
    posteriors = speech_posteriors.LabelPosteriors(times, np.full((2, 1), 0.5), ("W",))
    decided = speech_posteriors.Decision(times, np.full((2, 2), 0.5), ("W", "R"))
    log = [{"kind": kind, "step": 1, "loss": 1.0, "word_error_rate": 0.5} for kind in KINDS]
    result = UtteranceResult(id="a", reference="A", hypothesis="A", seconds=1.0)
    evaluation = Evaluation(results=(result,), decode_seconds=1.0)
    models = ("local", "global")
    for figure in (
        speech_pictures.learning_curves(dict.fromkeys(models, log)),
        speech_pictures.error_rates(dict.fromkeys(models, evaluation), ["all"]),
        speech_pictures.alignment_posteriors(sound, dict.fromkeys(models, posteriors)),
        speech_pictures.decisions([sound, sound], dict.fromkeys(models, [decided, decided])),
    ):
        texts = [(axes.get_title(loc="left"), axes.get_xlabel()) for axes in figure.axes]
        assert any("synthetic" in text for pair in texts for text in pair)


def test_pairs_are_found():
    other = Utterance(id="x", audio="", duration=1, text="ONE", group={"kind": "digits"})
    first = pair("WRITE/RIGHT", ["WRITE BOOKS", "RIGHT TURN"])
    second = pair("CITE/SIGHT", ["CITE LAWS", "SIGHT TEST"])
    found = homophones.pairs_of([*first, *second, other])
    assert [each.words for each in found] == [("WRITE", "RIGHT"), ("CITE", "SIGHT")]
    assert [each.utterances for each in found] == [tuple(first), tuple(second)]


def test_first_words_are_counted():
    test = pair("WRITE/RIGHT", ["WRITE BOOKS", "RIGHT TURN"])
    test += pair("CITE/SIGHT", ["CITE LAWS", "SIGHT TEST"])
    said = ["WRITE BOOK", "WRITE TURN", "", "RIGHT TEST"]
    results = [
        UtteranceResult(id=each.id, reference=each.text, hypothesis=text, seconds=1)
        for each, text in zip(test, said, strict=True)
    ]
    found = homophones.first_words(results, homophones.pairs_of(test))
    assert found == homophones.FirstWords(num_right=1, num_swapped=1, num_other=2)


def test_a_page_escapes_what_it_is_given():
    section = web_page.Section("a", "<b> & co", web_page.commands(["x < y"]))
    text = web_page.page("1 < 2", web_page.paragraphs("so"), [section])
    page = Page(text)
    assert page.open == [] and "<b> & co" in page.text and "x < y" in page.text
    assert "prefers-color-scheme: dark" in text and 'name="viewport"' in text


def test_only_known_colours_change():
    svg = '<svg><path style="fill: #222222; stroke: #123456"/></svg>'
    changed = web_page.with_dark_colours(svg)
    assert "fill: var(--c222222, #222222); stroke: #123456" in changed
    assert changed.count("<style>") == 1
