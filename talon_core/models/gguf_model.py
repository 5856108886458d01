"""A transformers model from a GGUF file, with its weights in the file's blocks where layers can hold them so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from talon_core.models.errors import UnreadableFile
from talon_core.models.gguf_checks import checked_header
from talon_core.models.gguf_weights import LAYOUT, StoredMatrix, StoredWeights, find_weights, said_one_by_one

if TYPE_CHECKING:
    from torch import Tensor, dtype, nn

    from talon_core.runtime.blocks import Blocks, InBlocks

CAME_FROM = "talon_gguf_file"
"""The attribute of a model that names the GGUF file that it came from."""

TRIED_ROWS = 8
"""Rows of a table on which the layer that is to hold it is tried."""


def gguf_file_of(model: Any) -> Path | None:
    """The GGUF file that a loaded model came from; None if it came from none."""
    found: Path | None = vars(model).get(CAME_FROM)
    return found


@attrs.frozen
class GgufModel:
    """Where a model is: a GGUF file alone, or a folder of an embedded model.

    Attributes:
        path: the GGUF file.
        folder: the folder with what was made of it: configuration, tokenizer, and the layout of its weights; None for a
            file alone.
    """

    path: Path
    folder: Path | None = None

    @classmethod
    def at(cls, path: Path, gguf_file: str | None = None) -> GgufModel | None:
        """The one that is there, None if what is there is something else.

        Args:
            path: a file, or a folder.
            gguf_file: the name of the file in the folder; that of an embedded model is found without.
        """
        if path.is_file():
            return cls(path)
        if gguf_file is not None:
            return cls(path / gguf_file) if (path / gguf_file).is_file() else None
        found = sorted(path.glob("*.gguf")) if (path / LAYOUT).is_file() else []
        return cls(found[0], path) if found else None

    @property
    def in_parts(self) -> bool:
        """Whether its weights can be read one by one; otherwise transformers reads the file.

        Raises:
            UnreadableFile: if the file is damaged, or no model can be made of what it says.
        """
        return self.folder is not None or said_one_by_one(checked_header(self.path).architecture)

    @property
    def source(self) -> tuple[Path, dict[str, str]]:
        """What `from_pretrained` of configurations and tokenizers takes, and its options."""
        return (self.path.parent, {"gguf_file": self.path.name}) if self.folder is None else (self.folder, {})

    def load(
        self, check: Callable[[Mapping[str, Any]], None], *, in_blocks: bool, **options: Any
    ) -> tuple[Any, Mapping[str, Any]]:
        """Load the model, on the CPU.

        Args:
            check: raises for a configuration that is not to be loaded.
            in_blocks: whether weights stay in blocks; otherwise all of them become numbers of the type `dtype`.
            options: for the model class's `from_pretrained`, `dtype` among them.

        Returns:
            The model, and what `from_pretrained` says about its weights.

        Raises:
            UnreadableFile: if the file is damaged or cannot be read.
            ValueError: what transformers raises for an architecture that it does not read, and `check`.
        """
        from transformers import AutoConfig, GenerationConfig

        if self.folder is None:
            blank, stored = read_gguf(self.path, check)
        else:
            config = AutoConfig.from_pretrained(self.folder)
            check(config.to_dict())
            blank, stored = blank_model(config), StoredWeights.load(self.folder / LAYOUT)
        loaded = _with_weights(type(blank), blank.config, self.path, stored, in_blocks=in_blocks, **options)
        model = loaded[0]
        place, _ = self.source
        model.config.name_or_path = str(place)
        setattr(model, CAME_FROM, self.path)
        if self.folder is not None:
            model.generation_config = GenerationConfig.from_pretrained(place)
        return loaded


def read_gguf(path: Path, check: Callable[[Mapping[str, Any]], None]) -> tuple[Any, StoredWeights]:
    """The model that a GGUF file describes, without weights, and where these are; `check` and errors as for `load`."""
    from transformers import CONFIG_MAPPING, PretrainedConfig

    header = checked_header(path)
    settings, _ = PretrainedConfig.get_config_dict(path.parent, gguf_file=path.name)
    check(settings)
    if settings["model_type"] not in CONFIG_MAPPING:
        raise UnreadableFile(
            f"transformers has no model of its architecture {header.architecture}; give a file of another"
        )
    blank = blank_model(CONFIG_MAPPING[settings["model_type"]].from_dict(dict(settings)))
    return blank, find_weights(path, header, settings, blank)


def blank_model(config: Any) -> Any:
    """The model that a configuration describes, without weights."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def _with_weights(
    cls: Any, config: Any, path: Path, stored: StoredWeights, *, in_blocks: bool, **options: Any
) -> tuple[Any, Mapping[str, Any]]:
    """Let transformers load everything but the matrices, in whose places it is given tensors without memory."""
    import torch

    nothing = torch.zeros((), dtype=options["dtype"])
    stand_ins = {one.weight: nothing.expand(one.shape[0], one.columns) for one in stored.matrices}
    loaded: tuple[Any, Mapping[str, Any]] = cls.from_pretrained(
        None,
        config=config,
        state_dict={**stored.others, **stand_ins},
        ignore_mismatched_sizes=True,
        output_loading_info=True,
        **options,
    )
    model, info = loaded
    if info["mismatched_keys"] or info["missing_keys"]:
        return loaded  # which is refused by whoever reads this
    holders = _holders(model)
    for matrix in stored.matrices:
        parameter = model.get_parameter(matrix.weight)
        _put(model, matrix, matrix.read(path), holders[id(parameter)], options["dtype"], in_blocks)
    return loaded


