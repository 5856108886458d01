"""What scripts that measure have in common: what they refuse before they begin, and how they write what they found."""

import argparse
import json
from pathlib import Path
from typing import Any

from talon_core.basics.paths import check_file, write_whole


def check_options(parser: argparse.ArgumentParser, options: argparse.Namespace, *counts: str) -> None:
    """Refuse what all the measuring would end at; the script ends with status 2.

    Args:
        parser: says what is wrong.
        options: what it has parsed; `out` is the file for the figures, if there is to be one.
        counts: names of options that must be at least 1.
    """
    for name in counts:
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} is {getattr(options, name)}; it must be at least 1")
    if options.out is not None:
        try:
            check_file(options.out, "--out")
        except ValueError as error:
            parser.error(str(error))


def write_figures(out: Path | None, figures: dict[str, Any]) -> None:
    """Write the figures as JSON, whole or not at all; nothing is written where no file is named."""
    if out is not None:
        write_whole(out, json.dumps(figures, indent=2) + "\n")
