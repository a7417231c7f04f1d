"""The examples that the help of a command shows, as lists of arguments."""

import re
import shlex
from pathlib import Path

from midge.cli import main


def help_examples(command: str, capsys) -> list[list[str]]:
    """Every example, in the working directory: globs and "$(cat file)" are expanded as by a shell.

    What goes to a file (> name) goes to standard output.
    """
    capsys.readouterr()
    assert main([command, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    examples = [line for line in lines if line.startswith(f"  midge {command}")]
    assert examples, "the help should show a working example"
    return [_arguments(line) for line in examples]


def _arguments(line: str) -> list[str]:
    line = re.sub(r">.*", "", line)
    line = re.sub(r"\$\(cat (.+?)\)", lambda found: Path(found[1]).read_text().strip(), line)
    words = shlex.split(line)[1:]
    return [path for word in words for path in _expanded(word)]


def _expanded(word: str) -> list[str]:
    return sorted(map(str, Path().glob(word))) if "*" in word else [word]
