"""Where TALON keeps what it fetches."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_folder() -> Path:
    """The user's cache: `$TALON_CACHE` where that is set and not empty, else what the operating system prescribes.

    Nothing is created here.
    """
    chosen = os.environ.get("TALON_CACHE", "")
    if chosen:
        return Path(chosen).expanduser().absolute()
    return Path(platformdirs.user_cache_dir("talon", appauthor=False))
