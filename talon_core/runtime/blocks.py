"""Weights that stay as GGUF stores them, in blocks of a few bits a number, and layers that hold such weights."""

import copy
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import attrs
import numpy as np
import torch
from torch import Tensor, nn

ROWS_AT_A_TIME = 512
"""Rows that are widened together: what that takes besides stays small."""

KINDS = ("F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
"""What ggml calls the kinds of blocks that are kept, numbers of 16 bits among them, each of which is a block; other
kinds become float32 numbers when a model is loaded."""


class BlockSize(NamedTuple):
    """How many numbers a block holds, and in how many bytes."""

    numbers: int
    bytes: int


@cache
def block_sizes() -> Mapping[int, BlockSize]:
    """The sizes of the kinds of `KINDS`, by ggml's number of the kind."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    kinds = [GGMLQuantizationType[name] for name in KINDS]
    return {int(kind): BlockSize(*GGML_QUANT_SIZES[kind]) for kind in kinds}


@attrs.frozen(eq=False)
class Blocks:
    """A matrix in blocks: each row is a number of whole blocks.

    Attributes:
        data: shape `(rows, bytes of a row)`, uint8, contiguous.
        kind: ggml's number of the kind of blocks.
        columns: numbers of a row.

    Raises:
        ValueError: if the kind is none of `KINDS`, or the data has not this type and shape.
    """

    data: Tensor
    kind: int
    columns: int

    @property
    def size(self) -> BlockSize:
        """Of a block."""
        return block_sizes()[self.kind]

    def __attrs_post_init__(self) -> None:
        if self.kind not in block_sizes():
            raise ValueError(f"blocks of ggml's kind {self.kind} are not understood; kinds are {', '.join(KINDS)}")
        numbers, count = self.size
        wanted = self.columns // numbers * count
        whole = self.columns > 0 and self.columns % numbers == 0
        fits = self.data.dtype == torch.uint8 and self.data.ndim == 2 and self.data.shape[1] == wanted
        if not whole or not fits or not self.data.is_contiguous():
            raise ValueError(
                f"{self.columns} columns in blocks of {numbers} numbers and {count} bytes are contiguous uint8 rows of "
                f"{wanted} bytes; the data has type {self.data.dtype} and shape {tuple(self.data.shape)}"
            )

    @property
    def rows(self) -> int:
        """How many there are."""
        return int(self.data.shape[0])

    @property
    def bits(self) -> float:
        """Bits of a number, with its share of what a block holds besides."""
        return 8 * self.size.bytes / self.size.numbers

    def widened(self, rows: Tensor | None = None) -> Tensor:
        """The numbers that the blocks stand for, as GGUF's own reader has them.

        Args:
            rows: which, integers of shape `(rows,)`; None for all.

        Returns:
            Shape `(rows, columns)`, float32, on the device of the blocks.

        Raises:
            IndexError: if there is no such row.
        """
        from gguf.constants import GGMLQuantizationType
        from gguf.quants import dequantize

        with torch.inference_mode(False), torch.no_grad():
            wanted = self.data if rows is None else torch.index_select(self.data, 0, rows.to(self.data.device))
            given = wanted.cpu().numpy()
            out = torch.empty((len(given), self.columns), dtype=torch.float32, device="cpu")
            numbers = out.numpy()
            with np.errstate(all="ignore"):  # numbers of a damaged file may be anything
                for start in range(0, len(given), ROWS_AT_A_TIME):
                    part = given[start : start + ROWS_AT_A_TIME]
                    together = part.reshape(1, -1)  # gguf's reader would go through a few rows at a time, in Python
                    wide = dequantize(together, GGMLQuantizationType(self.kind))
                    numbers[start : start + len(part)] = wide.reshape(len(part), -1)
            return out.to(self.data.device)

    def of_rows(self, rows: Tensor) -> "Blocks":
        """A copy of these rows, integers of shape `(rows,)`, in blocks as well."""
        return Blocks(torch.index_select(self.data, 0, rows.to(self.data.device)), self.kind, self.columns)


class _Copy:
    """The numbers of one layer's blocks, once they were asked for; another one after the blocks have changed."""

    def __init__(self) -> None:
        self.numbers: Tensor | None = None
        self._of: tuple[object, ...] = ()

    def of(self, data: Tensor, dtype: torch.dtype, widen: Callable[[], Tensor]) -> Tensor:
        now = (data.data_ptr(), 0 if data.is_inference() else data._version, data.device, dtype)
        if self.numbers is None or now != self._of:
            self.numbers, self._of = widen(), now
        return self.numbers


@cache
def _leave_alone() -> None:
    """Let compilers of what calls these functions leave them as they are: they would not see what NumPy writes.

    Not done when the module is imported: it imports the compiler.
    """
    for cls, name in ((InBlocks, "numbers"), (BlockLinear, "_kept")):
        setattr(cls, name, torch.compiler.disable(getattr(cls, name)))  # type: ignore[no-untyped-call]  # of torch


class InBlocks(nn.Module):
    """A layer whose weight is in blocks, which are a buffer, `data`; layers that are tied share it.

    Another buffer, `like`, is an empty tensor of the type in which the layer computes: it changes with the model's. In
    a `state_dict` the layer has what its plain like has, the numbers of its weight.

    Args:
        blocks: the weight.
    """

    data: Tensor
    like: Tensor

    def __init__(self, blocks: Blocks) -> None:
        super().__init__()
        _leave_alone()
        self.kind = blocks.kind
        self.columns = blocks.columns
        self.register_buffer("data", blocks.data, persistent=False)
        self.register_buffer("like", torch.empty(0, dtype=torch.float32, device=blocks.data.device), persistent=False)

    @property
    def blocks(self) -> Blocks:
        """The weight."""
        return Blocks(self.data, self.kind, self.columns)

    @property
    def weight_shape(self) -> tuple[int, int]:
        """Rows and columns of the weight."""
        return int(self.data.shape[0]), self.columns

    @property
    def weight(self) -> Tensor:
        """The numbers of the weight, shape `(rows, columns)`, for whoever must have all of them."""
        return self.numbers()

    def numbers(self, rows: Tensor | None = None) -> Tensor:
        """As `Blocks.widened`, in the type in which the layer computes."""
        return self.blocks.widened(rows).to(self.like.dtype)

    def forget(self) -> None:
        """Give up what is kept besides the blocks."""

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        destination[f"{prefix}weight"] = self.numbers()
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: Any,
        local_metadata: Any,
        strict: Any,
        missing_keys: Any,
        unexpected_keys: Any,
        error_msgs: Any,
    ) -> None:
        """What `state_dict` gave may be given back; other numbers have no place in the blocks."""
        weight = state_dict.pop(f"{prefix}weight", None)
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        if weight is not None and not torch.equal(weight.to(self.like), self.numbers()):
            why = "other numbers cannot be put into blocks; load the model with dequantize=True"
            error_msgs.append(f"{prefix}weight: {why}")


