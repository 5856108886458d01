"""The weights of a GGUF file as a transformers model has them: which of them may stay in their blocks, and the rest.

transformers itself says under which names and in which order the file has them, so there is no list of architectures.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
from numpy.typing import NDArray

from talon_core.basics.disk import writing
from talon_core.errors import first_line
from talon_core.models.errors import UnreadableFile
from talon_core.models.gguf_header import MAGIC, GgufHeader, GgufTensor

if TYPE_CHECKING:
    from torch import Tensor

LAYOUT = "blocks.safetensors"
"""What was found out about the weights of an embedded model, beside its GGUF file."""

POSITIONS = ("rope_freqs", "rope_factors_long", "rope_factors_short", "attn_rot_embd")
"""Tensors with factors of positions, which transformers has from the configuration, or not at all."""

_log = logging.getLogger("talon_core.models")


@attrs.frozen
class StoredMatrix:
    """A matrix that a GGUF file has in blocks, and whose blocks may stay as they are.

    Attributes:
        weight: its name in transformers.
        kind: ggml's number of the kind of blocks.
        offset: of its first byte in the file.
        shape: rows, and bytes of a row.
        columns: numbers of a row.
        order: for each row of the weight the row of the file; None for all as they are.
    """

    weight: str
    kind: int
    offset: int
    shape: tuple[int, int]
    columns: int
    order: tuple[int, ...] | None = None

    def read(self, path: Path) -> Tensor:
        """Its blocks, shape `shape`, uint8.

        Raises:
            UnreadableFile: if the file ends before them.
        """
        import torch

        data = torch.empty(self.shape, dtype=torch.uint8)
        with path.open("rb") as file:
            file.seek(self.offset)
            if file.readinto(data.numpy().data.cast("B")) != data.numel():
                raise UnreadableFile(f"the file ends in the middle of its weight {self.weight}; fetch it again")
        return data if self.order is None else data[torch.tensor(self.order)]


@attrs.frozen(eq=False)
class StoredWeights:
    """The weights of a GGUF file.

    Attributes:
        matrices: those that may stay in blocks.
        others: the numbers of the others, float32, by their names in transformers.
    """

    matrices: tuple[StoredMatrix, ...]
    others: Mapping[str, Tensor]

    def save(self, path: Path) -> None:
        """Write down what was found out, so that nothing but the blocks is read of the GGUF file again."""
        from safetensors.torch import save_file

        matrices = [attrs.asdict(matrix) for matrix in self.matrices]
        with writing(f"'{path}'"):
            save_file(dict(self.others), path, metadata={"matrices": json.dumps(matrices)})

    @classmethod
    def load(cls, path: Path) -> StoredWeights:
        """What `save` has written."""
        from safetensors import safe_open

        with safe_open(path, "pt") as file:
            found = json.loads(file.metadata()["matrices"])
            others = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, it is no mapping
        matrices = (
            {**one, "shape": tuple(one["shape"]), "order": one["order"] and tuple(one["order"])} for one in found
        )
        return cls(tuple(StoredMatrix(**one) for one in matrices), others)


def is_gguf(path: Path) -> bool:
    """Whether a file is a GGUF file, by its first bytes, or by its name."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC or path.suffix == ".gguf"
    except OSError:
        return False


def said_one_by_one(architecture: str) -> bool:
    """Whether transformers can be asked what becomes of each tensor of such a file.

    For the architectures that it reads in another way since 5.23, it loads the whole model itself.
    """
    try:
        from transformers.integrations.gguf.utils import is_gguf_arch_supported
    except ImportError:  # before 5.23 there was one way
        return True
    return not is_gguf_arch_supported(architecture)


def find_weights(path: Path, header: GgufHeader, settings: Mapping[str, Any], model: Any) -> StoredWeights:
    """Find out what a GGUF file has, one tensor at a time.

    Args:
        path: the file.
        header: of the file.
        settings: what transformers reads of its metadata, of which it makes the model's configuration.
        model: the model that these describe; it may be on the `meta` device.

    Raises:
        UnreadableFile: if the file is damaged, or has a tensor that nobody can read or that the model does not know.
    """
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    processing = _Processing(header, settings, model)
    matrices, others, unread = [], {}, []
    for tensor in header.tensors:
        known = tensor.name in processing.names
        order = _order(processing, tensor) if known else None
        if order is not None:
            rows, columns = tensor.shape
            own = None if np.array_equal(order, np.arange(rows)) else tuple(order.tolist())
            place = (tensor.kind, tensor.offset, (rows, tensor.bytes_of_a_row), columns)
            matrices.append(StoredMatrix(processing.names[tensor.name], *place, own))
            continue
        kind = GGMLQuantizationType(tensor.kind)
        try:
            numbers = dequantize(tensor.read(path), kind)
        except NotImplementedError:
            raise UnreadableFile(
                f"its tensor {tensor.name} is of the kind {kind.name}, which the package gguf cannot widen; give a "
                "file in another format"
            ) from None
        made = processing.processed(numbers, tensor.name)
        others.update(made)
        if not made and not processing.took_part(tensor.name):
            unread.append(tensor.name)
    others.update(processing.gathered)
    _check_unread(unread)
    return StoredWeights(tuple(matrices), others)


