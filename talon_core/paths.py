"""Where TALON keeps what it fetches."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import NamedTemporaryFile

import platformdirs


def write_whole(path: Path, text: str) -> None:
    """Write a UTF-8 text file so that it is there as a whole or not at all; what was there before is replaced."""
    if path.exists() and not path.is_file():  # a device or a pipe is written to, not replaced
        path.write_text(text, encoding="utf-8")
        return
    with NamedTemporaryFile("w", encoding="utf-8", dir=path.absolute().parent, delete=False) as unfinished:
        try:
            unfinished.write(text)
            unfinished.close()
            os.chmod(unfinished.name, 0o666 & ~_umask())
            os.replace(unfinished.name, path)
        except BaseException:
            os.unlink(unfinished.name)
            raise


def _umask() -> int:
    now = os.umask(0o077)
    os.umask(now)
    return now


def cache_folder() -> Path:
    """The user's cache: `$TALON_CACHE` where that is set and not empty, else what the operating system prescribes.

    Nothing is created here.
    """
    chosen = os.environ.get("TALON_CACHE", "")
    if chosen:
        return Path(chosen).expanduser().absolute()
    return Path(platformdirs.user_cache_dir("talon", appauthor=False))