class BlockLinear(InBlocks):
    """`nn.Linear` with its weight in blocks.

    `forward` gives what `nn.Linear` gives with the widened weight, bit for bit, and keeps that weight: it runs where
    nothing reads the blocks themselves. `forget` gives it up again.

    Args:
        in_features: as of `nn.Linear`.
        out_features: likewise.
        blocks: the weight.
        bias: shape `(out_features,)`, or None.

    Raises:
        ValueError: if the blocks are of another shape.
    """

    bias: nn.Parameter | None

    def __init__(self, in_features: int, out_features: int, blocks: Blocks, bias: Tensor | None = None) -> None:
        super().__init__(blocks)
        if (blocks.rows, blocks.columns) != (out_features, in_features):
            raise ValueError(
                f"the blocks are {blocks.rows} rows of {blocks.columns} numbers; a layer from {in_features} to "
                f"{out_features} features needs {out_features} rows of {in_features}"
            )
        self.in_features = in_features
        self.out_features = out_features
        self.register_parameter("bias", None if bias is None else nn.Parameter(bias.detach(), requires_grad=False))
        self._copy = _Copy()

    @property
    def weight(self) -> Tensor:
        """The numbers of the weight, shape `(out_features, in_features)`; kept from then on, until `forget`."""
        return self._kept()

    def _kept(self) -> Tensor:
        return self._copy.of(self.data, self.like.dtype, self.numbers)

    def forget(self) -> None:
        """Give up the widened weight."""
        self._copy.numbers = None

    def forward(self, x: Tensor) -> Tensor:
        """As `nn.Linear`."""
        return nn.functional.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        """Sizes and kind."""
        kind = self.kind
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, {kind=}"
        )


