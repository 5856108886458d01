"""What the Triton kernels need of a GPU: compiles them for GPUs that need not be here.

`python -m talon_kernels.compiling` prints it. A module of Triton kernels, `<operation>/triton.py`, has a function
`variants()` that yields what stands for all that is compiled of it: the name, function, signature, constants and
options of each. An option `kind` names the kind of GPU that a variant is for, without which it is for all; an option
`between` says that it differs from two others in nothing but the size of its tile, which lies between theirs, or in
what adds nothing to its needs; and an option `hardest` that it needs more than others do.

What tree attention needs also says how many of its programs run at a time, and so how evenly a GPU is occupied by them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import attrs

from talon_kernels.occupancy import CDNA3, Multiprocessor, nvidia
from talon_kernels.tree_attention.waves import Occupied, least_even

MARKS = ("kind", "between", "hardest")
"""Options of a variant that Triton has nothing to do with."""

OPERATIONS = tuple(sorted(path.parent.name for path in Path(__file__).parent.glob("*/triton.py")))


@attrs.frozen
class Target:
    """A kind of GPU.

    Attributes:
        backend: "cuda" or "hip".
        arch: its architecture, as Triton has it.
        kind: whose variants are for it, as in `talon_kernels.tree_attention.cutting.blocks`.
        shared: bytes of shared memory that one program may have.
        processor: what each multiprocessor has.
        sizes: how many of them there are in GPUs of this kind.
        alike: whether it has the variants of another one, so that compiling the hardest may do.
    """

    backend: str
    arch: int | str
    kind: str
    shared: int
    processor: Multiprocessor
    sizes: tuple[int, ...]
    alike: bool = False

    @property
    def name(self) -> str:
        return f"{self.backend}:{self.arch}"


KB = 1024
TARGETS = (
    # 80 lets a program have 163 kB, but the same variants are for those that have 99
    Target("cuda", 80, "other", 99 * KB, nvidia(2048, 164 * KB), (108,)),
    Target("cuda", 89, "other", 99 * KB, nvidia(1536, 100 * KB), (58, 128), alike=True),
    Target("cuda", 90, "hopper", 227 * KB, nvidia(2048, 228 * KB), (114, 132)),
    Target("cuda", 100, "other", 227 * KB, nvidia(2048, 228 * KB), (148,), alike=True),
    Target("cuda", 120, "other", 99 * KB, nvidia(1536, 100 * KB), (84, 170), alike=True),
    Target("hip", "gfx942", "amd", 64 * KB, CDNA3, (228, 304)),
)

MOST_OF_IDEAL = 1.15
"""How much longer than ideal the waves of programs may take."""


@attrs.frozen
class Usage:
    """What one variant needs of one target.

    Attributes:
        operation: the folder of the kernel.
        variant: its name.
        target: the target's name.
        registers: of a thread.
        spilled: bytes of memory for what does not fit into them, of a thread.
        moved: scalar registers that were moved to lanes of vector registers, on AMD's GPUs; costs time, not memory.
        shared: bytes of shared memory of a program.
        held: programs that a multiprocessor holds at a time.
        broken: which bound it breaks, or why it does not compile; None if all is well.
    """

    operation: str
    variant: str
    target: str
    registers: int = 0
    spilled: int = 0
    moved: int = 0
    shared: int = 0
    held: int = 0
    broken: str | None = None


def compile_all(processes: int = 2, between: bool = True) -> list[Usage]:
    """Compile every variant of every operation for every target.

    Args:
        processes: how many compile at a time.
        between: False leaves out the variants that lie between others, and what is alike but for the hardest.

    Raises:
        RuntimeError: if `TRITON_INTERPRET` is set, for then Triton does not compile.
    """
    if os.environ.get("TRITON_INTERPRET", "0") != "0":
        raise RuntimeError("TRITON_INTERPRET is set, so Triton interprets kernels; unset it to compile them")
    jobs = [
        (operation, number, target)
        for operation in OPERATIONS
        for number, variant in enumerate(_variants(operation))
        for target in TARGETS
        if variant[4].get("kind", target.kind) == target.kind
        and (between or variant[4].get("hardest", False) or not (target.alike or variant[4].get("between", False)))
    ]
    with ProcessPoolExecutor(processes, mp_context=get_context("fork")) as pool:
        return list(pool.map(_usage, *zip(*jobs, strict=True)))


@cache
def _variants(operation: str) -> list[tuple[str, Any, dict[str, str], dict[str, Any], dict[str, Any]]]:
    return list(import_module(f"talon_kernels.{operation}.triton").variants())


def _usage(operation: str, number: int, target: Target) -> Usage:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.errors import TritonError

    name, function, signature, constants, options = _variants(operation)[number]
    usage = Usage(operation, name, target.name)
    source = ASTSource(function, signature, constants, alignment(function, signature))
    gpu = GPUTarget(target.backend, target.arch, target.processor.lanes)
    try:
        options = {option: value for option, value in options.items() if option not in MARKS}
        compiled = triton.compile(source, target=gpu, options=options)
    except TritonError as error:
        return attrs.evolve(usage, broken=f"does not compile: {error}")
    read = _read_cubin if target.backend == "cuda" else _read_amdgcn
    usage = read(attrs.evolve(usage, shared=compiled.metadata.shared), compiled.asm)
    held = target.processor.holds(usage.registers, usage.shared, options["num_warps"])
    usage = attrs.evolve(usage, held=held)
    if usage.spilled:
        return attrs.evolve(usage, broken=f"spills {usage.spilled} bytes")
    if usage.shared > target.shared:
        return attrs.evolve(usage, broken=f"shares {usage.shared} bytes; there are {target.shared}")
    if not usage.held:
        return attrs.evolve(usage, broken=f"{usage.registers} registers of each thread are more than there are")
    return usage


def alignment(function: Any, signature: dict[str, str]) -> dict[tuple[int, ...], list[list[Any]]]:
    """What a launch says of its arguments: tensors start at multiples of 16 bytes, unless that is not specialised."""
    return {
        (parameter.num,): [["tt.divisibility", 16]]
        for parameter in function.params
        if signature[parameter.name].startswith("*")
        and not (parameter.do_not_specialize or parameter.do_not_specialize_on_alignment)
    }


def _read_cubin(usage: Usage, asm: Any) -> Usage:
    from triton import knobs

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(asm["cubin"])
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(file)]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    read = {name: int(number) for name, number in re.findall(r"(REG|STACK|LOCAL):(\d+)", text)}
    return attrs.evolve(usage, registers=read["REG"], spilled=read["STACK"] + read["LOCAL"])


def _read_amdgcn(usage: Usage, asm: Any) -> Usage:
    found = re.findall(r"^\s*\.(\w+(?:_count|_fixed_size)):\s*(\d+)$", asm["amdgcn"], flags=re.MULTILINE)
    read = {name: int(number) for name, number in found}
    spilled = max(read["private_segment_fixed_size"], 4 * read["vgpr_spill_count"])
    return attrs.evolve(usage, registers=read["vgpr_count"], spilled=spilled, moved=read["sgpr_spill_count"])


def uneven(usages: Sequence[Usage]) -> list[Occupied]:
    """How evenly programs of tree attention occupy each target, over sizes of GPUs, batches, trees and texts.

    Args:
        usages: of what was compiled; tiles that were not compiled are left out.

    Returns:
        For each target and each number of its multiprocessors what is furthest from ideal.
    """
    held = {(usage.target, usage.variant): usage.held for usage in usages if usage.operation == "tree_attention"}
    found = []
    for target in TARGETS:
        own = {variant: count for (name, variant), count in held.items() if name == target.name}
        for size in target.sizes:
            least = least_even(size, target.kind, own)
            found += [attrs.evolve(least, target=target.name)] if least is not None else []
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what the kernels need, and return 1 if that is more than there is, or leaves GPUs idle."""
    parser = argparse.ArgumentParser(prog="python -m talon_kernels.compiling", description=main.__doc__)
    parser.add_argument("--json", action="store_true", help="print a JSON object instead of tables")
    parser.add_argument("--processes", type=int, default=2, help="how many compile at a time (default: 2)")
    parser.add_argument(
        "--ends",
        action="store_true",
        help="only the ends of each kind, and the hardest where GPUs are alike",
    )
    options = parser.parse_args(arguments)
    usages = compile_all(options.processes, between=not options.ends)
    occupied = uneven(usages)
    if options.json:
        found = {"usages": [*map(attrs.asdict, usages)], "occupied": [*map(attrs.asdict, occupied)]}
        print(json.dumps(found, indent=1))
    else:
        _print(usages)
        _print_occupied(occupied)
    return int(any(usage.broken for usage in usages) or any(one.of_ideal > MOST_OF_IDEAL for one in occupied))


def _print(usages: Sequence[Usage]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("operation", "variant", "target", "registers", "spilled", "moved", "shared", "held", "")
    for column in table.columns[3:8]:
        column.justify = "right"
    for usage in usages:
        cells = [str(cell) for cell in attrs.astuple(usage)[:-1]]
        table.add_row(*cells, usage.broken or "", style="bold red" if usage.broken else None)
    Console().print(table)


def _print_occupied(occupied: Sequence[Occupied]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("target", "multiprocessors", "least even", "of the ideal time")
    for one in occupied:
        style = "bold red" if one.of_ideal > MOST_OF_IDEAL else None
        table.add_row(one.target, str(one.multiprocessors), one.case, f"{one.of_ideal:.3f}", style=style)
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
