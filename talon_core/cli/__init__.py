"""The command line. `main` is the entry point of `talon`; the commands are in the modules beside it."""

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `talon` with these arguments (by default the process's own) and return its exit status."""
    from talon_core.cli.run import run  # within the function, so that `import talon_core.cli` costs nothing

    return run(arguments)
