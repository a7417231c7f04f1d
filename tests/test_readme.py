"""The README's example runs, and its table is the code's."""

from __future__ import annotations

import re
from pathlib import Path

import midge

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_the_example_trains_and_decodes(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    scope: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), scope)
    decoded, spoken = capsys.readouterr().out.strip().splitlines()
    assert decoded == spoken


def test_the_table_is_that_of_the_code():
    """Each row's expressions rebuild the named model's parts."""
    names = {**vars(midge), "V": 5, "l": 7}
    rows = re.findall(r"^\| (CE|CTC|LAS|RNN-T|HAT|GNAT) \| (.*) \|$", README, flags=re.MULTILINE)
    assert [name.lower() for name, _ in rows] == list(midge.NAMED_MODELS)
    for name, row in rows:
        context, alignment, weights, normalization = (cell.strip() for cell in row.split(" | "))
        sizes = {"hidden_size": 4, "embedding_size": 4, "rnn_size": 4, "max_num_labels": 7}
        built = midge.named_model(name.lower()).build(5, 3, **sizes)
        assert eval(context.strip("`"), names) == built.context
        described = [part.strip("`") for part in alignment.split(", ")]
        assert eval(described[0], names) == built.alignment
        assert built.deduplicate == ("deduplicate=True" in described)
        assert type(built.weights).__name__ == weights.strip("`")
        assert built.normalization == normalization


def test_linked_files_exist():
    root = Path(__file__).parent.parent
    for target in re.findall(r"\]\(((?!http)[^)]+)\)", README):
        assert (root / target).exists(), target
