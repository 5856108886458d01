"""Writing a drafter's folder, each file whole or not at all."""

import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from talon_core.basics.disk import writing
from talon_core.basics.paths import put_in_place, write_whole
from talon_drafters.checkpoints.vocabulary import as_offsets


def write_checkpoint(
    folder: str | Path,
    weights: str,
    tensors: Mapping[str, Tensor],
    config: Mapping[str, Any],
    vocabulary: Tensor | None = None,
) -> None:
    """Write weights and `config.json`; what was there before is replaced.

    Args:
        folder: made if it is not there.
        weights: the name of the file for the tensors, without its suffix.
        tensors: by name; they are copied to the CPU.
        config: what `config.json` is to hold.
        vocabulary: the target's id of each of the drafter's tokens, shape `(draft vocab,)`, int64; written as `d2t`,
            EAGLE-3's offsets. None if the drafter chooses from all tokens.
    """
    if vocabulary is not None:
        tensors = {**tensors, "d2t": as_offsets(vocabulary)}
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    save_whole(folder / f"{weights}.safetensors", tensors)
    write_whole(folder / "config.json", json.dumps(config, indent=2) + "\n")


def save_whole(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file, whole or not at all.

    Args:
        file: in a folder that is there; what was there before is replaced.
        tensors: by name; they are copied to the CPU.
    """
    with TemporaryDirectory(dir=file.parent) as folder:
        unfinished = Path(folder) / file.name
        # clones: safetensors refuses tensors that share memory
        copies = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
        with writing(f"'{file}'"):
            save_file(copies, unfinished)
        put_in_place(unfinished, file)
