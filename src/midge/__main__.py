"""`python -m midge` is the command `midge`."""

from midge_command import main

if __name__ == "__main__":
    raise SystemExit(main())
