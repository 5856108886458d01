"""A drafter's folder or Hub repository as a configuration and named tensors, whatever the files are called."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from talon_core.basics import records
from talon_core.basics.paths import small_text
from talon_core.errors import first_line
from talon_core.models import ModelError
from talon_core.runtime.embeddings import embedding_shape, output_shape, shared_embedding

DRAFTERS = Path(__file__).parents[1]
"""The drafters' own folders; `<drafter>/shipped/<target>` travels with the package."""

WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth")
"""What weights may be called, the better kind first; the first kind that is there is read."""

LEFT_BY_TRAINING = ("optimizer", "scheduler", "scaler", "rng_state", "training_args")
"""How files begin that training tools leave beside weights."""

FINGERPRINT_ROWS = 16
FINGERPRINT_ERROR = 0.01
"""Quantised and rounded copies of a model differ by less in their embeddings' lengths, relatively."""


@attrs.frozen(eq=False)
class Checkpoint:
    """A drafter as its files describe it.

    Attributes:
        source: what the user gave, for messages.
        config: `config.json`.
        tensors: the weights by name.
    """

    source: str
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    def error(self, what: str) -> ValueError:
        """An error about this checkpoint; `what` ends the sentence."""
        return ValueError(f"the drafter '{self.source}' {what}")

    def tensor(self, name: str, *shape: int) -> Tensor:
        """The tensor of this name, if its shape is the one given; -1 stands for any size.

        Raises:
            ValueError: if it is missing or of another shape.
        """
        found = self.tensors.get(name)
        if found is None:
            raise self.error(f"lacks the tensor {name}")
        fits = found.dim() == len(shape) and all(
            want in (-1, size) for want, size in zip(shape, found.shape, strict=True)
        )
        if shape and not fits:
            wanted = ", ".join("any" if size == -1 else str(size) for size in shape)
            raise self.error(f"has {name} of shape {tuple(found.shape)}; it must be ({wanted}) for this target")
        return found


def read_checkpoint(source: str | Path, stem: str = "", only_shapes: bool = False) -> Checkpoint:
    """Read a drafter's files.

    Args:
        source: the name of a shipped drafter, a folder, or a Hugging Face id.
        stem: how the drafter's files begin where a folder also holds other weights, such as the target's; if none
            begins so, all are read.
        only_shapes: leave the weights in the files; the tensors are on the `meta` device, which is fast.

    Raises:
        ValueError: if there is no such folder or repository, or its files are incomplete or cannot be read; nothing
            is unpickled but tensors.
    """
    folder = _folder(str(source))
    config = _config(folder, source)
    for start in dict.fromkeys((stem, "")):
        for pattern in WEIGHTS:
            files = [file for file in sorted(folder.glob(start + pattern)) if not _is_left_by_training(file)]
            if files:
                _check_shards(folder, start, files, source)
                return Checkpoint(str(source), config, _tensors(files, source, only_shapes))
    raise ValueError(f"the drafter '{source}' has no weights; its folder must hold one of {', '.join(WEIGHTS)}")


def read_config(source: str | Path) -> Mapping[str, Any]:
    """A drafter's `config.json`; arguments and errors as for `read_checkpoint`."""
    return _config(_folder(str(source)), source)


def shipped() -> dict[str, Path]:
    """The folders of the drafters that travel with the package, by their names, which are `<target>-<drafter>`."""
    folders = sorted(folder for folder in DRAFTERS.glob("*/shipped/*") if folder.is_dir())
    return {f"{folder.name}-{folder.parents[1].name.replace('_', '-')}": folder for folder in folders}


def shipped_for(model: Any, kind: str) -> str | None:
    """The name of the drafter of this kind that travels with the package and was trained for this model, or None.

    Its `config.json` has an entry `talon` as `fingerprint` makes it.
    """
    folders = {name: folder for name, folder in shipped().items() if name.endswith(f"-{kind}")}
    try:
        ours = fingerprint(model) if folders else {}
    except ValueError:  # embeddings that cannot be read are not those that a drafter was trained for
        return None
    for name, folder in folders.items():
        theirs = _config(folder, name).get("talon")
        if isinstance(theirs, Mapping) and _same_target(theirs, ours):
            return name
    return None


