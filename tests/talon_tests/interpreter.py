"""Triton's interpreter, without what it does again and again to no effect, and with guards round what kernels touch."""

import ctypes
import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Any
from weakref import WeakSet

import pytest
import torch

from talon_core.testing.tape import Tape
from talon_kernels.commit_path import BufferTable


def patch_once(patch: pytest.MonkeyPatch) -> None:
    """Let the interpreter prepare Triton's language once in each launch for the functions of a module.

    It does so whenever a kernel calls a function, though it stays prepared until the launch is over: by looking at
    every name of the language, which takes longer than most functions do. And for each sum, difference and product of
    integers it works out in 64 bits whether they overflow, and says so to nobody but a debugger: where nobody debugs,
    that is left out. And it looks a type up in a table of all types that it makes anew for each look, and writes down
    the sizes of each value anew, which are those of many others.

    Args:
        patch: undoes it.
    """
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    prepare, launch = interpreter._patch_lang, interpreter.GridExecutor.__call__
    prepared: set[int] = set()  # the global names of modules, in this launch

    def prepare_once(function: Any) -> Any:
        names = id(function.__globals__)
        if names in prepared:
            return None
        prepared.add(names)
        return prepare(function)

    def launched(executor: Any, *arguments: Any, **options: Any) -> None:
        prepared.clear()
        try:
            launch(executor, *arguments, **options)
        finally:
            prepared.clear()

    look_up = interpreter._get_np_dtype
    known = cache(look_up)

    def looked_up(of: Any) -> Any:
        scalar = of.scalar  # of a block, what it holds
        return look_up(scalar) if scalar.is_ptr() else known(scalar)

    language = interpreter.tl

    @cache
    def sized(*shape: int) -> tuple[Any, Any]:
        return language.tuple([*map(language.constexpr, shape)]), language.constexpr(math.prod(shape))

    def made(tensor: Any, handle: Any, of: Any) -> None:
        tensor.handle, tensor.type, tensor.dtype = handle, of, of.scalar
        tensor.shape, tensor.numel = sized(*of.shape) if of.is_block() else sized()

    builder = interpreter.interpreter_builder
    options = dataclasses.replace(builder.options, sanitize_overflow=builder.options.debug)
    patch.setattr(builder, "options", options)
    patch.setattr(interpreter, "_patch_lang", prepare_once)
    patch.setattr(interpreter, "_get_np_dtype", looked_up)
    patch.setattr(language.tensor, "__init__", made)
    patch.setattr(interpreter.GridExecutor, "__call__", launched)


GUARD = 4096
"""Bytes before and behind what a kernel may touch; no row of the tests' buffers is longer."""

PATTERN = -2
"""Numbers of 16 bits of which any floating-point number is NaN, and any whole one below 0 and not the -1 of kernels."""


def pattern(count: int) -> torch.Tensor:
    """What guards hold, `(count,)`, uint8."""
    return torch.full((count + 1 >> 1,), PATTERN, dtype=torch.int16).view(torch.uint8)[:count]


class Guarded:
    """A copy of some bytes between two guards.

    Args:
        data: shape `(bytes,)`, uint8.
    """

    def __init__(self, data: torch.Tensor) -> None:
        self._room = pattern(len(data) + 2 * GUARD)
        self.data = self._room[GUARD:-GUARD]
        self.data.copy_(data)

    def check(self, what: str) -> None:
        """Make sure that nobody wrote to the guards.

        Raises:
            AssertionError: if somebody did.
        """
        odd = len(self.data) % 2
        for where, guard, expected in (
            ("before", self._room[:GUARD], pattern(GUARD)),
            ("behind", self._room[-GUARD:], pattern(GUARD + odd)[odd:]),
        ):
            assert torch.equal(guard, expected), f"{what} was written to {where} its memory"


