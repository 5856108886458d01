"""Reading and writing text files, and where TALON keeps what it fetches and what it has found out."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryFile
from time import time

import platformdirs

LOCK = ".lock"
"""The file in a folder that is locked by whoever writes there, see `alone`."""

UNFINISHED = ".unfinished"
"""How names of files end that are being written where a later process takes those away that a killed one has left."""


def utf8(data: bytes, where: str) -> str:
    """Text from bytes, without a byte order mark.

    Args:
        data: what a file holds.
        where: how an error calls the file.

    Raises:
        ValueError: if it is not UTF-8; the sentence says where it is not.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{where} is not UTF-8 text (byte {error.start} is 0x{data[error.start]:02x}); save it as UTF-8"
        ) from None


def in_utf8(text: str) -> bool:
    """Whether UTF-8 can write a text: JSON can spell half a surrogate pair, and names of files may hold any byte."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def small_text(path: Path, most: int = 2**24) -> str:
    """The text of a file that somebody left where we look; what is no file, such as a pipe, is not waited for.

    Args:
        path: where it is.
        most: bytes that it may have.

    Raises:
        ValueError: if it is no file, is too large or is not UTF-8; the sentence names it.
        OSError: if it cannot be read.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise ValueError(f"'{path}' is no file; a text file must be there")
    if found.st_size > most:
        raise ValueError(f"'{path}' has {found.st_size} bytes; at most {most} are read")
    return utf8(path.read_bytes(), f"'{path}'")


def check_file(path: Path, called: str) -> None:
    """Refuse a file that could not be written, before the work whose result it is to hold; nothing is left there.

    Args:
        path: the file, which may be there or not; a device or a pipe may be meant.
        called: how an error calls it, as "--out".

    Raises:
        ValueError: if it is a folder, is in none, or may not be written; the sentence says which.
    """
    if not path.parts:
        raise ValueError(f"{called} is an empty path ('' or '.'); it must be a file in a folder that exists")
    try:
        if path.is_dir() or not path.absolute().parent.is_dir():
            raise ValueError(f"{called} is '{path}'; it must be a file in a folder that exists")
        if path.exists() and not path.is_file():  # written to as it is, see `write_whole_bytes`
            if not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return
        with TemporaryFile(dir=path.absolute().parent):
            pass
    except OSError as error:
        raise ValueError(f"{called} is '{path}', which cannot be written: {error.strerror or error}") from None


def check_spared(path: Path, called: str, folder: Path, names: Iterable[str], whose: str) -> None:
    """Refuse to write what is said of a folder into one of the files that the folder is made of.

    Args:
        path: the file.
        called: how an error calls it, as "--out".
        folder: what is read.
        names: of its files.
        whose: what it is, as "the run".

    Raises:
        ValueError: if it is one of them, by whatever path.
    """
    if path.resolve() in [(folder / name).resolve() for name in names]:
        raise ValueError(f"{called} is '{path}', which is one of {whose}'s own files; give another one")


def check_folder(path: Path, called: str) -> None:
    """Refuse a folder in which nothing could be written, or that could not be made, as `check_file` does.

    Args:
        path: the folder, which may be there or not; those above it are made with it.
        called: how an error calls it, as "--out".

    Raises:
        ValueError: if it is a file, or below one, or may not be made or written in; the sentence says which.
    """
    try:
        whole = path.absolute()
        there = next(each for each in (whole, *whole.parents) if each.exists() or each.is_symlink())
        if not there.is_dir():
            which = "which" if there == whole else f"and '{there}'"
            what = "a file" if there.exists() else "a link to nothing"
            raise ValueError(f"{called} is '{path}', {which} is {what}; it must be a folder")
        with TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise ValueError(f"{called} is '{path}', which cannot be written: {error.strerror or error}") from None


def write_whole(path: Path, text: str, suffix: str = "") -> None:
    """Write a UTF-8 text file so that it is there as a whole or not at all; what was there before is replaced.

    Args:
        path: the file.
        text: what it is to hold.
        suffix: as for `write_whole_bytes`.

    Raises:
        ValueError: if UTF-8 cannot write the text; the sentence says what of it.
        OSError: if the file cannot be written.
    """
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError as error:
        around = text[max(0, error.start - 20) : error.end + 20]
        raise ValueError(
            f"'{path}' cannot be written: UTF-8 has no {text[error.start]!r}, which is in {around!r}; "
            "rename the file or folder that is called so, or correct the text"
        ) from None
    write_whole_bytes(path, data, suffix)


