"""The C kernels built for a processor that is not here, and run by an emulator.

`Emulated` has the functions of `talon_kernels.native.Library`: for each call it sends what the addresses hold to the
driver (`kernels/emulated/driver.c`), and writes what comes back to the same addresses.
"""

import contextlib
import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from talon_core.basics.paths import cache_folder
from talon_kernels.native import ABI, Library, _walked
from talon_kernels.native.build import COMMON_FLAGS, HEADERS, SOURCES
from talon_kernels.native.build import __file__ as build_file
from talon_kernels.recorded.screening import MOST_SCREENED, WAYS
from talon_kernels.recorded.steps import STEP, Op

COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
PACKAGES = "gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user"
"""Where Debian has them, and a C library to link with."""

DRIVER = Path(__file__).parents[1] / "kernels" / "emulated" / "driver.c"

DECLARED = 20
"""The ABI of the kernels as the driver declares them and `Emulated` calls them; both follow when it is counted up."""

FLAGS = (
    *(flag for flag in COMMON_FLAGS if flag not in ("-shared", "-fPIC")),
    *("-fopenmp", "-static", "-Wall", "-Wextra", "-Werror"),
)

FUNCTIONS = (
    *("abi", "lanes", "plan", "linear", "gated_mlp", "widen", "walk", "step_sizes", "gated_unit", "rms_norm"),
    *("same_numbers", "tree_attention", "checksums", "best_tokens", "greedy_walk"),
    *("screen_width", "screen", "likeliest", "draw_tokens", "planned"),
)
"""By the number that the driver knows them by."""


class CannotEmulate(RuntimeError):
    """There is no compiler for Arm here, or no emulator."""


@attrs.frozen
class Memory:
    """What an argument points to.

    Attributes:
        address: where it begins; 0 or None is no memory.
        size: in bytes.
        written: whether the function writes there.
    """

    address: int | None
    size: int
    written: bool = False


@attrs.frozen
class Pointers:
    """An argument that points to addresses."""

    to: Sequence[Memory]


Argument = Memory | Pointers | int | float


def built_driver() -> Path:
    """The driver with the kernels in it, for Arm, from the cache of compiled kernels.

    Raises:
        CannotEmulate: if compiler or emulator are missing.
        subprocess.CalledProcessError: if the kernels do not compile there without a warning.
    """
    missing = [name for name in (COMPILER, EMULATOR) if shutil.which(name) is None]
    if missing:
        raise CannotEmulate(f"{' and '.join(missing)} are not here; Debian's packages are {PACKAGES}")
    folder = Path(build_file).parent
    version = subprocess.run([COMPILER, "--version"], check=True, capture_output=True).stdout
    parts = [*(folder.joinpath(name).read_bytes() for name in (*HEADERS, *SOURCES)), DRIVER.read_bytes(), version]
    key = hashlib.sha256(repr((parts, FLAGS)).encode()).hexdigest()[:24]
    target = cache_folder() / "native" / f"{key}-aarch64"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix="build-") as work:
            built = Path(work) / "driver"
            sources = [str(DRIVER), *(str(folder / name) for name in SOURCES)]
            done = subprocess.run(
                [COMPILER, *FLAGS, *sources, "-o", str(built), "-lm"], capture_output=True, text=True, check=False
            )
            if done.returncode:
                sys.stderr.write(done.stderr)
                done.check_returncode()
            os.replace(built, target)
    return target


def row_bytes(kind: int, n: int) -> int:
    """Bytes of n weights of one of GGUF's types."""
    weights, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
    return n // weights * size


def numbers_at(address: int, count: int, dtype: type[np.generic]) -> NDArray[Any]:
    """A copy of numbers in memory."""
    return np.frombuffer(ctypes.string_at(address, count * np.dtype(dtype).itemsize), dtype=dtype)


