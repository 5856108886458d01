"""`python -m talon_core` is `talon`."""

import sys

from talon_core.cli import main

if __name__ == "__main__":
    sys.exit(main())