class BlockEmbedding(InBlocks):
    """`nn.Embedding` with its table in blocks, of which only the rows are widened that are asked for.

    Args:
        blocks: the table.
        made_of: a layer of a subclass of `nn.Embedding`, whose own `forward` does more than look up, as Gemma's does:
            it is run with a table of the rows that are asked for. It is not changed. None for a plain table.
    """

    def __init__(self, blocks: Blocks, made_of: nn.Embedding | None = None) -> None:
        super().__init__(blocks)
        self.num_embeddings = blocks.rows
        self.embedding_dim = blocks.columns
        if made_of is not None:
            made_of = copy.copy(made_of)
            made_of._parameters = {name: each for name, each in made_of._parameters.items() if name != "weight"}
            made_of.padding_idx = None  # which only training reads, and which need not be a row of the smaller table
        self.made_of = made_of

    def look_up(self, ids: Tensor) -> Tensor:
        """Rows of the table, from integers of any shape to `(.., embedding_dim)`, with nothing done to them."""
        return self.numbers(ids.reshape(-1)).reshape(*ids.shape, self.embedding_dim)

    def forward(self, ids: Tensor) -> Tensor:
        """As the layer that it is made of."""
        if self.made_of is None:
            return self.look_up(ids)
        own = copy.copy(self.made_of)  # nothing is written to a layer that others may be running
        vars(own)["weight"] = self.look_up(ids.reshape(-1))
        places = torch.arange(ids.numel(), device=ids.device).reshape(ids.shape)
        out: Tensor = own(places)
        return out

    def extra_repr(self) -> str:
        """Sizes and kind."""
        return f"{self.num_embeddings}, {self.embedding_dim}, kind={self.kind}"


def shape_of_weight(layer: Any) -> tuple[int, int]:
    """The shape of the weight of a linear layer or an embedding, which may have it in blocks."""
    rows, columns = layer.weight_shape if isinstance(layer, InBlocks) else layer.weight.shape
    return int(rows), int(columns)


def like_weight(layer: Any) -> Tensor:
    """An empty tensor in the type and on the device of such a layer's weight."""
    like: Tensor = layer.like if isinstance(layer, InBlocks) else layer.weight.detach().reshape(-1)[:0]
    return like


def layers_in_blocks(model: nn.Module) -> Iterator[tuple[str, InBlocks]]:
    """The layers of a model whose weights are in blocks, with their names."""
    for name, module in model.named_modules():
        if isinstance(module, InBlocks):
            yield name, module


def forget_widened(model: nn.Module) -> None:
    """Give up what a model's layers keep besides their blocks: the next plain pass widens them anew."""
    for _, layer in layers_in_blocks(model):
        layer.forget()


def named_weights(model: nn.Module) -> Iterator[tuple[str, nn.Parameter | InBlocks]]:
    """A model's weights, each once, with the names and in the order that they have without blocks.

    Yields:
        The name, and the parameter, or the layer that holds it in blocks.
    """
    seen: set[int] = set()
    for name, module in model.named_modules():
        own: list[tuple[str, Any, Any]] = [(each, given, given) for each, given in module._parameters.items()]
        if isinstance(module, InBlocks):
            own.insert(0, ("weight", module, module.data))
        for each, given, tensor in own:
            if tensor is not None and id(tensor) not in seen:
                seen.add(id(tensor))
                yield f"{name}.{each}" if name else each, given


@attrs.frozen
class Held:
    """What a model's weights take, each counted once.

    Attributes:
        in_blocks: bytes of those in blocks.
        whole: bytes of all.
        others: the types of those that are not in blocks, as in "float32".
    """

    in_blocks: int
    whole: int
    others: str

    @classmethod
    def by(cls, model: nn.Module) -> "Held":
        """What the weights of a model take."""
        weights = [weight for _, weight in named_weights(model)]
        blocks = sum(weight.data.nbytes for weight in weights if isinstance(weight, InBlocks))
        plain = [weight for weight in weights if not isinstance(weight, InBlocks)]
        types = sorted({str(weight.dtype).removeprefix("torch.") for weight in plain})
        return cls(blocks, blocks + sum(weight.nbytes for weight in plain), " and ".join(types))

    def __str__(self) -> str:
        """As in "4,096 of 8,192 bytes in blocks; the rest float32"."""
        rest = f"; the rest {self.others}" if self.in_blocks < self.whole else ""
        return f"{self.in_blocks:,} of {self.whole:,} bytes in blocks{rest}"