def fingerprint(model: Any) -> dict[str, Any]:
    """What tells a target from others: its sizes and the lengths of some of its embeddings.

    Training code writes it to a drafter's `config.json`, as the entry `talon`, so that `shipped_for` finds the drafter.

    Raises:
        ValueError: if the embeddings or the output layer cannot be read.
    """
    tokens, width = embedding_shape(model)
    vocab_size, _ = output_shape(model)
    rows = torch.linspace(0, tokens - 1, FINGERPRINT_ROWS).long()
    with torch.no_grad():
        lengths = shared_embedding(model)(rows.to(model.device)).float().norm(dim=-1)
    return {"hidden_size": width, "vocab_size": vocab_size, "embeddings": lengths.tolist()}


def _same_target(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> bool:
    if any(theirs.get(size) != ours[size] for size in ("hidden_size", "vocab_size")):
        return False
    lengths = theirs.get("embeddings")
    return (
        isinstance(lengths, list)
        and len(lengths) == len(ours["embeddings"])
        and all(abs(a - b) <= FINGERPRINT_ERROR * b for a, b in zip(lengths, ours["embeddings"], strict=True))
    )


def _is_left_by_training(file: Path) -> bool:
    return file.name.startswith(LEFT_BY_TRAINING)


def _check_shards(folder: Path, start: str, files: Iterable[Path], source: str | Path) -> None:
    """Weights in several files come with an index that names them all; without one of them heads would be missing."""
    have = {file.name for file in files}
    for index in sorted(folder.glob(f"{start}*.index.json")):
        kind = Path(index.name.removesuffix(".index.json")).suffix
        if not any(name.endswith(kind) for name in have):
            continue  # the index of a kind that is not read
        named = _json(index, source).get("weight_map", {})
        missing = sorted(set(named.values()) - have) if isinstance(named, dict) else []
        if missing:
            raise ValueError(f"the drafter '{source}' lacks {missing[0]}, which {index.name} names; fetch it again")


def _folder(source: str) -> Path:
    if not source:
        raise ValueError("the drafter's path is empty; give a folder or a Hugging Face id")
    if source in (known := shipped()):
        return known[source]
    if Path(source).is_dir():
        return Path(source)
    if Path(source).exists():
        raise ValueError(f"the drafter '{source}' is a file; give the folder with its config.json")
    if source.count("/") != 1 or source.startswith((".", "/", "~")):
        raise ValueError(f"there is no drafter '{source}'; give a folder, or a Hugging Face id such as owner/name")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    from talon_core.models.hub import only_local

    patterns = ["config.json", "*.index.json", *WEIGHTS]
    try:
        return Path(snapshot_download(source, allow_patterns=patterns, local_files_only=only_local(source)))
    except ModelError as error:
        raise ValueError(f"the drafter '{source}' cannot be had: {error}") from error
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ValueError(
            f"the drafter '{source}' is no folder, and the Hub does not give it: {first_line(error)}"
        ) from error


def _config(folder: Path, source: str | Path) -> Mapping[str, Any]:
    return _json(folder / "config.json", source)


def _json(file: Path, source: str | Path) -> Mapping[str, Any]:
    try:
        read = records.parsed(small_text(file))
    except FileNotFoundError:
        raise ValueError(f"the drafter '{source}' has no {file.name}") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"the {file.name} of the drafter '{source}' cannot be read: {error}") from error
    if not isinstance(read, dict):
        raise ValueError(  # noqa: TRY004 - callers expect a ValueError for every bad file
            f"the {file.name} of the drafter '{source}' holds no object"
        )
    return read


def _tensors(files: Iterable[Path], source: str | Path, only_shapes: bool) -> Mapping[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for file in files:
        try:
            if file.suffix == ".safetensors":
                loaded = _shapes(file) if only_shapes else load_file(file)
            else:
                loaded = torch.load(file, map_location="meta" if only_shapes else "cpu", weights_only=True)
        except (SafetensorError, RuntimeError, OSError, EOFError, ValueError) as error:
            raise ValueError(f"{file.name} of the drafter '{source}' cannot be read: {first_line(error)}") from error
        except Exception as error:  # pickle's own errors: something else than tensors
            raise ValueError(
                f"{file.name} of the drafter '{source}' holds more than tensors and is not unpickled; "
                "convert it to safetensors"
            ) from error
        loaded = loaded.get("state_dict", loaded) if isinstance(loaded, dict) else loaded
        if not isinstance(loaded, dict) or not all(isinstance(value, Tensor) for value in loaded.values()):
            raise ValueError(f"{file.name} of the drafter '{source}' is no mapping from names to tensors")
        tensors.update(loaded)
    return tensors


def _shapes(file: Path) -> Mapping[str, Tensor]:
    with safe_open(file, "pt") as opened:
        return {name: torch.empty(opened.get_slice(name).get_shape(), device="meta") for name in opened.keys()}  # noqa: SIM118 - it is no mapping
