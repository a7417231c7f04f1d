"""Recipes are what they claim, and every command that the documentation shows can be given."""

import dataclasses
import itertools
import json
import re
import shlex
from pathlib import Path

import pytest
import soundfile
import torch

import midge
from midge.audio import AugmentationConfig, FrontEnd, FrontEndConfig
from midge.cli import _parser, main
from midge.data.spoken import Voice, speak
from midge.encoders import ConformerConfig, LSTMConfig
from midge.models import LatticeConfig
from midge.tokens import TokensConfig
from midge.training import DataConfig, Recipe, TrainingConfig, read_recipe

ROOT = Path(__file__).parent.parent
RECIPES = sorted((ROOT / "recipes").rglob("*.toml"))
LIBRISPEECH = ROOT / "recipes/librispeech/streaming.toml"
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "recipes").rglob("*.md")),
    *sorted((ROOT / "experiments").glob("*.md")),
    *sorted((ROOT / "experiments/models").glob("*.md")),
    ROOT / "src/midge/models/default/README.md",
]
TINY_LATTICE = ("lattice.hidden_size=6", "lattice.embedding_size=4", "lattice.rnn_size=5")
TINY_ENCODER = (
    "encoder.num_layers=1",
    "encoder.size=16",
    "encoder.num_heads=2",
    "encoder.kernel_size=5",
    "encoder.projection_size=8",
)


