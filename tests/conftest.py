"""What all tests share."""

import signal
import sys
from pathlib import Path

import torch

from chromium import NOT_RUN

sys.path.insert(0, str(Path(__file__).parent))
# The tensors of these tests are tiny: a second thread would only wait.
torch.set_num_threads(1)
collect_ignore = ["conftest.py"]  # there are two, which have no doctests

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # Of a shell's background jobs; tests of interruptions, and the processes they start, need it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter):
    """Tests that could not run must not look like tests that passed."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = {report.longrepr[-1] for report in skipped if NOT_RUN in str(report.longrepr)}
    for reason in sorted(reasons):
        terminalreporter.section(NOT_RUN, red=True)
        terminalreporter.line(reason, red=True)
