"""What the Triton kernels need of a GPU: compiles them for GPUs that need not be here.

`python -m talon_kernels.compiling` prints it. A module of Triton kernels, `<operation>/triton.py`, has a function
`variants()` that yields what stands for all that is compiled of it: the name, function, signature, constants and
options of each. An option `kind` names the kind of GPU that a variant is for, without which it is for all; an option
`between` says that it differs from two others in nothing but the size of its tile, which lies between theirs, or in
what adds nothing to its needs; and an option `hardest` that it needs more than others do.

Compiling all of it takes minutes, and says the same until a kernel or Triton is another one. So what was found can be
kept in a file, by a hash of everything that it hangs on: what has that hash is read there, and the rest is compiled.

What tree attention needs also says how many of its programs run at a time, and so how evenly a GPU is occupied by them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import attrs

from talon_core.basics.paths import write_whole
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
    # 64 kB, of which the model of a multiprocessor takes one for itself
    Target("cuda", 75, "turing", 63 * KB, nvidia(1024, 64 * KB), (40,)),
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
        key: hash of all that these hang on: the kernel's code, the variant, the target and the version of Triton.
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
    key: str = ""
    held: int = 0
    broken: str | None = None


FORM = 1
"""Goes up where what a compiler says is read in another way."""

Jobs = Mapping[str, tuple[str, int, Target]]
"""By key: an operation, the number of its variant, and what that is compiled for."""

Kept = Mapping[str, Mapping[str, Any]]
"""By key, what was found to be needed: a `Usage` without key, `held` and `broken`."""


def compile_all(processes: int = 2, take: str = "every", kept: Kept | None = None, anew: int = 0) -> list[Usage]:
    """What variants of every operation need of every target.

    Args:
        processes: how many compile at a time.
        take: which variants, where they are not kept: "every" one; "ends" leaves out those that lie between others, and
            what is alike but for the hardest; "few" takes the hardest of each kernel, for one of NVIDIA's GPUs of each
            kind.
        kept: what needs not be compiled.
        anew: so many of these are compiled all the same; one that needs something else than what is kept is broken.

    Raises:
        RuntimeError: if `TRITON_INTERPRET` is set, for then Triton does not compile.
    """
    if os.environ.get("TRITON_INTERPRET", "0") != "0":
        raise RuntimeError("TRITON_INTERPRET is set, so Triton interprets kernels; unset it to compile them")
    kept = {} if kept is None else kept
    every = [
        (operation, number, target)
        for operation in OPERATIONS
        for number, variant in enumerate(_variants(operation))
        for target in TARGETS
        if variant[4].get("kind", target.kind) == target.kind
    ]
    jobs = {key_of(*job): job for job in every}
    there = sorted(jobs.keys() & kept.keys())[anew:]  # by hashes: the first are of all kinds, and the same every time
    found = {key: Usage(**kept[key], key=key) for key in there}
    taken = {"every": _every, "ends": _ends, "few": _few}[take](jobs)
    left = [key for key in jobs if key not in found and (key in kept or key in taken)]
    if left:
        with ProcessPoolExecutor(processes, mp_context=get_context("fork")) as pool:
            compiled = pool.map(_compiled, left, *zip(*(jobs[key] for key in left), strict=True))
            found |= {one.key: _compared(one, kept) for one in compiled}
    return [_judged(found[key], *job) for key, job in jobs.items() if key in found]


def _compared(usage: Usage, kept: Kept) -> Usage:
    """Broken where something else is kept."""
    before = Usage(**kept[usage.key], key=usage.key) if usage.key in kept else usage
    return usage if usage.broken or before == usage else attrs.evolve(usage, broken=f"is kept as {before}")


def _every(jobs: Jobs) -> Collection[str]:
    return jobs


def _ends(jobs: Jobs) -> Collection[str]:
    def is_end(operation: str, number: int, target: Target) -> bool:
        marks = _variants(operation)[number][4]
        return marks.get("hardest", False) or not (target.alike or marks.get("between", False))

    return {key for key, job in jobs.items() if is_end(*job)}


def _few(jobs: Jobs) -> Collection[str]:
    found: dict[tuple[str, str], str] = {}
    for key, (operation, number, target) in jobs.items():
        _, function, _, _, marks = _variants(operation)[number]
        if target.backend == "cuda" and not target.alike and marks.get("hardest", True):
            found.setdefault((function.__name__, target.kind), key)
    return found.values()


@cache
def _variants(operation: str) -> list[tuple[str, Any, dict[str, str], dict[str, Any], dict[str, Any]]]:
    return list(import_module(f"talon_kernels.{operation}.triton").variants())


def key_of(operation: str, number: int, target: Target) -> str:
    """A hash of all that the needs of a variant hang on, 16 hexadecimal digits.

    Args:
        operation: whose.
        number: of the variant, as `variants()` yields them.
        target: what it is compiled for.
    """
    import triton

    name, function, signature, constants, options = _variants(operation)[number]
    known = {option: value for option, value in options.items() if option not in MARKS}
    code = (FORM, triton.__version__, function.cache_key, name, target.backend, target.arch, target.processor.lanes)
    aligned = sorted(alignment(function, signature).items())
    parts = (*code, aligned, *(sorted(one.items()) for one in (signature, constants, known)))
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _compiled(key: str, operation: str, number: int, target: Target) -> Usage:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.errors import TritonError

    name, function, signature, constants, options = _variants(operation)[number]
    usage = Usage(operation, name, target.name, key=key)
    source = ASTSource(function, signature, constants, alignment(function, signature))
    gpu = GPUTarget(target.backend, target.arch, target.processor.lanes)
    try:
        options = {option: value for option, value in options.items() if option not in MARKS}
        compiled = triton.compile(source, target=gpu, options=options)
    except TritonError as error:
        return attrs.evolve(usage, broken=f"does not compile: {error}")
    read = _read_cubin if target.backend == "cuda" else _read_amdgcn
    return read(attrs.evolve(usage, shared=compiled.metadata.shared), compiled.asm)


def _judged(usage: Usage, operation: str, number: int, target: Target) -> Usage:
    """With the programs that a multiprocessor holds, and the bound that it breaks."""
    if usage.broken is not None:
        return usage
    warps = _variants(operation)[number][4]["num_warps"]
    usage = attrs.evolve(usage, held=target.processor.holds(usage.registers, usage.shared, warps))
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
    which = parser.add_mutually_exclusive_group()
    for name, what in (
        ("ends", "of what is not kept only the ends of each kind, and the hardest where GPUs are alike"),
        ("few", "of what is not kept only the hardest of each kernel, for one of NVIDIA's GPUs of each kind"),
    ):
        which.add_argument(f"--{name}", dest="take", action="store_const", const=name, default="every", help=what)
    parser.add_argument("--kept", type=Path, metavar="FILE", help="what was found before, and needs not be compiled")
    parser.add_argument("--keep", action="store_true", help="write what was found into the file of --kept")
    parser.add_argument("--anew", type=int, default=0, metavar="N", help="compile so many of these all the same")
    options = parser.parse_args(arguments)
    file: Path | None = options.kept
    if options.keep and file is None:
        parser.error("--keep has no file to write; name one with --kept")
    if options.anew < 0:
        parser.error(f"--anew is {options.anew}; it must be at least 0")
    try:
        kept = read_kept(file) if file is not None and file.exists() else {}
    except (OSError, ValueError, TypeError) as error:
        parser.error(f"'{file}' has nothing that was kept: {error}; delete it, and write it anew with --keep")
    usages = compile_all(options.processes, options.take, kept, options.anew)
    if options.keep and file is not None:
        write_kept(file, usages)
    occupied = uneven(usages)
    if options.json:
        found = {"usages": [*map(attrs.asdict, usages)], "occupied": [*map(attrs.asdict, occupied)]}
        print(json.dumps(found, indent=1))
    else:
        _print(usages)
        _print_occupied(occupied)
    return int(any(usage.broken for usage in usages) or any(one.of_ideal > MOST_OF_IDEAL for one in occupied))


DERIVED = ("key", "held", "broken")


def read_kept(file: Path) -> Kept:
    """What `write_kept` wrote.

    Raises:
        OSError, ValueError, TypeError: if it cannot be read, or is no such file.
    """
    kept: Kept = json.loads(file.read_text(encoding="utf-8"))
    for one in kept.values():
        Usage(**one)
    return kept


def write_kept(file: Path, usages: Sequence[Usage]) -> None:
    """Keep what was found, but for what is broken: a line for each, by its key."""
    lines = [
        f"{json.dumps(usage.key)}: {json.dumps({k: v for k, v in attrs.asdict(usage).items() if k not in DERIVED})}"
        for usage in usages
        if usage.broken is None
    ]
    write_whole(file, "{\n" + ",\n".join(lines) + "\n}\n")


def _print(usages: Sequence[Usage]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("operation", "variant", "target", "registers", "spilled", "moved", "shared", "held", "")
    for column in table.columns[3:8]:
        column.justify = "right"
    for usage in usages:
        cells = [str(cell) for name, cell in attrs.asdict(usage).items() if name not in ("key", "broken")]
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
