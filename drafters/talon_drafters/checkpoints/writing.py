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
    with TemporaryDirectory(dir=folder) as unfinished:
        file = Path(unfinished) / f"{weights}.safetensors"
        # clones: safetensors refuses tensors that share memory
        with writing(f"'{folder / file.name}'"):
            save_file({name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}, file)
        put_in_place(file, folder / file.name)
    write_whole(folder / "config.json", json.dumps(config, indent=2) + "\n")
