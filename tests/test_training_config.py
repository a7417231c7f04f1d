"""Recipes: what is refused, what a file and --set give, and what may change between two runs."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midge.configuration import from_table, to_table, to_toml
from midge.encoders import ConformerConfig, LSTMConfig
from midge.training import DataConfig, Recipe, TrainingConfig, read_recipe
from midge.training.config import RESUMABLE, differences
from midge.training.schedules import learning_rate


@pytest.mark.parametrize(
    "field, value",
    [
        ("num_steps", 0),
        ("learning_rate", 0.0),
        ("adam_betas", (0.9,)),
        ("adam_betas", (0.9, 1.0)),
        ("averaging_decay", 1.0),
        ("clip_norm", -1.0),
        ("patience", 0),
        ("num_warmup_steps", -1),
        ("delay_penalty", -0.1),
        ("seed", -1),
        ("keep_checkpoints", 0),
    ],
)
def test_a_wrong_value_is_refused_by_name(field, value):
    with pytest.raises(ValueError, match=f"{field} should be"):
        TrainingConfig(**{field: value})


@pytest.mark.parametrize(
    "field, value", [("train", ()), ("batch_seconds", 0.0), ("max_frames", 0), ("num_workers", -1)]
)
def test_wrong_data_is_refused_by_name(field, value):
    with pytest.raises(ValueError, match=f"{field} should be"):
        DataConfig(**{"train": "cuts", field: value})


def test_a_file_and_assignments_make_a_recipe(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text(
        '[data]\ntrain = ["a.jsonl", "b.jsonl"]\ndev = "c.jsonl"\n'
        '[encoder]\nkind = "lstm"\nsize = 7\n[training]\nnum_steps = 9\n'
    )
    recipe = read_recipe(path, ["training.seed=3", "lattice.model=ctc"])
    assert [str(each) for each in recipe.data.train_paths] == ["a.jsonl", "b.jsonl"]
    assert [str(each) for each in recipe.data.dev_paths] == ["c.jsonl"]
    assert recipe.encoder == LSTMConfig(size=7)
    assert (recipe.training.num_steps, recipe.training.seed) == (9, 3)
    assert recipe.recognizer.lattice.parts().deduplicate


def test_a_wrong_field_lists_the_right_ones(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text('data.train = "a"\n')
    with pytest.raises(ValueError, match=r"\[training\] has no key 'num_step'.*num_steps.*seed"):
        read_recipe(path, ["training.num_step=1"])
    with pytest.raises(ValueError, match="needs train"):
        read_recipe(path, ["data={}"])


def test_a_recipe_survives_being_written(tmp_path):
    recipe = Recipe(
        data=DataConfig(train=("a", "b")),
        encoder=ConformerConfig(num_layers=2, left_context=30),
        training=TrainingConfig(patience=3, clip_norm=float("inf"), adam_betas=(0.8, 0.9)),
    )
    path = tmp_path / "recipe.toml"
    path.write_text(to_toml(to_table(recipe)))
    read = read_recipe(path)
    assert read == recipe
    assert from_table(Recipe, to_table(read)) == recipe


def test_differences_are_named_in_full():
    recipe = Recipe(data=DataConfig(train="a"), encoder=LSTMConfig())
    other = dataclasses.replace(recipe, encoder=ConformerConfig(size=64, num_heads=4))
    changed = differences(to_table(recipe), other)
    assert changed["encoder.kind"] == ("lstm", "conformer")
    assert changed["encoder.size"] == (320, 64)
    assert differences(recipe, recipe) == {}


def test_fields_that_may_change_exist():
    known = {f"training.{field.name}" for field in dataclasses.fields(TrainingConfig)}
    known |= {f"data.{field.name}" for field in dataclasses.fields(DataConfig)}
    assert known >= RESUMABLE


@settings(deadline=None)
@given(
    st.integers(1, 200),
    st.none() | st.integers(0, 250),
    st.sampled_from(["warmup-decay", "transformer"]),
)
def test_a_learning_rate_rises_to_its_peak_and_falls(num_steps, warmup, schedule):
    config = TrainingConfig(
        num_steps=num_steps, num_warmup_steps=warmup, schedule=schedule, learning_rate=0.5
    )
    rates = [learning_rate(config, step) for step in range(1, num_steps + 1)]
    assert all(0 < rate <= 0.5 for rate in rates)
    top = max(config.warmup_steps, 1)
    assert rates[:top] == sorted(rates[:top])
    assert rates[top - 1 :] == sorted(rates[top - 1 :], reverse=True)
    if top <= num_steps:
        assert rates[top - 1] == 0.5


def test_the_transformer_schedule_is_the_papers():
    peak = 0.05 / 512**0.5
    config = TrainingConfig(
        num_steps=100_000, num_warmup_steps=10_000, schedule="transformer", learning_rate=peak
    )
    for step in (1, 5000, 10_000, 40_000):
        # Vaswani et al.: a constant times min(step^-0.5, step warmup^-1.5).
        expected = peak * 10_000**0.5 * min(step**-0.5, step * 10_000**-1.5)
        assert learning_rate(config, step) == pytest.approx(expected, rel=1e-12)