def write_whole_bytes(path: Path, data: bytes, suffix: str = "") -> None:
    """As `write_whole`, for any file.

    Args:
        path: the file.
        data: what it is to hold.
        suffix: how the name ends under which it is written; a process that is killed leaves such a file behind.
    """
    write_whole_parts(path, [data], suffix)


def write_whole_parts(path: Path, parts: Iterable[bytes], suffix: str = "") -> int:
    """As `write_whole_bytes`, of a file that comes part by part; returns its size in bytes."""
    with about(path):
        if path.exists() and not path.is_file():  # a device or a pipe is written to, not replaced
            with path.open("wb") as opened:
                return sum(map(opened.write, parts))
        with NamedTemporaryFile(dir=path.absolute().parent, suffix=suffix, delete=False) as unfinished:
            try:
                size = sum(map(unfinished.write, parts))
                unfinished.close()
                put_in_place(Path(unfinished.name), path)
            except BaseException:
                os.unlink(unfinished.name)
                raise
            return size


def remove_unfinished(folder: Path, age: float = 0.0) -> None:
    """Take away what killed processes have left in a folder.

    Args:
        folder: where nobody else writes such files, or `age` is more than anybody takes for one.
        age: seconds since a file was written to, at least.
    """
    for left in folder.glob(f"*{UNFINISHED}"):
        if left.stat().st_mtime <= time() - age:
            left.unlink(missing_ok=True)


def is_unused(folder: Path) -> bool:
    """Whether nothing is in a folder but its lock, and what somebody has left who was killed before anything was."""
    return all(each.name == LOCK or each.name.endswith(UNFINISHED) for each in folder.iterdir())


@contextmanager
def about(path: Path, failed: str = "") -> Iterator[None]:
    """Say of which file an error of the operating system inside is: that of a full disk names none.

    Args:
        path: the file.
        failed: what cannot be done then, as in "the prompt file cannot be read"; nothing where the path alone tells.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        said = f"{failed}: {error.strerror}" if failed else error.strerror
        raise type(error)(error.errno, said, str(path)) from error


def alone(lock: Path, refused: str) -> AbstractContextManager[object]:
    """Lock others out, until what is returned is exited.

    Args:
        lock: a file that nobody else locks meanwhile.
        refused: the sentence for whoever is not alone.

    Raises:
        ValueError: with that sentence.
    """
    from filelock import FileLock, Timeout

    try:
        return FileLock(lock).acquire(timeout=0)
    except Timeout:
        raise ValueError(refused) from None


def put_in_place(unfinished: Path, path: Path) -> None:
    """Move a temporary file, which only its owner may read, to where it belongs, with the rights of any new file."""
    os.chmod(unfinished, 0o666 & ~_umask())
    os.replace(unfinished, path)


def _umask() -> int:
    now = os.umask(0o077)
    os.umask(now)
    return now


def from_home(path: str) -> Path:
    """A path in which `~` and `~name` stand for a user's home folder.

    Raises:
        ValueError: if there is no such user, or he has none.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ValueError(
            f"the path '{path}' begins with a home folder that is not known; write the whole path"
        ) from None


def cache_folder() -> Path:
    """The user's cache: `$TALON_CACHE` where that is set and not empty, else what the operating system prescribes.

    Nothing is created here.
    """
    chosen = os.environ.get("TALON_CACHE", "")
    if chosen:
        return from_home(chosen).absolute()
    return Path(platformdirs.user_cache_dir("talon", appauthor=False))


def data_folder() -> Path:
    """The user's data: `$TALON_DATA` where that is set and not empty, else what the operating system prescribes.

    Nothing is created here.
    """
    chosen = os.environ.get("TALON_DATA", "")
    if chosen:
        return from_home(chosen).absolute()
    return Path(platformdirs.user_data_dir("talon", appauthor=False))