def _is_position(name: str) -> bool:
    return any(part in name for part in POSITIONS)


def _check_unread(names: list[str]) -> None:
    positions = [name for name in names if _is_position(name)]
    if positions:
        _log.warning("transformers does not read %s of the GGUF file, factors of positions", ", ".join(positions))
    unknown = [name for name in names if name not in positions]
    if unknown:
        raise UnreadableFile(
            f"its configuration does not know {len(unknown)} of its tensors, such as {unknown[0]}; give a file whose "
            "metadata fits its weights"
        )


class _Shallow:
    """A model with the modules that are directly in it, but none of those in them.

    transformers asks every module of a model for its weights' names, and sets up all names of the architecture for
    each: 6 seconds for the 30 layers of SmolLM2-135M, and more than four times as many for twice the layers. A name is
    taken from the outermost module that has it, so few are left for those further in.
    """

    def __init__(self, module: Any, levels: int = 1) -> None:
        self.config, self.state_dict = getattr(module, "config", None), module.state_dict
        self._module, self._levels = module, levels

    def named_children(self) -> list[tuple[str, _Shallow]]:
        levels = self._levels - 1
        return [] if levels < 0 else [(name, _Shallow(one, levels)) for name, one in self._module.named_children()]


class _Processing:
    """What transformers makes of the tensors of a GGUF file.

    Args:
        header: of the file.
        settings: as for `find_weights`.
        model: likewise.

    Attributes:
        names: those in transformers, by those in the file.
        gathered: weights that are made of several tensors.
    """

    def __init__(self, header: GgufHeader, settings: Mapping[str, Any], model: Any) -> None:
        from transformers import modeling_gguf_pytorch_utils as theirs

        processor = theirs.TENSOR_PROCESSORS.get(header.architecture, theirs.TensorProcessor)
        self._processor = processor(config=dict(settings))
        self.names: dict[str, str] = theirs.get_gguf_hf_weights_map(_Shallow(model), self._processor)
        if any(one.name not in self.names and not _is_position(one.name) for one in header.tensors):
            self.names = theirs.get_gguf_hf_weights_map(model, self._processor)
        self.gathered: dict[str, Tensor] = {}
        self._taken: set[str] = set()

    def processed(self, numbers: NDArray[np.float32], name: str) -> dict[str, Tensor]:
        """What becomes of one tensor, by its name in transformers; nothing where it is gathered, or not known."""
        import torch

        before = len(self.gathered)
        weights, own, _ = self._run(numbers, name, self.gathered)
        if own is None or len(self.gathered) > before:
            self._taken.add(name)
        if own not in self.names:
            return {}
        return {self.names[own]: torch.from_numpy(np.array(weights, dtype=np.float32))}

    def took_part(self, name: str) -> bool:
        """Whether a tensor went into one that is gathered."""
        return name in self._taken

    def _run(self, numbers: NDArray[Any], name: str, gathered: dict[str, Tensor]) -> Any:
        try:
            return self._processor.process(
                weights=numbers, name=name, tensor_key_mapping=self.names, parsed_parameters={"tensors": gathered}
            )
        except (ValueError, IndexError, KeyError, RuntimeError) as error:
            if name not in self.names:
                return numbers, name, {}
            raise UnreadableFile(
                f"its tensor {name} of shape {tuple(numbers.shape)} does not fit its configuration "
                f"({first_line(error)}); give a file whose metadata fits its weights"
            ) from error

    def traced(self, numbers: NDArray[np.float32], name: str) -> NDArray[np.float32] | None:
        """As `processed`, for numbers that stand for others; None where these do not become one weight."""
        aside: dict[str, Tensor] = {}
        found: NDArray[np.float32]
        found, own, _ = self._run(numbers, name, aside)
        return None if own != name or aside else found


def _order(processing: _Processing, tensor: GgufTensor) -> NDArray[np.int64] | None:
    """For each row of a weight the row of the file's tensor, if its blocks are understood and nothing else changes.

    Seen by what becomes of a matrix of the same shape whose numbers are the numbers of its rows, and of one whose
    numbers are those of its columns.
    """
    from talon_core.runtime.blocks import block_sizes

    if tensor.kind not in block_sizes() or len(tensor.shape) != 2:
        return None
    rows, columns = tensor.shape
    if max(rows, columns) >= 2**24:  # beyond which not every number is one of float32
        return None
    of_rows, of_columns = (np.arange(count, dtype=np.float32) for count in (rows, columns))
    down, along = np.broadcast_to(of_rows[:, None], (rows, columns)), np.broadcast_to(of_columns, (rows, columns))
    seen, across = processing.traced(down, tensor.name), processing.traced(along, tensor.name)
    if seen is down and across is along:
        return np.arange(rows)
    if seen is None or across is None or seen.shape != (rows, columns) or across.shape != (rows, columns):
        return None
    order = seen[:, 0]
    whole = np.array_equal(np.sort(order), of_rows) and (seen == order[:, None]).all()
    return order.astype(np.int64) if whole and (across == of_columns).all() else None
