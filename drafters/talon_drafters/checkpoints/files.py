"""A drafter's folder or Hub repository as a configuration and named tensors, whatever the files are called."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

SHIPPED = Path(__file__).parents[1] / "shipped"
"""Drafters that travel with the package, one folder each."""

WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth")
"""What weights may be called, the better kind first; the first kind that is there is read."""


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
        fits = found.dim() == len(shape) and all(want in (-1, size) for want, size in zip(shape, found.shape))
        if shape and not fits:
            wanted = ", ".join("any" if size == -1 else str(size) for size in shape)
            raise self.error(f"has {name} of shape {tuple(found.shape)}; it must be ({wanted}) for this target")
        return found


def read_checkpoint(source: str | Path) -> Checkpoint:
    """Read a drafter's files.

    Args:
        source: the name of a shipped drafter, a folder, or a Hugging Face id.

    Raises:
        ValueError: if there is no such folder or repository, or its files cannot be read; nothing is unpickled but
            tensors.
    """
    folder = _folder(str(source))
    config = _config(folder, source)
    for pattern in WEIGHTS:
        files = sorted(folder.glob(pattern))
        if files:
            return Checkpoint(str(source), config, _tensors(files, source))
    raise ValueError(f"the drafter '{source}' has no weights; its folder must hold one of {', '.join(WEIGHTS)}")


def _folder(source: str) -> Path:
    if not source:
        raise ValueError("the drafter's path is empty; give a folder or a Hugging Face id")
    if (SHIPPED / source).is_dir() and "/" not in source:
        return SHIPPED / source
    if Path(source).is_dir():
        return Path(source)
    if Path(source).exists():
        raise ValueError(f"the drafter '{source}' is a file; give the folder with its config.json")
    if source.count("/") != 1 or source.startswith((".", "/", "~")):
        raise ValueError(f"there is no drafter '{source}'; give a folder, or a Hugging Face id such as owner/name")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(source, allow_patterns=["config.json", *WEIGHTS]))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"the drafter '{source}' is no folder, and the Hub does not give it: {reason}") from error


def _config(folder: Path, source: str | Path) -> Mapping[str, Any]:
    file = folder / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"the drafter '{source}' has no config.json") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"the config.json of the drafter '{source}' is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"the config.json of the drafter '{source}' holds no object")
    return config


def _tensors(files: Iterable[Path], source: str | Path) -> Mapping[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for file in files:
        try:
            loaded = (
                load_file(file)
                if file.suffix == ".safetensors"
                else torch.load(file, map_location="cpu", weights_only=True)
            )
        except (SafetensorError, RuntimeError, OSError, EOFError, ValueError) as error:
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ValueError(f"{file.name} of the drafter '{source}' cannot be read: {first}") from error
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
