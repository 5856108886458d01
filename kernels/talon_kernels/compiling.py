"""What the Triton kernels need of a GPU: compiles them for GPUs that need not be here.

`python -m talon_kernels.compiling` prints it. A module of Triton kernels, `<operation>/triton.py`, has a function
`variants()` that yields what stands for all that is compiled of it: the name, function, signature, constants and
options of each. An option `target` names the only one of `TARGETS` that a variant is for; an option `between` says that
it differs from two others in nothing but the size of its tile, which lies between theirs.
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

MARKS = ("target", "between")
"""Options of a variant that Triton has nothing to do with."""

OPERATIONS = tuple(sorted(path.parent.name for path in Path(__file__).parent.glob("*/triton.py")))


@attrs.frozen
class Target:
    """A kind of GPU.

    Attributes:
        backend: "cuda" or "hip".
        arch: its architecture, as Triton has it.
        warp: threads of a warp.
        shared: bytes of shared memory that one program may have.
    """

    backend: str
    arch: int | str
    warp: int
    shared: int

    @property
    def name(self) -> str:
        return f"{self.backend}:{self.arch}"


TARGETS = (
    Target("cuda", 80, 32, 99 * 1024),  # it has 163, but the same variants are for those that have 99
    Target("cuda", 90, 32, 227 * 1024),
    Target("hip", "gfx942", 64, 64 * 1024),
)


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
        broken: which bound it breaks, or why it does not compile; None if all is well.
    """

    operation: str
    variant: str
    target: str
    registers: int = 0
    spilled: int = 0
    moved: int = 0
    shared: int = 0
    broken: str | None = None


def compile_all(processes: int = 2, between: bool = True) -> list[Usage]:
    """Compile every variant of every operation for every target.

    Args:
        processes: how many compile at a time.
        between: False leaves out the variants whose tiles lie between others'.

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
        if variant[4].get("target", target.name) == target.name and (between or not variant[4].get("between"))
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
    gpu = GPUTarget(target.backend, target.arch, target.warp)
    try:
        options = {option: value for option, value in options.items() if option not in MARKS}
        compiled = triton.compile(source, target=gpu, options=options)
    except TritonError as error:
        return attrs.evolve(usage, broken=f"does not compile: {error}")
    read = _read_cubin if target.backend == "cuda" else _read_amdgcn
    usage = read(attrs.evolve(usage, shared=compiled.metadata.shared), compiled.asm)
    if usage.spilled:
        return attrs.evolve(usage, broken=f"spills {usage.spilled} bytes")
    if usage.shared > target.shared:
        return attrs.evolve(usage, broken=f"shares {usage.shared} bytes; there are {target.shared}")
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what the kernels need, and return 1 if that is more than there is."""
    parser = argparse.ArgumentParser(prog="python -m talon_kernels.compiling", description=main.__doc__)
    parser.add_argument("--json", action="store_true", help="print a JSON list instead of a table")
    parser.add_argument("--processes", type=int, default=2, help="how many compile at a time (default: 2)")
    parser.add_argument("--ends", action="store_true", help="only the smallest and the largest tile of each kind")
    options = parser.parse_args(arguments)
    usages = compile_all(options.processes, between=not options.ends)
    if options.json:
        print(json.dumps([attrs.asdict(usage) for usage in usages], indent=1))
    else:
        _print(usages)
    return int(any(usage.broken for usage in usages))


def _print(usages: Sequence[Usage]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("operation", "variant", "target", "registers", "spilled", "moved", "shared", "")
    for column in table.columns[3:7]:
        column.justify = "right"
    for usage in usages:
        cells = [str(cell) for cell in attrs.astuple(usage)[:-1]]
        table.add_row(*cells, usage.broken or "", style="bold red" if usage.broken else None)
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
