"""What the arcs would take is never held, and sizes beyond 32-bit indices work."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parent.parent / "benchmarks" / "memory.py"


def measured(case: str, engine: str = "native") -> dict[str, float]:
    command = [sys.executable, str(BENCHMARK), case, "--json"]
    environment = {**os.environ, "MIDGE_ENGINE": engine}
    result = subprocess.run(command, check=True, capture_output=True, env=environment)
    return json.loads(result.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["native", "reference"])
def test_global_loss_of_a_two_gram_fits_in_400_mb(engine):
    result = measured("gnat", engine)
    assert result["peak_mb"] < 400 and math.isfinite(result["loss"])


@pytest.mark.slow
def test_rnnt_loss_fits_in_600_mb():
    result = measured("rnnt")
    assert result["peak_mb"] < 600 and math.isfinite(result["loss"])


@pytest.mark.slow
def test_more_than_two_to_the_31_arcs():
    result = measured("wide")
    assert result["peak_mb"] < 600 and math.isfinite(result["loss"])
