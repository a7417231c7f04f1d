"""`python -m midge` is the command `midge`."""

from midge.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