def shown_commands(page: Path) -> list[list[str]]:
    """The arguments of every `midge` in the shell blocks of a page, also under torchrun."""
    blocks = re.findall(r"^```sh\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    words = [shlex.split(line, comments=True) for line in lines]
    return [line[line.index("midge") + 1 :] for line in words if "midge" in line]


COMMANDS = [
    pytest.param(arguments, id=f"{page.relative_to(ROOT)}: {' '.join(arguments)}")
    for page in PAGES
    for arguments in shown_commands(page)
]
TRAININGS = [each for each in COMMANDS if each.values[0][0] == "train"]


def shown_overrides(text: str) -> list[str]:
    return re.findall(r"--set (\S+?)`? ?(?=--set|\||`|$)", text)


def rows_of_table_1() -> list[dict[str, str]]:
    """Every row of the three parts of the table, by the headings of its columns."""
    text = (LIBRISPEECH.parent / "README.md").read_text()
    rows = []
    for table in re.findall(r"^\|.*overrides \|\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE):
        heading = text[: text.index(table)].splitlines()[-2]
        names = [cell.strip() for cell in heading.strip("|").split("|")]
        for line in table.splitlines():
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            rows.append(dict(zip(names, cells, strict=True)))
    return rows


def loss_of(recipe: Recipe) -> torch.Tensor:
    """[1] the loss of two labels over seven frames, by a lattice as the recipe says."""
    torch.manual_seed(0)
    lattice = recipe.lattice.build(vocab_size=3, input_size=4)
    labels, num_labels = torch.tensor([[1, 3]]), torch.tensor([2])
    losses: torch.Tensor = lattice(torch.randn(1, 7, 4), torch.tensor([7]), labels, num_labels)
    return losses


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_recipe_makes_a_model_that_has_a_loss(path):
    recipe = read_recipe(path, TINY_LATTICE)
    assert loss_of(recipe).isfinite().all()
    assert recipe.data.train_paths
    parts = path.relative_to(ROOT / "recipes").parts
    assert (path.parent / "README.md").exists()
    assert parts[0] in (ROOT / "recipes/README.md").read_text()


@pytest.mark.parametrize("model", [name for name in midge.NAMED_MODELS if name != "ce"])
@pytest.mark.parametrize("corpus", ["an4", "fsdd", "digit_strings", "librispeech"])
def test_another_model_is_one_override(corpus, model):
    path = ROOT / "recipes" / corpus / "streaming.toml"
    recipe = read_recipe(path, [f"lattice.model={model}", *TINY_LATTICE])
    assert recipe.lattice.parts() == midge.NAMED_MODELS[model]
    assert loss_of(recipe).isfinite().all()


def test_pages_show_commands():
    pages = {each.id.partition(":")[0] for each in COMMANDS}
    recipes = {str(path.parent.relative_to(ROOT) / "README.md") for path in RECIPES}
    assert recipes | {"README.md", "docs/training.md", "docs/data.md", "docs/recipes.md"} <= pages


@pytest.mark.parametrize("arguments", COMMANDS)
def test_a_shown_command_can_be_given(arguments):
    _parser().parse_args(arguments)


@pytest.mark.parametrize("arguments", TRAININGS)
def test_a_shown_training_has_a_recipe(arguments, monkeypatch):
    monkeypatch.chdir(ROOT)
    parsed = _parser().parse_args(arguments)
    recipe = read_recipe(parsed.recipe, [*parsed.overrides, *TINY_LATTICE])
    assert loss_of(recipe).isfinite().all()
    changed = {assignment.partition("=")[0] for assignment in parsed.overrides}
    assert len(changed) == len(parsed.overrides)


def test_a_wrong_override_would_be_noticed():
    with pytest.raises(ValueError, match="context_size"):
        read_recipe(LIBRISPEECH, ["lattice.context_sise=1"])


def test_table_1_is_whole():
    rows = rows_of_table_1()
    assert len(rows) == 30
    both = ("no", "yes")
    contexts = [f"{n}-gram" for n in "012M"]
    first = itertools.product(contexts, ("frame", "label frame"), both)
    assert [(r["context"], r["alignment"], r["streaming"]) for r in rows[:16]] == list(first)
    second = itertools.product(contexts[1:3], both, ("local", "global"))
    assert [(r["context"], r["streaming"], r["normalization"]) for r in rows[16:24]] == list(second)
    third = itertools.product(("unshared", "shared-emb", "shared-rnn"), ("local", "global"))
    assert [(r["weight function"], r["normalization"]) for r in rows[24:]] == list(third)
    models = {tuple(sorted(shown_overrides(row["overrides"]))) for row in rows}
    assert len(models) == 24


@pytest.mark.parametrize("row", rows_of_table_1(), ids=lambda row: " ".join(row.values()))
def test_overrides_of_table_1_are_the_row(row):
    recipe = read_recipe(LIBRISPEECH, [*shown_overrides(row["overrides"]), *TINY_LATTICE])
    context = row.get("context", "2-gram").removesuffix("-gram")
    weights = {"shared-emb": "shared-embedding"}.get(row.get("weight function", ""))
    local = "softmax" if row.get("normalization", "local") == "local" else "global"
    assert recipe.lattice.parts() == midge.ModelParts(
        context_size=None if context == "M" else int(context),
        alignment="label-frame" if row.get("alignment") == "label frame" else "frame",
        weights=weights or row.get("weight function", "shared-rnn"),
        normalization=local,
    )
    assert recipe.encoder.is_streaming == (row.get("streaming", "yes") == "yes")
    assert loss_of(recipe).isfinite().all()


def test_librispeech_has_the_figures_of_the_paper():
    recipe = read_recipe(LIBRISPEECH)
    encoder, training = recipe.encoder, recipe.training
    assert isinstance(encoder, ConformerConfig)
    assert (encoder.num_layers, encoder.size, encoder.output_size) == (12, 512, 640)
    assert recipe.lattice.parts() == midge.NAMED_MODELS["gnat"]
    sizes = (recipe.lattice.hidden_size, recipe.lattice.embedding_size, recipe.lattice.rnn_size)
    assert sizes == (640, 128, 640)
    assert training.learning_rate == pytest.approx(0.05 / 512**0.5, rel=1e-4)
    assert (training.schedule, training.warmup_steps) == ("transformer", 10_000)
    assert (training.adam_betas, training.adam_epsilon) == ((0.9, 0.98), 1e-9)
    assert recipe.data.max_labels == 384
    assert recipe.data.max_batch_size * training.accumulation == 2048


def test_librispeech_leaves_out_what_the_paper_does_and_cuts_no_batch_short():
    recipe = read_recipe(LIBRISPEECH)
    front_end, config = FrontEnd(recipe.front_end), recipe.front_end
    longest = 1961 * config.shift_size  # samples
    assert front_end.num_frames(longest, config.sample_rate) == recipe.data.max_frames
    too_long = longest + config.frame_size
    assert front_end.num_frames(too_long, config.sample_rate) > recipe.data.max_frames
    seconds = recipe.data.max_frames * front_end.frame_seconds - config.tail_padding
    assert recipe.data.max_batch_size * seconds <= recipe.data.batch_seconds


def test_streaming_and_full_context_differ_in_one_field():
    streaming, full = (
        read_recipe(ROOT / "recipes/an4" / f"{name}.toml") for name in ("streaming", "full_context")
    )
    assert streaming.encoder.is_streaming and not full.encoder.is_streaming
    encoder = dataclasses.replace(full.encoder, is_streaming=True)
    assert dataclasses.replace(full, encoder=encoder) == streaming


@pytest.mark.parametrize(
    "title, configs",
    [
        ("data", [DataConfig]),
        ("front_end", [FrontEndConfig]),
        ("tokens", [TokensConfig]),
        ("encoder", [ConformerConfig, LSTMConfig]),
        ("lattice", [LatticeConfig]),
        ("augmentation", [AugmentationConfig]),
        ("training", [TrainingConfig]),
    ],
)
def test_the_documented_fields_and_defaults_are_those_of_the_code(title, configs):
    text = (ROOT / "docs/recipes.md").read_text()
    section = text.split(f"\n## `[{title}]`\n")[1].split("\n## ")[0]
    shown = re.findall(r"^\| `(\w+)` \| (\S.*?) \| .+ \|$", section, flags=re.MULTILINE)
    fields = [field for config in configs for field in dataclasses.fields(config)]
    assert [name for name, _ in shown] == [field.name for field in fields]
    for (_, default), field in zip(shown, fields, strict=True):
        if field.default is dataclasses.MISSING:
            assert default == "required"
        elif field.default is None:
            assert default == "none"
        else:
            value = list(field.default) if isinstance(field.default, tuple) else field.default
            assert json.loads(default.strip("`")) == value, field.name


def write_librispeech(folder: Path, parts: dict[str, int]) -> None:
    """Parts in LibriSpeech's layout, each of as many utterances of synthetic speech."""
    texts = ("ONE TWO THREE", "FOUR FIVE", "SIX SEVEN EIGHT NINE", "ZERO")
    for number, (part, size) in enumerate(parts.items()):
        speaker = f"{100 + number}"
        chapter = folder / part / speaker / "7"
        chapter.mkdir(parents=True)
        lines = []
        for index, text in enumerate(itertools.islice(itertools.cycle(texts), size)):
            name = f"{speaker}-7-{index:04}"
            spoken = speak(text.split(), Voice(accent="en-us", pitch=40 + 3 * number))
            soundfile.write(chapter / f"{name}.flac", spoken.samples, spoken.sample_rate)
            lines.append(f"{name} {text}\n")
        (chapter / f"{speaker}-7.trans.txt").write_text("".join(lines))


@dataclasses.dataclass(frozen=True)
class Layout:
    """A corpus in LibriSpeech's layout."""

    folder: Path
    sizes: dict[str, int]
    """Utterances of each part."""
    tested: str
    """The part to evaluate on."""
    overrides: tuple[str, ...] = ()
    """Of the recipe, for other parts than LibriSpeech's own."""


def spoken_layout() -> Layout:
    """All parts that the recipe names, of synthetic speech."""
    data = read_recipe(LIBRISPEECH).data
    trained, held_out = (
        [path.name.removesuffix(".jsonl.gz") for path in paths]
        for paths in (data.train_paths, data.dev_paths)
    )
    sizes = {**dict.fromkeys(trained, 4), **dict.fromkeys(held_out, 2), "test-clean": 3}
    write_librispeech(Path("corpora/LibriSpeech"), sizes)
    return Layout(Path("corpora/LibriSpeech"), sizes, "test-clean")


def sample_layout(folder: Path) -> Layout:
    """Real files of LibriSpeech."""
    overrides = (
        "data.train=data/librispeech/train-clean-5.jsonl.gz",
        "data.dev=data/librispeech/heldout-sample.jsonl.gz",
    )
    sizes = {"heldout-sample": 20, "train-clean-5": 60}
    return Layout(folder, sizes, "heldout-sample", overrides)


SAMPLES = [
    path
    for path in (
        ROOT / "corpora/librispeech-sample/LibriSpeech",
        ROOT.parent / "shared/data/librispeech-sample/LibriSpeech",
    )
    if path.is_dir()
][:1]
"""Real files, where they are; synthetic speech is always tried."""


@pytest.mark.slow
@pytest.mark.parametrize("sample", [None, *SAMPLES], ids=["spoken", "sample"][: 1 + len(SAMPLES)])
def test_librispeech_end_to_end(sample, tmp_path, monkeypatch, capsys):
    """The recipe, tiny in size alone: from a corpus in LibriSpeech's layout to words."""
    monkeypatch.chdir(tmp_path)
    layout = spoken_layout() if sample is None else sample_layout(sample)
    corpus, sizes = layout.folder, layout.sizes
    assert main(["prepare", "librispeech", str(corpus), "data/librispeech", "--workers", "0"]) == 0
    report = json.loads(Path("data/librispeech/report.json").read_text())
    assert {name: split["num_utterances"] for name, split in report["splits"].items()} == sizes

    assigned = [*layout.overrides, *TINY_LATTICE, *TINY_ENCODER]
    assigned += ["training.num_steps=3", "training.evaluate_every=2", "training.accumulation=2"]
    assigned += ["training.device=cpu", "data.max_batch_size=4", "data.num_workers=0"]
    sets = [word for each in assigned for word in ("--set", each)]
    assert main(["train", str(LIBRISPEECH), "--output", "runs/librispeech", *sets]) == 0
    log = [json.loads(line) for line in Path("runs/librispeech/log.jsonl").read_text().splitlines()]
    kinds = [record["kind"] for record in log]
    assert kinds == ["start", "evaluation", "step", "evaluation", "finish"]
    assert log[2]["step"] == 3 and 0 < log[2]["loss"] < 10

    tested = f"data/librispeech/{layout.tested}.jsonl.gz"
    assert main(["evaluate", "runs/librispeech", tested, "--output", "results"]) == 0
    results = json.loads(Path("results/results.json").read_text())
    assert results["num_utterances"] == sizes[layout.tested] and not results["failed"]
    assert results["description"]["is_exact"]

    audio = sorted(map(str, corpus.glob(f"{layout.tested}/*/*/*.flac")))[:3]
    capsys.readouterr()
    assert main(["transcribe", "runs/librispeech", *audio, "--no-endpoints"]) == 0
    lines = capsys.readouterr().out.splitlines()
    hypotheses = map(json.loads, Path("results/hypotheses.jsonl").read_text().splitlines())
    heard = {each["id"]: each["hypothesis"] for each in hypotheses}
    expected = [heard[Path(name).stem] for name in audio]
    assert lines == [f"{name}\t{text}" for name, text in zip(audio, expected, strict=True)]
    samples, rate = soundfile.read(audio[0], dtype="float32")
    assert midge.load("runs/librispeech").transcribe(samples, rate).text == expected[0]
