"""The command `midge`, which heeds Ctrl-C also in the second in which it loads torch.

Outside the package `midge`, whose own import is what takes that second.
"""

from __future__ import annotations

import sys


def main() -> int:
    """Runs the command line.

    Returns:
        The exit code.
    """
    try:
        from midge.cli import main as run

        return run()
    except KeyboardInterrupt:
        print("midge: interrupted", file=sys.stderr)
        return 1