def guard_buffers(patch: pytest.MonkeyPatch) -> None:
    """Let every interpreted kernel work on copies of its tensors, each between guards, that are looked at behind it.

    What it reads there is NaN or below -1, so that its result is wrong; what it writes there is found. Tensors whose
    memory overlaps stay together. So do the buffers of a `BufferTable`, whose addresses a kernel gets as numbers.

    Args:
        patch: undoes it; tables that were made before are not known.
    """
    executor = pytest.importorskip("triton.runtime.interpreter").GridExecutor
    copies: list[tuple[int, int, Guarded]] = []  # by address and end, those of the launch
    changed: list[torch.Tensor] = []  # what is given to the launch in place of what it was called with
    tables: WeakSet[BufferTable] = WeakSet()
    make_table = BufferTable.__init__

    def made_table(table: BufferTable, buffers: Sequence[torch.Tensor]) -> None:
        make_table(table, buffers)
        tables.add(table)

    def make_copies(tensors: Iterable[torch.Tensor]) -> None:
        for start, end in _joined(_extent(one) for one in tensors if one.numel()):
            copies.append((start, end, Guarded(_bytes_at(start, end))))

    def place_in_copies(at: int, end: int) -> tuple[Guarded, int] | None:
        return next(((guarded, at - start) for start, stop, guarded in copies if start <= at and end <= stop), None)

    def told(arg: Any) -> Any:
        """For the addresses of a table those of copies."""
        table = next((table for table in tables if table.slabs is arg), None)
        if table is None:
            return arg
        make_copies(table.buffers)
        slabs = arg.clone()
        for slab in slabs:
            found = place_in_copies(int(slab[0]), int(slab[0]) + 1)
            if found is not None:  # or the buffers have no numbers
                slab[0] = found[0].data.data_ptr() + found[1]
        changed.append(slabs)
        return slabs

    def moved(arg: Any) -> Any:
        if not isinstance(arg, torch.Tensor):
            return arg
        found = place_in_copies(*_extent(arg))
        if found is None:
            return arg.new_empty(arg.shape)  # it has no numbers
        guarded, place = found
        offset = (guarded.data.storage_offset() + place) // arg.element_size()
        return arg.new_empty(0).set_(guarded.data.untyped_storage(), offset, arg.shape, arg.stride())

    def prepared(_executor: Any, args: Any, kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
        copies.clear()
        changed.clear()
        args, kwargs = [*map(told, args)], {name: told(one) for name, one in kwargs.items()}
        make_copies(one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor))
        return [*map(moved, args)], {name: moved(one) for name, one in kwargs.items()}

    def restored(own: Any, *_: Any) -> None:
        for start, end, guarded in copies:
            guarded.check(f"a tensor of {own.fn.__name__}")
            _bytes_at(start, end).copy_(guarded.data)
        copies.clear()
        changed.clear()

    patch.setattr(BufferTable, "__init__", made_table)
    patch.setattr(executor, "_init_args_hst", prepared)
    patch.setattr(executor, "_restore_args_dev", restored)


def tape_launches(patch: pytest.MonkeyPatch) -> None:
    """Let each launch of an interpreted kernel be one step on the tape that is entered, as it is one node of a graph.

    Args:
        patch: undoes it.
    """
    executor = pytest.importorskip("triton.runtime.interpreter").GridExecutor
    launch = executor.__call__

    def launched(own: Any, *arguments: Any, **options: Any) -> None:
        if Tape.current is None:
            launch(own, *arguments, **options)
        else:
            Tape.current.note(Launch(own.fn.__name__, partial(launch, own)), arguments, options)

    patch.setattr(executor, "__call__", launched)


class Launch:
    """A launch as a step on a tape.

    Args:
        name: of the kernel.
        launch: does it.
    """

    def __init__(self, name: str, launch: Callable[..., None]) -> None:
        self._name = name
        self._launch = launch

    def name(self) -> str:
        """As operations of torch have it."""
        return self._name

    def __call__(self, *arguments: Any, **options: Any) -> None:
        self._launch(*arguments, **options)


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Addresses of a tensor's first byte and of the one behind its last."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size() * bool(tensor.numel())


def _joined(extents: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Extents that overlap as one."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(extents):
        if found and start < found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def _bytes_at(start: int, end: int) -> torch.Tensor:
    """Memory as it stands there, `(bytes,)`, uint8."""
    return torch.frombuffer((ctypes.c_uint8 * (end - start)).from_address(start), dtype=torch.uint8)
