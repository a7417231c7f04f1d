"""Where a result comes from: the state of the code, and the machine."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import torch

from midge.data.workers import num_available_cores
from midge.training.estimate import physical_memory


def commit(folder: Path | None = None) -> str:
    """The commit of the code that runs, with "+" if files of the package were changed since.

    Args:
        folder: of the package; that of midge by default.

    Returns:
        "" where the package is not in a repository.
    """
    package = Path(__file__).parent.parent if folder is None else folder
    found = _git(package, "rev-parse", "--short=12", "HEAD")
    if not found:
        return ""
    return found + ("+" if _git(package, "status", "--porcelain", "--", str(package)) else "")


def hardware() -> dict[str, str | int | None]:
    """The processor, its cores, the memory in bytes, and the versions of system and torch."""
    return {
        "processor": _processor(),
        "num_cores": num_available_cores(),
        "memory": physical_memory(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }


def _processor() -> str:
    """The model's name as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _git(folder: Path, *arguments: str) -> str:
    # Without the caller's own repository, should its variables point to one.
    environment = {k: x for k, x in os.environ.items() if not k.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )
    except OSError:  # no git
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