def _holders(model: nn.Module) -> dict[int, list[tuple[str, nn.Module, str]]]:
    """Who holds each parameter, by its `id`: name, module, and name there. Tied weights have several."""
    found: dict[int, list[tuple[str, nn.Module, str]]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        for own, parameter in module._parameters.items():
            if parameter is not None:
                found.setdefault(id(parameter), []).append((name, module, own))
    return found


def _put(
    model: nn.Module,
    matrix: StoredMatrix,
    data: Tensor,
    holders: list[tuple[str, nn.Module, str]],
    dtype: dtype,
    in_blocks: bool,
) -> None:
    """Give a matrix to all layers that hold it: in blocks if each of them can, as numbers otherwise."""
    from torch import nn

    from talon_core.runtime.blocks import Blocks

    blocks = Blocks(data, matrix.kind, matrix.columns)
    made: dict[int, InBlocks | None] = {}
    for _, module, own in holders:
        if id(module) not in made:
            made[id(module)] = _layer(module, blocks) if in_blocks and own == "weight" else None
    layers = [(name, made[id(module)]) for name, module, _ in holders]
    if all(layer is not None for _, layer in layers):
        for name, layer in layers:
            assert layer is not None
            model.set_submodule(name, layer)
        return
    weight = nn.Parameter(blocks.widened().to(dtype))
    for _, module, own in holders:
        setattr(module, own, weight)


def _layer(module: nn.Module, blocks: Blocks) -> InBlocks | None:
    """A layer that does with blocks what a module does with their numbers; None if there is none."""
    import copy

    import torch
    from torch import nn

    from talon_core.runtime.blocks import BlockEmbedding, BlockLinear

    if type(module) is nn.Linear:
        return BlockLinear(module.in_features, module.out_features, blocks, module.bias)
    if not isinstance(module, nn.Embedding) or module.max_norm is not None:
        return None
    if type(module) is nn.Embedding:
        return BlockEmbedding(blocks)
    # a class of its own, which may do more than look up: tried on a table of a few rows
    ids = torch.arange(min(TRIED_ROWS, blocks.rows)).flip(0)[None]
    plain = copy.copy(module)
    plain._parameters = {
        **module._parameters,
        "weight": nn.Parameter(blocks.of_rows(torch.arange(ids.numel())).widened()),
    }
    plain.padding_idx = None
    layer = BlockEmbedding(blocks, module)
    try:
        with torch.no_grad():
            same = torch.equal(plain(ids), layer(ids))
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError):
        return None
    return layer if same else None
