"""Writes down what a pass does, in steps that C can walk, while the pass runs once on numbers that mean nothing.

PyTorch says each operation before it does it, and TALON's own kernels say theirs to the tape that runs (`noting`). Rows
are told by how many there are: a prime, of which no width of a layer is a multiple. So a step of a pass over 61 nodes
is one of a pass over any number. Nothing is computed: results are memory of the right shape. What only follows from
positions, as rotary angles do, is computed beforehand for all of them. What comes after the last step that C knows, as
choosing the best tokens does, is done by PyTorch again in each pass; while the tape is written, with zeros.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map

from talon_kernels.recorded.steps import Op, Operand, Piece, Step
from talon_kernels.stored import Stored, kind_of, shape_of

_aten = torch.ops.aten
_float32 = torch.float32

TWO = {
    _aten.add.Tensor: Op.ADD,
    _aten.sub.Tensor: Op.SUBTRACT,
    _aten.mul.Tensor: Op.MULTIPLY,
    _aten.div.Tensor: Op.DIVIDE,
}
"""Operations on the elements of two tensors, or of one and a number."""

COPIES = {_aten.clone.default, _aten._to_copy.default}
EMPTY = {_aten.empty.memory_format, _aten.new_empty.default, _aten.empty_like.default}
LOOK_UPS = {_aten.embedding.default: (0, 1), _aten.index_select.default: (0, 2)}
"""Operations that take rows of a table, and which arguments are the table and the index."""


MOST_POSITIONS = 2**62
"""The rows of a table of positions: it is made anew where it has too few."""


class CannotRecord(RuntimeError):
    """A pass does what a tape does not know."""


class _Here(threading.local):
    tape: Tape | None = None


_HERE = _Here()


def noting() -> Tape | None:
    """The tape that is written in this thread now, if one is."""
    return _HERE.tape


@attrs.frozen
class Count:
    """Rows of a kind: as many as the pass has queries, or as an index has numbers.

    Attributes:
        number: its place among the counts of a pass.
        most: how many there are while the tape is written; a prime.
    """

    number: int
    most: int


@attrs.define(eq=False)
class Storage:
    """Memory of tensors that the pass has made or found.

    Attributes:
        piece: which piece of memory it is.
        held: a tensor in it, so that it lasts.
        made: whether the pass makes it.
    """

    piece: Piece
    held: Tensor
    made: bool


@attrs.frozen(eq=False)
class Tail:
    """An operation that PyTorch does in each pass: `function(*arguments, **keywords)`, with what stands for tensors."""

    function: Callable[..., Any]
    arguments: Any
    keywords: Any
    out: tuple[int, ...]


@attrs.frozen(eq=False)
class View:
    """A tensor over memory of the pass, whose rows are as many as the pass has.

    Attributes:
        piece: the memory.
        offset: in numbers of its type.
        sizes: a size below 0 counts rows.
        strides: in numbers of its type.
        count: which rows.
        whole: its numbers are int64, and not float32.
    """

    piece: Piece
    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    count: int
    whole: bool = False


@attrs.frozen
class Found:
    """What an operation of the tail has found before."""

    number: int


class Tape(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """The steps of one pass.

    Args:
        ids: token ids, of the shape that the pass reads, int64.
        positions: likewise.
        more: further numbers of the pass, by name, int64.
        counted: which of the counts says how many there are of each name.
        counts: different primes; the first is the number of queries.
        lanes: the least size of a head that attention in C takes.

    Attributes:
        steps: what C does, in order.
        tail: what PyTorch does then.
        made: pieces of memory that the pass makes, and how many float32 numbers they have.
        addresses: of pieces that stay where they are.
        held: tensors there, so that they last.
        inputs: pieces with what a pass is given, and its name.
        caches: pieces with the keys (0) and values (1) of a layer.
        positional: pieces with a row for each position, and what they are for the positions of the tape.
        angles: how these follow from `positions`: function, arguments, keywords, results.
        positions: the positions of the tape.
    """

    def __init__(
        self,
        ids: Tensor,
        positions: Tensor,
        more: Mapping[str, Tensor],
        counted: Mapping[str, int],
        counts: Sequence[int],
        lanes: int,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.steps: list[Step] = []
        self.tail: list[Tail] = []
        self.made: dict[Piece, int] = {}
        self.addresses: dict[Piece, int] = {}
        self.held: list[Tensor] = []
        self._weights: dict[int, Piece] = {}  # by address
        self.inputs: dict[Piece, str] = {}
        self.caches: dict[tuple[int, int], Piece] = {}
        self.positional: dict[Piece, Tensor] = {}
        self.angles: list[tuple[Callable[..., Any], Any, Any, list[Tensor]]] = []
        self.positions = positions
        self._lanes = lanes
        self._outer: list[Tape | None] = []
        self._counts = [Count(number, most) for number, most in enumerate(counts)]
        self._pieces = 0
        self._storages: dict[int, Storage] = {}
        self._kept: list[Tensor] = []
        self._from_positions: dict[int, Tensor] = {}
        self._gathered: dict[int, Piece] = {}
        self._tailed: set[int] = set()  # memory that PyTorch writes to
        self._results: dict[int, int] = {}  # what it has found there, by the tensor
        self._index = {_key(ids): self._input("ids"), _key(positions): -1}
        self._input_count = {_key(ids): self._counts[0]}
        self._position_piece = self._input("positions")
        for name, tensor in more.items():
            self._index[_key(tensor)] = self._input(name)
            self._input_count[_key(tensor)] = self._counts[counted[name]]
        self._kept += [ids, positions, *more.values()]
        self._from_positions[_key(positions)] = positions

    def let_go(self) -> None:
        """Give up what was needed to write: the tensors of the pass that was watched."""
        self._storages.clear()
        self._from_positions.clear()
        self._kept.clear()

    # Pieces of memory

    def piece(self) -> Piece:
        """A piece that there was not yet."""
        self._pieces += 1
        return self._pieces - 1

    def _input(self, name: str) -> Piece:
        piece = self.piece()
        self.inputs[piece] = name
        return piece

    @property
    def pieces(self) -> int:
        """How many pieces of memory there are."""
        return self._pieces

    def _fresh(self, tensor: Tensor) -> Tensor:
        """Note that the pass makes the memory of a tensor."""
        piece = self.piece()
        self.made[piece] = tensor.untyped_storage().nbytes() // 4
        self._storages[_key(tensor)] = Storage(piece, tensor, True)
        return tensor

    def _storage(self, tensor: Tensor) -> Storage:
        """What is known of a tensor's memory; what is not known was there before."""
        key = _key(tensor)
        if key in self._tailed:
            raise CannotRecord("a step would read what PyTorch computes")
        if key in self._from_positions:
            return Storage(self._angle(tensor), tensor, True)
        if key not in self._storages:
            if key in self._index:
                raise CannotRecord("the pass computes with token ids or indices")
            if any(size % count.most == 0 and size for size in tensor.shape for count in self._counts):
                raise CannotRecord(f"a tensor of shape {tuple(tensor.shape)} may or may not follow the rows")
            self._storages[key] = Storage(self._constant(tensor, tensor.untyped_storage().data_ptr()), tensor, False)
        return self._storages[key]

    def _constant(self, tensor: Tensor, address: int) -> Piece:
        """Memory that stays where it is: one piece for an address, so that it is known what is written there."""
        if address not in self._weights:
            self._weights[address] = self.piece()
            self.addresses[self._weights[address]] = address
            self.held.append(tensor.detach())  # the memory itself: a parameter may be given another one
        return self._weights[address]

    def _angle(self, tensor: Tensor) -> Piece:
        """The memory with a row for each of the pass's positions, taken from a table of all positions."""
        key = _key(tensor)
        if key not in self._gathered:
            base = self._from_positions[key]
            rows = self._counts[0].most
            shape = [size for size in base.shape if size != 1]
            if base.dtype is not _float32 or not base.is_contiguous() or not shape or shape[0] != rows:
                raise CannotRecord(f"what follows from positions has shape {tuple(base.shape)}, not rows first")
            width = base.numel() // rows
            table, own = self.piece(), self.piece()
            self.positional[table] = base
            self.made[own] = base.numel()
            operands: list[Operand | None] = [Operand(own, 0, (width,)), Operand(table), Operand(self._position_piece)]
            self.steps.append(Step(Op.GATHER, 0, operands, (), (width, 0, MOST_POSITIONS)))
            self._gathered[key] = own
        return self._gathered[key]

    # Shapes

    def rows_of(self, sizes: Sequence[int]) -> tuple[tuple[int, ...], Count]:
        """Sizes with those that count rows below 0, and which rows these are.

        Raises:
            CannotRecord: if none does, or several do.
        """
        out, counts = [], []
        for size in sizes:
            found = next((count for count in self._counts if size and size % count.most == 0), None)
            if found is not None:
                counts.append(found)
            out.append(size if found is None else -(size // found.most))
        if len(counts) != 1:
            raise CannotRecord(f"of the sizes {tuple(sizes)} {len(counts)} count rows, not one")
        return tuple(out), counts[0]

    def _operand(self, tensor: Tensor) -> Operand:
        if tensor.dtype is not _float32:
            raise CannotRecord(f"a step would read {tensor.dtype}")
        storage = self._storage(tensor)
        return Operand(storage.piece, int(tensor.storage_offset()), tensor.stride())

    def _aligned(self, tensor: Tensor, shape: Sequence[int]) -> Operand:
        """An operand with a stride for each dimension of the result, 0 where it is repeated."""
        own = self._operand(tensor)
        missing = len(shape) - tensor.dim()
        strides = [0] * missing + [
            0 if size == 1 else stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
        ]
        return Operand(own.piece, own.offset, tuple(strides))

    def _elements(self, op: Op, out: Tensor, operands: Sequence[Tensor], scalars: tuple[float, ...] = ()) -> None:
        sizes, count = self.rows_of(out.shape)
        given = [Operand(self._storage(out).piece, int(out.storage_offset()), out.stride())]
        given += [self._aligned(tensor, out.shape) for tensor in operands]
        # dimensions of one element say nothing; steps have a fixed number of dimensions
        kept = [at for at, size in enumerate(sizes) if size != 1]
        if len(kept) > 5:
            raise CannotRecord(f"a tensor of shape {tuple(out.shape)} has too many dimensions")
        pad = 5 - len(kept)
        padded = [Operand(one.piece, one.offset, (0,) * pad + tuple([one.strides[at] for at in kept])) for one in given]
        whole: list[Operand | None] = [*padded]
        if len(whole) == 2:
            whole.append(None)
        steps = Step(op, count.number, whole, (1,) * pad + tuple(sizes[at] for at in kept), (), scalars)
        self.steps.append(steps)

    # What kernels say

    def _result(self, shape: Sequence[int]) -> Tensor:
        with _disable_current_modes():  # a large one takes no memory while nobody writes to it
            return self._fresh(torch.empty(tuple(shape), dtype=_float32))

    def _weight(self, weight: Stored) -> Operand:
        data = weight if isinstance(weight, Tensor) else weight.data
        return Operand(self._constant(data, data.data_ptr()))

    def _optional(self, tensor: Tensor | None) -> Operand | None:
        return None if tensor is None else self._operand(tensor)

    def _rows(self, x: Tensor) -> tuple[int, Count, range]:
        """How contiguous rows lie: rows of the layer for each row of the pass, which rows, and where blocks begin.

        Blocks begin at rows of the layer. There are several where another dimension stands before the rows, as the
        heads do in some attention.
        """
        sizes, count = self.rows_of(x.shape[:-1])
        at = next(at for at, size in enumerate(sizes) if size < 0)
        each = -sizes[at] * math.prod(sizes[at + 1 :])
        blocks = math.prod(sizes[:at])
        return each, count, range(0, blocks * each * count.most, each * count.most)

    def _moved(self, tensor: Tensor, rows: int) -> Operand:
        """An operand that begins so many rows later."""
        own = self._operand(tensor)
        return Operand(own.piece, own.offset + rows * tensor.shape[-1], own.strides)

    def linear(self, x: Tensor, weight: Stored, bias: Tensor | None) -> Tensor:
        """A product with a weight; x is contiguous, shape `(.., in)`."""
        out, inputs = shape_of(weight)
        each, count, blocks = self._rows(x)
        y = self._result((*x.shape[:-1], out))
        stored = [self._weight(weight), self._optional(bias)]
        for start in blocks:
            operands = [self._moved(y, start), self._moved(x, start), *stored]
            self.steps.append(Step(Op.LINEAR, count.number, operands, (), (-each, out, inputs, kind_of(weight))))
        return y

    def gated_mlp(self, x: Tensor, gate: Any, up: Any, down: Any, activation: int) -> Tensor:
        """A gated MLP; each of the three is a weight and a bias or None."""
        hidden, inputs = shape_of(gate[0])
        out, _ = shape_of(down[0])
        each, count, blocks = self._rows(x)
        y = self._result((*x.shape[:-1], out))
        scratch = self._operand(self._result((2, each * count.most, hidden)))
        three = (gate, up, down)
        stored = [*(self._weight(weight) for weight, _ in three), *(self._optional(bias) for _, bias in three)]
        numbers = (-each, out, hidden, inputs, activation, *(kind_of(weight) for weight, _ in three))
        for start in blocks:
            operands = [self._moved(y, start), self._moved(x, start), *stored, scratch]
            self.steps.append(Step(Op.MLP, count.number, operands, (), numbers))
        return y

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
        """An RMS norm of contiguous rows."""
        each, count, blocks = self._rows(x)
        y = self._result(x.shape)
        for start in blocks:
            operands: list[Operand | None] = [self._moved(y, start), self._moved(x, start), self._operand(weight)]
            self.steps.append(Step(Op.NORM, count.number, operands, (), (-each, x.shape[-1]), (eps, offset)))
        return y

    def best_tokens(self, scores: Tensor, width: int) -> Tensor:
        """The best tokens of contiguous rows of scores, as `best_tokens` gives them."""
        sizes, count = self.rows_of(scores.shape)
        if sizes[0] != -1:
            raise CannotRecord(f"scores of shape {tuple(scores.shape)} are not a row for each of the pass")
        y = self._result((scores.shape[0], 2 * width))
        operands: list[Operand | None] = [self._operand(y), self._operand(scores)]
        self.steps.append(Step(Op.BEST, count.number, operands, (), (scores.shape[1], width)))
        return y

    def embedding(self, table: Stored, ids: Tensor) -> Tensor:
        """Rows of a table, whose index is an input."""
        y = self._result((*ids.shape, shape_of(table)[1]))
        self._take(y, self._weight(table), shape_of(table)[0], kind_of(table), ids)
        return y

    def _take(self, y: Tensor, table: Operand, rows: int, kind: int, index: Tensor) -> None:
        key = _key(index)
        if key not in self._index or self._index[key] < 0 or index.numel() != self._input_count[key].most:
            raise CannotRecord("rows are taken by an index that is no input")
        width = y.shape[-1]
        own = attrs.evolve(self._operand(y), strides=(width,))
        operands: list[Operand | None] = [own, table, Operand(self._index[key])]
        self.steps.append(Step(Op.GATHER, self._input_count[key].number, operands, (), (width, kind, rows)))

    def write(self, layer: int, which: int, buffer: Tensor, new: Tensor) -> None:
        """Rows of keys (`which` is 0) or values (1) to their places; new has shape `(1, heads, rows, size)`."""
        if new.stride(3) != 1 or new.shape[2] != self._counts[0].most:
            raise CannotRecord(f"keys or values of shape {tuple(new.shape)} are no rows of numbers")
        rows = attrs.evolve(self._operand(new), strides=(0, new.stride(1), new.stride(2)))
        place = Operand(self._cache(layer, which))
        self.steps.append(Step(Op.WRITE, 0, [place, rows], (), (new.shape[1], new.shape[3]), (), layer))

    def _cache(self, layer: int, which: int) -> Piece:
        if (layer, which) not in self.caches:
            self.caches[layer, which] = self.piece()
        return self.caches[layer, which]

    def attend(
        self,
        layer: int,
        query: Tensor,
        value_dim: int,
        kv_heads: int,
        scale: float,
        softcap: float | None,
        window: int | None,
        sinks: Tensor | None,
    ) -> Tensor:
        """Attention of one layer over its cache; query has shape `(heads, rows, head_dim)`."""
        heads, rows, head_dim = query.shape
        if head_dim != value_dim or query.stride(2) != 1 or head_dim < self._lanes:
            raise CannotRecord(f"heads of {head_dim} and {value_dim} numbers have to be padded for attention")
        out = self._result((rows, heads, head_dim))
        sinks_at = None if sinks is None else self._operand(sinks.to(_float32).contiguous())
        operands: list[Operand | None] = [
            attrs.evolve(self._operand(out), strides=(out.stride(1), out.stride(0))),
            attrs.evolve(self._operand(query), strides=(query.stride(0), query.stride(1))),
            Operand(self._cache(layer, 0)),
            Operand(self._cache(layer, 1)),
            sinks_at,
        ]
        numbers = (heads, kv_heads, head_dim, window or 0)
        self.steps.append(Step(Op.ATTEND, 0, operands, (), numbers, (scale, softcap or 0.0), layer))
        return out.transpose(0, 1)

    # What PyTorch says

    def __enter__(self) -> Tape:
        super().__enter__()  # type: ignore[no-untyped-call]
        self._outer.append(_HERE.tape)
        _HERE.tape = self
        return self

    def __exit__(self, *error: Any) -> None:
        _HERE.tape = self._outer.pop()
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._can_decompose():
            with self:  # in inference mode, operations that are made of others come undivided
                return func.decompose(*args, **kwargs)
        tensors = [*_tensors_in((*args, *kwargs.values()))]
        if any(_key(each) in self._tailed for each in tensors):
            return self._into_tail(func, args, kwargs)
        known = [each for each in tensors if self._known(each)]
        if not known:
            return func(*args, **kwargs)  # of what was there before: it stays what it is
        if all(_key(each) in self._from_positions for each in known) and not func._schema.is_mutable:
            out = func(*args, **kwargs)
            made = tree_flatten(out)[0]
            if not all(isinstance(each, Tensor) for each in made):
                raise CannotRecord(f"{func} asks for a number of the positions")
            self.angles.append((func, args, kwargs, made))
            for each in made:
                self._from_positions.setdefault(_key(each), each)
                self._kept.append(each)
            return out
        if not func._schema.is_mutable:
            out = self._step(func, args, kwargs)
            if out is not None:
                return out
            if func.is_view or _aliases(func):
                out = func(*args, **kwargs)
                self._kept += [each for each in tree_flatten(out)[0] if isinstance(each, Tensor)]
                return out
            return self._into_tail(func, args, kwargs)
        if func is _aten.index_copy_.default and args[1] == 0:
            return self._scatter(*args)
        raise CannotRecord(f"{func} changes a tensor")

    def _known(self, tensor: Tensor) -> bool:
        """Whether a tensor follows from what the pass reads."""
        key = _key(tensor)
        storage = self._storages.get(key)
        return key in self._index or key in self._from_positions or (storage is not None and storage.made)

    def _step(self, func: Any, args: Any, kwargs: Any) -> Tensor | None:
        """The result of an operation that C knows, of which a step is noted; None for another."""
        if func in TWO and kwargs.get("alpha", 1) == 1 and isinstance(args[0], Tensor):
            first, second = args[:2]
            both = [each for each in (first, second) if isinstance(each, Tensor)]
            if any(each.dtype is not _float32 for each in both):
                return None
            out = self._result(np.broadcast_shapes(*(each.shape for each in both)))
            self._elements(TWO[func], out, both, (float(second),) if len(both) == 1 else ())
            return out
        if func is _aten.neg.default and args[0].dtype is _float32:
            out = self._result(args[0].shape)
            self._elements(Op.NEGATE, out, [args[0]])
            return out
        if func in COPIES and args[0].dtype is _float32 and kwargs.get("dtype", _float32) in (None, _float32):
            out = self._result(args[0].shape)
            self._elements(Op.COPY, out, [args[0]])
            return out
        if func in EMPTY and kwargs.get("dtype", _float32) in (None, _float32):
            with _disable_current_modes():
                return self._fresh(func(*args, **kwargs).zero_())
        if func is _aten.cat.default:
            return self._joined(*args, **kwargs)
        if func is _aten.argmax.default:
            return self._largest(*args, **kwargs)
        if func in LOOK_UPS:
            return self._looked_up(func, args)
        return None

    def _joined(self, parts: Sequence[Tensor], dim: int = 0) -> Tensor | None:
        if any(part.dtype is not _float32 for part in parts):
            return None
        shape = list(parts[0].shape)
        shape[dim] = sum(part.shape[dim] for part in parts)
        out = self._result(shape)
        start = 0
        for part in parts:
            with _disable_current_modes():
                own = out.narrow(dim, start, part.shape[dim])
            self._elements(Op.COPY, own, [part])
            start += part.shape[dim]
        return out

    def _largest(self, scores: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor | None:
        rows = scores.dim() == 2 and scores.dtype is _float32 and scores.stride(1) == 1
        if not rows or dim not in (-1, 1) or keepdim:
            return None
        sizes, count = self.rows_of(scores.shape)
        if sizes[0] != -1:  # the vocabulary, perhaps
            return None
        with _disable_current_modes():
            out = self._fresh(torch.zeros(scores.shape[0], dtype=torch.int64))
        operands = [Operand(self._storage(out).piece), self._operand(scores)]
        self.steps.append(Step(Op.LARGEST, count.number, [*operands], (), (scores.shape[1],)))
        return out

    def _looked_up(self, func: Any, args: Any) -> Tensor | None:
        table, index = (args[at] for at in LOOK_UPS[func])
        if table.dim() != 2 or (func is _aten.index_select.default and args[1] != 0):
            return None
        if table.dtype is not _float32 or not table.is_contiguous():
            raise CannotRecord(f"rows are taken of a table of {table.dtype}")
        if _key(index) not in self._index:
            return self._in_order(table, index)
        y = self._result((*index.shape, table.shape[1]))
        storage = self._storages.get(_key(table))
        place = self._operand(table) if storage is not None and storage.made else self._weight(table)
        if place.offset:
            raise CannotRecord("rows are taken of a part of a table")
        self._take(y, place, table.shape[0], 0, index)
        return y

    def _in_order(self, table: Tensor, index: Tensor) -> Tensor:
        """Rows that are taken as they stand."""
        rows = self._counts[0].most
        if index.numel() != rows or table.shape[0] != rows or index.flatten().tolist() != list(range(rows)):
            raise CannotRecord("rows are taken by an index that is no input")
        with _disable_current_modes():
            own = table.reshape(*index.shape, table.shape[1])
        out = self._result(own.shape)
        self._elements(Op.COPY, out, [own])
        return out

    def _scatter(self, table: Tensor, dim: int, index: Tensor, rows: Tensor) -> Tensor:
        key = _key(index)
        storage = self._storages.get(_key(table))
        if key not in self._index or self._index[key] < 0 or (storage is not None and storage.made) or dim != 0:
            raise CannotRecord("rows are written by an index that is no input")
        if rows.stride(1) != 1 or not table.is_contiguous():
            raise CannotRecord("rows are written that are no rows of numbers")
        operands = [self._weight(table), self._operand(rows), Operand(self._index[key])]
        numbers = table.shape[1], len(table)
        self.steps.append(Step(Op.SCATTER, self._input_count[key].number, [*operands], (), numbers))
        return table

    # The tail

    def _into_tail(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func._schema.is_mutable:
            raise CannotRecord(f"{func} changes a tensor")
        for each in _tensors_in((*args, *kwargs.values())):
            storage = self._storages.get(_key(each))
            if storage is not None and storage.made:
                with _disable_current_modes():
                    storage.held.zero_()
        out = func(*args, **kwargs)
        arguments, keywords = tree_map(self.standing_for, (args, kwargs))
        numbers = []
        for each in tree_flatten(out)[0]:
            if not isinstance(each, Tensor):
                raise CannotRecord(f"{func} answers with a number")
            self._tailed.add(_key(each))
            self._kept.append(each)
            self._results[id(each)] = len(self._results)
            numbers.append(self._results[id(each)])
        self.tail.append(Tail(func, arguments, keywords, tuple(numbers)))
        return out

    def standing_for(self, value: Any) -> Any:
        """What stands for a value in each pass: a view of the pass's memory for a tensor, and itself for others.

        Raises:
            CannotRecord: if it may depend on the number of rows in another way.
        """
        if isinstance(value, Tensor):
            if id(value) in self._results:
                return Found(self._results[id(value)])
            if not self._known(value):
                return value
            sizes, count = self.rows_of(value.shape)
            if value.dtype is torch.int64 and _key(value) in self._storages:
                piece = self._storages[_key(value)].piece
                return View(piece, int(value.storage_offset()), sizes, value.stride(), count.number, whole=True)
            own = self._operand(value)
            return View(own.piece, own.offset, sizes, own.strides, count.number)
        number = value if isinstance(value, int) and not isinstance(value, bool) else 0
        if number and any(number % count.most == 0 for count in self._counts):
            raise CannotRecord("PyTorch would be given the number of rows")
        return value


def _key(tensor: Tensor) -> int:
    """Tells the memory of tensors apart, for as long as these live."""
    key: int = tensor.untyped_storage()._cdata
    return key


def _tensors_in(arguments: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among an operation's arguments, which may be lists of them."""
    for each in arguments:
        if isinstance(each, Tensor):
            yield each
        elif isinstance(each, list | tuple):
            yield from _tensors_in(each)


def _aliases(func: Any) -> bool:
    """Whether an operation may give its argument's own memory, as reshaping does."""
    return any(each.alias_info is not None for each in func._schema.returns)