def memory_of(address: int, count: int, dtype: type[np.generic]) -> NDArray[Any]:
    """Numbers in memory themselves, which can be written to."""
    return np.frombuffer((ctypes.c_char * (count * np.dtype(dtype).itemsize)).from_address(address), dtype=dtype)


def extent(sizes: Iterable[int], strides: Iterable[int]) -> int:
    """How far a tensor reaches, in elements; 0 where it has none."""
    both = [(int(size), int(stride)) for size, stride in zip(sizes, strides, strict=True)]
    return 0 if any(size <= 0 for size, _ in both) else 1 + sum((size - 1) * stride for size, stride in both)


class Emulated(Library):
    """The kernels on an emulated processor; each call is sent to the driver. What measures speed is not among them.

    Args:
        driver: the program that calls the kernels.

    Attributes:
        path: the driver.
        lanes: as of `Library`.
    """

    def __init__(self, driver: Path) -> None:
        self.path = str(driver)
        self._process: subprocess.Popen[bytes] | None = None
        assert self._call("abi") == ABI == DECLARED
        self.lanes = self._call("lanes")

    def close(self) -> None:
        """End the driver."""
        if self._process is not None:
            self._process.communicate()
            self._process = None

    def _driver(self) -> "subprocess.Popen[bytes]":
        if self._process is None:
            environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
            self._process = subprocess.Popen(
                [EMULATOR, self.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
            )
        return self._process

    def _read(self, size: int) -> bytes:
        process = self._driver()
        assert process.stdout is not None
        data = process.stdout.read(size)
        if len(data) < size:
            process.communicate()
            self._process = None
            raise RuntimeError(f"the emulated kernels ended with status {process.returncode}: read past an operand?")
        return data

    def _call(self, name: str, *arguments: Argument) -> int:
        known = [one for each in arguments for one in (each.to if isinstance(each, Pointers) else [each])]
        pieces = _Pieces([one for one in known if isinstance(one, Memory)])
        contents = [ctypes.string_at(start, end - start) for start, end, _ in pieces.all]
        back = [written for *_, written in pieces.all]
        links: list[tuple[int, int, int, int]] = []
        words: list[bytes] = []
        for each in arguments:
            if isinstance(each, Pointers):
                own = len(contents)
                contents.append(bytes(8 * len(each.to)))
                back.append(False)
                places = [(8 * at, pieces.place(one)) for at, one in enumerate(each.to)]
                links += [(own, at, *place) for at, place in places if place[0] >= 0]
                words.append(_argument(own, 0))
            elif isinstance(each, Memory):
                words.append(_argument(*pieces.place(each)))
            else:
                words.append(_argument(-1, each))
        message = [np.array([FUNCTIONS.index(name), len(contents), len(links), len(words)], dtype="<i8").tobytes()]
        for content, goes_back in zip(contents, back, strict=True):
            message += [np.array([len(content), goes_back], dtype="<i8").tobytes(), content]
        message += [np.array(links, dtype="<i8").tobytes(), *words]
        stdin = self._driver().stdin
        assert stdin is not None
        with contextlib.suppress(BrokenPipeError):  # reading says that it has ended
            stdin.write(b"".join(message))
            stdin.flush()
        result = int.from_bytes(self._read(8), "little", signed=True)
        for start, end, written in pieces.all:
            if written:
                ctypes.memmove(start, self._read(end - start), end - start)
        return result

    def _must(self, name: str, *arguments: Argument) -> None:
        if self._call(name, *arguments):
            raise MemoryError("the emulated machine has no memory left")

    def plan(self, source: int, rows: int, width: int, distance: int, floats: int) -> int:
        return self._call("plan", source, rows, width, distance, floats)

    def planned(self, source: int, rows: int, plan: int) -> None:
        self._call("planned", source, rows, Memory(plan, 24, True))

    def linear(self, x: int, w: int, bias: int | None, y: int, m: int, n: int, k: int, kind: int, threads: int) -> None:
        stored = Memory(w, n * row_bytes(kind, k))
        floats = Memory(x, 4 * m * k), stored, Memory(bias, 4 * n), Memory(y, 4 * m * n, True)
        self._must("linear", *floats, m, n, k, kind, threads)

    def gated_mlp(
        self,
        x: int,
        gate: int,
        gate_bias: int | None,
        up: int,
        up_bias: int | None,
        down: int,
        down_bias: int | None,
        scratch: int,
        y: int,
        m: int,
        n: int,
        h: int,
        k: int,
        activation: int,
        kinds: "ctypes.Array[ctypes.c_int64]",
        threads: int,
    ) -> None:
        to_gate, to_up, back = kinds
        self._must(
            "gated_mlp",
            Memory(x, 4 * m * k),
            *(Memory(gate, h * row_bytes(to_gate, k)), Memory(gate_bias, 4 * h)),
            *(Memory(up, h * row_bytes(to_up, k)), Memory(up_bias, 4 * h)),
            *(Memory(down, n * row_bytes(back, h)), Memory(down_bias, 4 * n)),
            *(Memory(scratch, 8 * m * h, True), Memory(y, 4 * m * n, True)),
            *(m, n, h, k, activation, Memory(ctypes.addressof(kinds), 24), threads),
        )

    def widen(self, blocks: int, index: int | None, out: int, rows: int, n: int, kind: int, threads: int) -> None:
        read = int(numbers_at(index, rows, np.int64).max(initial=-1)) + 1 if index else rows
        memory = Memory(blocks, read * row_bytes(kind, n)), Memory(index, 8 * rows), Memory(out, 4 * rows * n, True)
        self._call("widen", *memory, rows, n, kind, threads)

    def gated_unit(self, gate: int, up: int, out: int, n: int, kind: int, threads: int) -> None:
        self._call("gated_unit", Memory(gate, 4 * n), Memory(up, 4 * n), Memory(out, 4 * n, True), n, kind, threads)

    def rms_norm(self, x: int, weight: int, y: int, rows: int, n: int, eps: float, offset: float, threads: int) -> None:
        memory = Memory(x, 4 * rows * n), Memory(weight, 4 * n), Memory(y, 4 * rows * n, True)
        self._call("rms_norm", *memory, rows, n, float(eps), float(offset), threads)

    def same_numbers(self, narrow: int, wide: int, n: int, threads: int) -> int:
        return self._call("same_numbers", Memory(narrow, 2 * n), Memory(wide, 4 * n), n, threads)

    def best_tokens(self, scores: int, out: int, rows: int, n: int, width: int, threads: int) -> None:
        memory = Memory(scores, 4 * rows * n), Memory(out, 8 * rows * width, True)
        self._call("best_tokens", *memory, rows, n, width, threads)

    def draw_tokens(self, scores: int, rows: int, n: int, warps: int, numbers: int, tokens: int, threads: int) -> None:
        given = Memory(warps, 24 * rows), Memory(numbers, 8 * rows), Memory(tokens, 8 * rows, True)
        self._must("draw_tokens", Memory(scores, 4 * rows * n), rows, n, *given, threads)

    def screen_width(self, k: int) -> int:
        return self._call("screen_width", k)

    def screen(self, w: int, n: int, k: int, kind: int, codes: int, columns: int, limits: int, threads: int) -> None:
        made = Memory(codes, n * self.screen_width(k), True), Memory(columns, 12 * n, True), Memory(limits, 16, True)
        self._must("screen", Memory(w, n * row_bytes(kind, k)), n, k, kind, *made, threads)

    def likeliest(
        self,
        x: int,
        w: int,
        codes: int,
        columns: int,
        limits: int,
        y: int,
        out: int,
        m: int,
        n: int,
        k: int,
        kind: int,
        threads: int,
    ) -> None:
        weight = Memory(w, n * row_bytes(kind, k)), Memory(codes, n * self.screen_width(k)), Memory(columns, 12 * n)
        made = Memory(limits, 16), Memory(y, 4 * m * n, True), Memory(out, 8 * m, True)
        self._must("likeliest", Memory(x, 4 * m * k), *weight, *made, m, n, k, kind, threads)

    def greedy_walk(
        self,
        best: int,
        tokens: int,
        parents: int,
        sequences: int,
        batch: int,
        ends: int,
        count: int,
        longest: int,
        out: int,
    ) -> None:
        trees = numbers_at(sequences, 4 * batch, np.int32).reshape(batch, 4)
        queries = int((trees[:, 1] + trees[:, 3]).max(initial=0))
        nodes = Memory(best, 8 * queries), Memory(tokens, 4 * queries), Memory(parents, 4 * queries)
        walks = Memory(out, 4 * batch * (2 + longest), True)
        numbers = Memory(sequences, 16 * batch), batch, Memory(ends, 8 * count), count, longest
        self._call("greedy_walk", *nodes, *numbers, walks)

    def checksums(self, at: int, sizes: int, count: int, threads: int, sums: int) -> None:
        both = zip(numbers_at(at, count, np.uint64).tolist(), numbers_at(sizes, count, np.int64).tolist(), strict=True)
        pieces = Pointers([Memory(address, size) for address, size in both])
        self._call("checksums", pieces, Memory(sizes, 8 * count), count, threads, Memory(sums, 8 * count, True))

    def move_rows(self, buffers: int, shapes: int, count: int, slot: int, start: int, path: int, length: int) -> None:
        """Not emulated: it computes nothing, and would send whole caches to and fro."""
        nodes = numbers_at(path, length, np.int64).tolist()
        steps = numbers_at(shapes, 5 * count, np.int64).reshape(count, 5).tolist()
        for address, (of_slot, of_head, of_row, heads, size) in zip(
            numbers_at(buffers, count, np.uint64).tolist(), steps, strict=True
        ):
            for head in range(heads):
                first = address + 4 * (slot * of_slot + head * of_head + start * of_row)
                for to, node in enumerate(nodes):
                    if node != to:
                        ctypes.memmove(first + 4 * to * of_row, first + 4 * node * of_row, 4 * size)

    def step_sizes(self, sizes: int) -> None:
        self._call("step_sizes", Memory(sizes, 32, True))

    def tree_attention(
        self,
        q: int,
        k: int,
        v: int,
        out: int,
        strides: int,
        layout: int,
        sinks: int | None,
        batch: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        scale: float,
        softcap: float,
        window: int,
        threads: int,
    ) -> None:
        trees = _Trees(layout, batch)
        q_head, q_row, out_head, out_row, *of_keys = (int(one) for one in numbers_at(strides, 10, np.int64))
        rows = heads, trees.queries, head_dim
        failed = self._call(
            "tree_attention",
            Memory(q, 4 * extent(rows, (q_head, q_row, 1))),
            Memory(k, 4 * trees.cached(kv_heads, head_dim, of_keys[:3])),
            Memory(v, 4 * trees.cached(kv_heads, head_dim, of_keys[3:])),
            Memory(out, 4 * extent(rows, (out_head, out_row, 1)), True),
            *(Memory(strides, 80), trees.memory, Memory(sinks, 4 * heads)),
            *(batch, heads, kv_heads, head_dim, float(scale), float(softcap), window, threads),
        )
        _walked(failed)

    def walk(
        self,
        steps: int,
        count: int,
        memory: int,
        rows: int,
        layout: int,
        batch: int,
        threads: int,
    ) -> None:
        trees = _Trees(layout, batch)
        all_steps = numbers_at(steps, count, STEP)
        addresses = numbers_at(memory, int(all_steps["memory"].max()) + 1, np.uint64)
        rows_of = numbers_at(rows, int(all_steps["count"].max()) + 1, np.int64)
        sizes = dict.fromkeys(range(len(addresses)), 0)
        written: set[int] = set()
        for step in all_steps:
            reaches = _reaches(step, int(rows_of[step["count"]]), addresses, trees)
            for operand, size in enumerate(reaches):
                piece = int(step["memory"][operand])
                if piece >= 0 and size:
                    sizes[piece] = max(sizes[piece], 4 * int(step["offset"][operand]) + size)
                    if operand in (0, 8):
                        written.add(piece)
        pieces = [Memory(int(addresses[piece]), size, piece in written) for piece, size in sizes.items()]
        numbers = Memory(rows, 8 * len(rows_of))
        failed = self._call(
            "walk", Memory(steps, all_steps.nbytes), count, Pointers(pieces), numbers, trees.memory, batch, threads
        )
        _walked(failed)

    def walk_chains(self, rounds: int) -> None:
        """Not emulated: it would need C's memory of all rounds there. Nothing is run ahead then."""
        raise LookupError("rounds that are chains are not emulated")

    def walk_on(self, *given: int) -> None:
        """Emulated pass by pass; what is done between them only moves numbers."""
        own, (passes, ids, positions, best, ends, end_count, *others) = given[:7], given[7:]
        pairs, pair_count, starts, sizes, results, kept, done, drawn = others
        _, _, _, rows, layout, batch, _ = own
        queries = numbers_at(rows, 1, np.int64).item()
        scores, n, warps, shares, tokens = numbers_at(drawn, 5, np.int64).tolist() if drawn else [0] * 5
        read, at = (memory_of(one, queries, np.int64) for one in (ids, positions))
        prefixes, nodes = memory_of(layout, 2 * batch, np.int32).reshape(2, batch)
        last = {*numbers_at(ends, end_count, np.int64).tolist()}
        asked = {*numbers_at(pairs, pair_count, np.int64).tolist()} if pair_count else set()
        numbers = zip(numbers_at(starts, results, np.uint64), numbers_at(sizes, results, np.int64), strict=True)
        pieces = [(int(start), 4 * int(size)) for start, size in numbers]
        begun = memory_of(done, 1, np.int64).item()
        kept += begun * sum(size for _, size in pieces)
        for number in range(begun, passes):
            if number:
                read[:] = memory_of(best or tokens + 8 * queries * (number - 1), queries, np.int64)
                at += 1
                prefixes += nodes
            self.walk(*own)
            if drawn:
                best = tokens + 8 * queries * number
                self.draw_tokens(scores, queries, n, warps, shares + 8 * queries * number, best, own[-1])
            found = memory_of(best, queries, np.int64)
            memory_of(done, 1, np.int64)[:] = number + 1
            for start, size in pieces:
                ctypes.memmove(kept, start, size)
                kept += size
            if last & {*found.tolist()} or (read.item(0) << 32) + found.item(0) in asked:
                return


class _Pieces:
    """Memory of one call; what overlaps is sent as one piece, as it is one to the kernels."""

    def __init__(self, known: Iterable[Memory]) -> None:
        self.all: list[tuple[int, int, bool]] = []
        for one in sorted((one for one in known if one.address and one.size), key=lambda one: one.address or 0):
            start, end, written = one.address or 0, (one.address or 0) + one.size, one.written
            if self.all and start < self.all[-1][1]:
                before = self.all.pop()
                start, end, written = before[0], max(end, before[1]), written or before[2]
            self.all.append((start, end, written))

    def place(self, one: Memory) -> tuple[int, int]:
        """Its piece and where it begins there; (-1, 0) of what has no bytes."""
        for at, (start, end, _) in enumerate(self.all):
            if one.address and one.size and start <= one.address < end:
                return at, one.address - start
        return -1, 0


class _Trees:
    """Trees as the kernels are given them."""

    def __init__(self, layout: int, batch: int) -> None:
        self._prefix, self._counts, self._first = numbers_at(layout, 3 * batch, np.int32).reshape(3, batch)
        self.memory = Memory(layout, 4 * (3 * batch + int(self._counts.sum())))
        each_has = self._counts - self._first
        self.queries = int(each_has.sum())
        self.slots = np.repeat(np.arange(batch), each_has)
        nodes = [np.arange(*of) for of in zip(self._first, self._counts, strict=True)]
        self.places = np.concatenate([np.empty(0, dtype=np.int64), *nodes]) + self._prefix[self.slots]

    def cached(self, kv_heads: int, head_dim: int, strides: Sequence[int]) -> int:
        """How many floats of keys or values may be read, from their start on."""
        batch, head, row = (int(one) for one in strides)
        used = [
            at * batch + extent((kv_heads, int(prefix + nodes), head_dim), (head, row, 1))
            for at, (prefix, nodes) in enumerate(zip(self._prefix, self._counts, strict=True))
            if nodes
        ]
        return max(used, default=0)


def _reaches(step: Any, rows: int, addresses: NDArray[Any], trees: _Trees) -> Sequence[int]:
    """Bytes that a step may touch of each of its operands, from the operand's start on."""
    op = Op(int(step["op"]))
    numbers, strides = [int(one) for one in step["numbers"]], step["strides"]
    many = -numbers[0] * rows if numbers[0] < 0 else numbers[0]
    if op is Op.LINEAR:
        _, n, k, kind = numbers[:4]
        return 4 * many * n, 4 * many * k, n * row_bytes(kind, k), 4 * n
    if op is Op.MLP:
        _, n, h, k, _, gate, up, down = numbers[:8]
        weights = h * row_bytes(gate, k), h * row_bytes(up, k), n * row_bytes(down, h)
        return 4 * many * n, 4 * many * k, *weights, 4 * h, 4 * h, 4 * n, 8 * many * h
    if op is Op.NORM:
        return 4 * many * numbers[1], 4 * many * numbers[1], 4 * numbers[1]
    if op is Op.ATTEND:
        heads, kv_heads, head_dim = numbers[:3]
        own = [4 * extent((heads, rows, head_dim), (*strides[which, :2], 1)) for which in (0, 1)]
        caches = [4 * trees.cached(kv_heads, head_dim, of) for of in (strides[2, :3], step["sizes"][:3])]
        return *own, *caches, 4 * heads
    if op is Op.WRITE:
        heads, n = numbers[:2]
        ends = trees.slots * strides[0, 0] + trees.places * strides[0, 2] + (heads - 1) * strides[0, 1] + n
        return 4 * int(ends.max(initial=0)), 4 * extent((heads, rows, n), (strides[1, 1], strides[1, 2], 1))
    if op in (Op.GATHER, Op.SCATTER):
        n = numbers[0]
        index = numbers_at(int(addresses[step["memory"][2]]), rows, np.int64)
        named = int(index.max(initial=-1)) + 1
        if op is Op.GATHER:
            return 4 * extent((rows, n), (strides[0, 0], 1)), named * row_bytes(numbers[1], n), 8 * rows
        return 4 * named * n, 4 * extent((rows, n), (strides[1, 0], 1)), 8 * rows
    if op is Op.LARGEST:
        return 8 * rows, 4 * extent((rows, numbers[0]), (strides[1, 0], 1))
    if op is Op.LIKELIEST:
        _, n, k, kind = numbers[:4]
        screen = n * -(-k // 32) * 32, 12 * n, 8 * WAYS * (1 + MOST_SCREENED)
        return 8 * many, 4 * many * k, n * row_bytes(kind, k), *screen, 0, 0, 4 * many * n
    if op is Op.BEST:
        return 8 * rows * numbers[1], 4 * rows * numbers[0]
    sizes = [int(size) if size >= 0 else -int(size) * rows for size in step["sizes"]]
    return [4 * extent(sizes, strides[which]) for which in range(3)]


def _argument(buffer: int, value: float) -> bytes:
    number = isinstance(value, float)
    return np.int64(buffer).tobytes() + np.int64(0 if number else value).tobytes() + np.float64(value).tobytes()
