"""What Triton makes of the kernels, as JSON: `python -m talon_tests.compiled_code`.

A process of its own, without `TRITON_INTERPRET`. It prints for each kernel the products that move an address, with
those that are too narrow, and for the commit in which order rows are read and written.
"""

import json
import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.compiler import make_backend

from talon_kernels import compiling

TARGET = next(target for target in compiling.TARGETS if target.name == "cuda:90")
GPU = GPUTarget(TARGET.backend, TARGET.arch, TARGET.processor.lanes)

THROUGH = {f"arith.{name}" for name in ("extsi", "addi", "subi", "muli", "shli")}
THROUGH |= {f"tt.{name}" for name in ("splat", "broadcast", "expand_dims", "trans", "reshape")}
"""Operations that hand on what is part of an offset; what is chosen or divided is the number of a thing."""

LARGEST = 64
"""A product with a constant up to this has room in 32 bits: of a tile or a sequence, of which there are few enough."""

Operation = tuple[str, list[str], str]
"""An operation, the names of what it is given, and its line without where it stands in the source."""


def operations(code: str) -> dict[str, Operation]:
    """The operations in Triton's intermediate language that have one result, by the result's name."""
    found = {}
    for line in code.splitlines():
        said = re.match(r"\s*(%\S+) = (\S+) (.*?)(?: loc\(.*)?$", line)
        if said is not None:
            name, operation, rest = said.groups()
            found[name] = operation, re.findall(r"%[\w#]+", rest), f"{name} = {operation} {rest}"
    return found


def products(code: str) -> Iterator[tuple[str, bool]]:
    """Products that an address is moved by; too narrow are those of 32 bits, but for those with a small constant."""
    known = operations(code)
    pending = [given[1] for operation, given, _ in known.values() if operation == "tt.addptr"]
    seen: set[str] = set()
    while pending:
        name = pending.pop()
        if name in seen or name not in known:
            continue
        seen.add(name)
        operation, given, line = known[name]
        if operation not in THROUGH:
            continue
        if operation in ("arith.muli", "arith.shli"):
            narrow = re.search(r"\bi32$|xi32>$", line) is not None
            yield line, narrow and not any(_is_small(known, one) for one in given)
        pending += given


def _is_small(known: dict[str, Operation], name: str) -> bool:
    operation, _, line = known.get(name, ("", [], ""))
    said = re.search(r"constant (?:dense<)?(\d+)", line)
    return operation == "arith.constant" and said is not None and int(said[1]) <= LARGEST


def ends(operation: str) -> dict[str, int]:
    """The first and the last variant of each kernel of an operation, by their names."""
    found: dict[str, list[tuple[str, int]]] = {}
    for number, (name, function, _, _, marks) in enumerate(compiling._variants(operation)):
        if marks.get("kind", TARGET.kind) == TARGET.kind:
            found.setdefault(function.__name__, []).append((name, number))
    return dict(end for variants in found.values() for end in (variants[0], variants[-1]))


def lowered(operation: str, number: int, last: str) -> str:
    """A variant behind one of Triton's stages: "ttir", which is of no GPU yet, or "ptx", which an assembler gets."""
    _, function, signature, constants, marked = compiling._variants(operation)[number]
    source = ASTSource(function, signature, constants, compiling.alignment(function, signature))
    backend, context, stages = make_backend(GPU), ir.context(), {}
    options = backend.parse_options({name: own for name, own in marked.items() if name not in compiling.MARKS})
    ir.load_dialects(context)
    backend.load_dialects(context)
    code = source.make_ir(GPU, options, backend.get_codegen_implementation(options), backend.get_module_map(), context)
    backend.add_stages(stages, options, source.language)
    metadata: dict[str, Any] = {}
    for stage in stages:
        code = stages[stage](code, metadata)
        if stage == last:
            break
    return str(code)


def order(code: str) -> list[str]:
    """What is done with memory, as NVIDIA's assembler is told: "ld", "bar", "st", each as often as it changes."""
    every = re.findall(r"^\s*(?:@%p\d+ )?(ld|st|bar)\.(?:global|sync|warp)", code, re.MULTILINE)
    return [done for done, _ in groupby(every)]


def main() -> None:
    told: dict[str, Any] = {"products": {}, "commits": {}}
    for operation in compiling.OPERATIONS:
        for name, number in ends(operation).items():
            found = [*products(lowered(operation, number, "ttir"))]
            told["products"][name] = {"every": len(found), "narrow": [line for line, narrow in found if narrow]}
    for name, number in ends("commit_path").items():
        told["commits"][name] = order(lowered("commit_path", number, "ptx"))
    print(json.dumps(told))


if __name__ == "__main__":
    main()
