"""What is wrong with the JSON files of a model's folder: transformers says it in Python's words, and names no file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from talon_core.basics import records
from talon_core.basics.paths import small_text
from talon_core.errors import written

INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
"""Which file each weight is in, where there are several."""

OBJECTS = ("config.json", "generation_config.json", *INDEXES, "tokenizer_config.json", "tokenizer.json")

MOST_BYTES = 2**28
"""Of a file; the largest vocabularies take a tenth of it."""


def fault_of(folder: Path) -> str | None:
    """The first fault of a folder that could not be loaded, as a sentence; None if there is none.

    Args:
        folder: which need not be one.
    """
    for name in OBJECTS:
        file = folder / name
        if not file.is_file():
            continue
        try:
            found = records.parsed(small_text(file, MOST_BYTES))
        except (ValueError, OSError) as error:
            return f"its {name} cannot be read ({error}); fetch it again"
        fault = None if isinstance(found, dict) else f"is {written(found)}; it must be a JSON object"
        fault = fault or (_fault_of_index(found) if name in INDEXES else None)
        if fault is not None:
            return f"its {name} {fault}"
    return None


def _fault_of_index(index: Mapping[str, Any]) -> str | None:
    for name in ("metadata", "weight_map"):
        if not isinstance(index.get(name), dict):
            return f"has {written(index.get(name))} as its {name}; it must be a JSON object"
    for weight, file in index["weight_map"].items():
        if not isinstance(file, str) or Path(file).name != file:
            return f"has {written(weight)} in {written(file)}; it must be the name of a file of the folder"
    return None
