"""Which plan the products follow on this processor: tried once, kept beside the compiled library.

A plan says how many columns a tile has, how far ahead weights are fetched, how large a panel of widened weights is, and
whether blocks are read without one.
None changes a bit of a result. What is best differs by processor by a factor of up to 1.6.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import filelock
import numpy as np
import torch
from attrs.validators import instance_of
from torch import Tensor

if TYPE_CHECKING:
    from talon_kernels.native import Library

SECONDS = 2.0
"""Trials end after so long, whatever is left to be tried."""

WIDE, NARROW, PANEL, DIRECT, SHORT_WIDE, SHORT_NARROW = range(6)
"""Where tiles read weights: float32, bfloat16, a panel that was widened from blocks, and the blocks themselves; and the
first two where the rows of the weights have at most 4,096 bytes."""

KINDS = {WIDE: 0, NARROW: 30, PANEL: 3, DIRECT: 3, SHORT_WIDE: 0, SHORT_NARROW: 30}
"""The type of weights that each is tried on, as GGUF numbers them; blocks are Q4_1."""

BITS = {WIDE: 32, NARROW: 16, PANEL: 5, DIRECT: 5, SHORT_WIDE: 32, SHORT_NARROW: 16}

INPUTS = {WIDE: 2048, NARROW: 4096, PANEL: 1024, DIRECT: 1024, SHORT_WIDE: 576, SHORT_NARROW: 1024}
OUTPUTS = 1536
"""Columns and rows of the weights that are tried, of which there are so many that no cache holds them."""

WIDTHS = (1, 2, 3, 4, 6, 8)
DISTANCES: Mapping[int, tuple[int, ...]] = {
    WIDE: (0, 1, 2, 4),
    NARROW: (0, 1, 2, 4),
    PANEL: (0, 1, 2, 4),
    DIRECT: (0, 32, 64, 128),
    SHORT_WIDE: (0, 1, 2, 4),
    SHORT_NARROW: (0, 1, 2, 4),
}
"""In tiles, in panels, and of blocks that are read directly in lines of 64 bytes."""

PANELS = (4096, 8192)

NUMBERS = SHORT_WIDE, WIDE, SHORT_NARROW, NARROW

TRIALS = (
    *((DIRECT, 1), *((source, 1) for source in NUMBERS), (DIRECT, 4), (PANEL, 4)),
    *((DIRECT, rows) for rows in (8, 16, 2, 3)),
    (PANEL, 3),
    *((DIRECT, rows) for rows in (6, 5, 7)),
    *((PANEL, 2), (PANEL, 1)),
    *((source, rows) for source in NUMBERS for rows in (8, 4, 2)),
    *((source, rows) for source in NUMBERS for rows in (3, 5, 6, 7)),
)
"""Where tiles read weights, and their rows, in this order, should the time be short: plain decoding and full tiles
first. Tiles over a panel have no more rows than `BAND`."""

BAND = 4
"""Most rows of a tile over a panel: that may be read again."""

MEGABYTES = 32
"""Of weights that a plan is tried on."""

MEASURED_MEGABYTES = 256
"""Of weights that speeds are told of, and the most that trials go through in turn: processors keep a part of what is
not much more than they cache."""

LEAST_MEGABYTES = 64
"""That trials go through at least."""

CACHE_FILES = ("level", "type", "shared_cpu_list", "size")
"""By which Linux tells of a cache."""

FINALISTS = 3
"""So many of the quickest plans are timed again, in turn with the one that all are compared with."""

BUSY = 0.7
"""Where the threads had less than this share of the time of trials to run, other work ran beside them, and the plans
found are worth little."""

TRIES = 5
"""So often, once in each process, plans are tried where the machine was busy each time."""

FORM = 5
"""Of kept plans: raised with every change of what is tried, how it is timed, or what a plan's numbers mean."""

GAIN = 1.05
"""Another plan is taken if it is so many times as fast as the one before it."""


@attrs.frozen
class Plan:
    """How products with a number of rows are done.

    Attributes:
        columns: of a tile.
        distance: how many tiles, or panels, ahead weights are fetched, or lines of blocks that are read directly; 0
            leaves that to the processor.
        floats: about so many numbers has a panel.
    """

    columns: int = attrs.field(validator=instance_of(int))
    distance: int = attrs.field(validator=instance_of(int))
    floats: int = attrs.field(default=4096, validator=instance_of(int))


BY_PANELS = Plan(0, 0, 0)
"""Of blocks that could be read directly: they are not."""

TWICE = Plan(1, 0, 0)
"""Of blocks, where there are more rows than a tile has, up to twice as many: they are read directly for each half. The
library says 2 to it, and not 1, for twice as many rows as its tiles have at most: 16 or 8 of those in `TRIALS`."""

Plans = Mapping[tuple[int, int], Plan]
"""By where tiles read weights, and by rows."""


@attrs.frozen
class Speeds:
    """What this machine does with all of torch's threads.

    Attributes:
        read: bytes a second of a plain sum over memory.
        multiplied: multiplications with an addition, a second.
    """

    read: float
    multiplied: float


def apply_plans(library: Library) -> Plans:
    """Let the library follow the plans that are kept beside it; where none are, try which are best and keep them.

    Plans of another `FORM` are tried anew. A library that lies nowhere, as its folder could not be written to, keeps
    the plans that it was built with.
    """
    path = _path(library)
    kept = _kept(path)
    if kept.to_try:
        if not Path(library.path).exists():
            return {}
        with filelock.FileLock(f"{path}.lock"):  # two that try at once would time each other
            kept = _kept(path)
            if kept.to_try:
                kept = _tried(library, kept)
                _keep(path, kept)
    for (source, rows), plan in kept.plans.items():
        library.plan(source, rows, plan.columns, plan.distance, plan.floats)
    return kept.plans


@attrs.frozen
class Kept:
    """Plans, after how many trials they were found, and whether the machine was busy with other work in the last."""

    plans: Plans = attrs.field(factory=dict)
    tries: int = attrs.field(default=0, validator=instance_of(int))
    busy: bool = attrs.field(default=True, validator=instance_of(bool))

    @property
    def to_try(self) -> bool:
        return self.busy and self.tries < TRIES


def _tried(library: Library, before: Kept) -> Kept:
    started, ran = time.perf_counter(), time.process_time()
    plans = best_plans(library)
    took = (time.perf_counter() - started) * torch.get_num_threads()
    return Kept(plans, before.tries + 1, busy=time.process_time() - ran < BUSY * took)


def _path(library: Library) -> Path:
    """Where plans for this number of threads are kept."""
    place = Path(library.path)
    return place.with_name(f"{place.stem}-{torch.get_num_threads()}.plans.json")


def _kept(path: Path) -> Kept:
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["form"] != FORM:
            return Kept()
        plans = {(int(one["source"]), int(one["rows"])): Plan(**one["plan"]) for one in kept["plans"]}
        return Kept(plans, kept["tries"], kept["busy"])
    except (OSError, ValueError, TypeError, KeyError):
        return Kept()


def _keep(path: Path, kept: Kept) -> None:
    plans = [{"source": where, "rows": rows, "plan": attrs.asdict(plan)} for (where, rows), plan in kept.plans.items()]
    text = json.dumps({"form": FORM, "tries": kept.tries, "busy": kept.busy, "plans": plans})
    with contextlib.suppress(OSError), tempfile.TemporaryDirectory(dir=path.parent) as folder:  # or it is tried again
        whole = Path(folder) / path.name
        whole.write_text(text, encoding="utf-8")
        whole.replace(path)


def best_plans(library: Library, seconds: float = SECONDS) -> Plans:
    """Try plans for as long as there is time; rows for which there was none keep what the library was built with."""
    ends = time.perf_counter() + seconds
    found: dict[tuple[int, int], Plan] = {}
    least: dict[tuple[int, int], float] = {}
    before: dict[int, Plan] = {}  # the plan that was found last, of other rows
    cold, threads = _cold(), torch.get_num_threads()
    for source, rows in TRIALS:
        if time.perf_counter() > ends:
            break
        built_in = _planned(library, source, rows)
        if source == PANEL:
            library.plan(DIRECT, rows, 0, 0, 0)  # or they would be read directly
        took = partial(_plan_took, library, source, rows, cold, threads)
        if source == DIRECT and library.plan(source, rows, *attrs.astuple(TWICE)) == 2:
            found[source, rows], _ = _quickest([BY_PANELS, TWICE], took)
            took(found[source, rows])
            continue
        plan, least[source, rows] = _better(built_in, before.get(source, built_in), took, source, ends)
        if least[source, rows] < math.inf:
            before[source] = found[source, rows] = plan
            if source == DIRECT and rows > BAND and took(BY_PANELS) * GAIN < least[source, rows]:
                plan = found[source, rows] = BY_PANELS
            took(plan)  # the last that was tried may be another
        direct = found.get((DIRECT, rows))
        if source == PANEL and direct is not None:
            if least[source, rows] * GAIN < least[DIRECT, rows]:
                direct = found[DIRECT, rows] = BY_PANELS
            library.plan(DIRECT, rows, direct.columns, direct.distance, direct.floats)
    return found


def _planned(library: Library, source: int, rows: int) -> Plan:
    """What the library follows now; no columns where it has no tiles of so many rows."""
    plan = np.zeros(3, dtype=np.int64)
    library.planned(source, rows, plan.ctypes.data)
    return Plan(*plan.tolist())


def _plan_took(library: Library, source: int, rows: int, cold: Cold, threads: int, plan: Plan) -> float:
    """Seconds of products by a plan, which the library follows from now on; infinite where it knows no such tile."""
    if not library.plan(source, rows, plan.columns, plan.distance, plan.floats):
        return math.inf
    weights = cold.weights(source, MEGABYTES)
    x, y = torch.ones((rows, INPUTS[source])), torch.empty((rows, OUTPUTS))
    return _took(lambda: _multiply(library, x, weights, y, KINDS[source], threads), times=1)


def _better(first: Plan, other: Plan, took: Callable[[Plan], float], source: int, ends: float) -> tuple[Plan, float]:
    """The best plan and its seconds, with one setting changed at a time, or the best so far when the time is over.

    Args:
        first: what the library was built with, which stays where nothing is quicker.
        other: one that is likely to be quick.
        took: seconds of a plan.
        source: where tiles read weights.
        ends: when the time is over.
    """
    settings: list[tuple[str, tuple[int, ...]]] = [("columns", WIDTHS[::-1]), ("distance", DISTANCES[source])]
    if source == PANEL:
        settings.append(("floats", PANELS))
    seconds = {first: took(first)}
    if other != first and time.perf_counter() <= ends:
        seconds[other] = took(other)
    for name, values in settings:
        best = min(seconds, key=seconds.__getitem__)
        for value in values:
            plan = attrs.evolve(best, **{name: value})
            if plan not in seconds and not (time.perf_counter() > ends and seconds[best] < math.inf):
                seconds[plan] = took(plan)
    known = sorted((plan for plan in seconds if seconds[plan] < math.inf), key=seconds.__getitem__)
    if known == [first]:
        return first, took(first)  # there was no time for another, or there is none
    return _quickest([first, *[plan for plan in known if plan != first][:FINALISTS]], took)


def _quickest(plans: Sequence[Plan], took: Callable[[Plan], float]) -> tuple[Plan, float]:
    """The quickest plan, and its seconds; the first of them where none is quicker by `GAIN`.

    They are timed in turn: a machine may be slower for a while.
    """
    least = dict.fromkeys(plans, math.inf)
    for _ in range(3):
        for plan in plans:
            least[plan] = min(least[plan], took(plan))
    best = min(plans, key=least.__getitem__)
    return (best, least[best]) if least[best] * GAIN < least[plans[0]] else (plans[0], least[plans[0]])


def weight_bytes(source: int) -> int:
    """Of a weight that is tried."""
    return INPUTS[source] * OUTPUTS * BITS[source] // 8


class Cold:
    """Memory that is read as weights of any kind, part after part: little of one is in a cache when it is read again.

    Args:
        megabytes: of it, at least what is asked for at once; one weight has room in any case.
    """

    def __init__(self, megabytes: int) -> None:
        size = max(megabytes * 2**20, *map(weight_bytes, INPUTS))
        self._bytes = torch.full((size,), 1, dtype=torch.uint8)  # if nobody had written to it, it would be in a cache
        self._at = 0

    def weights(self, source: int, megabytes: int) -> Tensor:
        """Bytes of many weights, one after another, shape `(weights, bytes)`: about so much of the memory, and next."""
        size = weight_bytes(source)
        count = max(1, megabytes * 2**20 // size)
        if self._at + count * size > len(self._bytes):
            self._at = 0
        self._at += count * size
        return self._bytes[self._at - count * size : self._at].view(count, size)


def _cold() -> Cold:
    """Memory for trials: twice what the caches hold, where the system tells, in bounds."""
    return Cold(max(LEAST_MEGABYTES, min(2 * cache_megabytes(), MEASURED_MEGABYTES)))


def cache_megabytes(folder: Path = Path("/sys/devices/system/cpu")) -> int:
    """What all caches of the processors hold that this process may use, as Linux tells it; 0 where nobody does."""
    sizes: dict[tuple[str, str, str], int] = {}  # by level, kind and whose it is
    for cpu in usable_cpus():
        for index in folder.glob(f"cpu{cpu}/cache/index*"):
            with contextlib.suppress(OSError, ValueError):
                level, kind, whose, size = ((index / name).read_text().strip() for name in CACHE_FILES)
                if kind != "Instruction":
                    sizes[level, kind, whose] = int(size.removesuffix("K"))
    return sum(sizes.values()) // 1024


def usable_cpus() -> set[int]:
    """The processors that this process may use, by number; none where the system does not say."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


def _multiply(library: Library, x: Tensor, weights: Tensor, y: Tensor, kind: int, threads: int) -> None:
    for weight in weights:
        library.linear(x.data_ptr(), weight.data_ptr(), None, y.data_ptr(), len(x), OUTPUTS, x.shape[1], kind, threads)


def _took(work: Callable[[], Any], times: int = 2) -> float:
    """Seconds of the quickest of some runs."""
    least = math.inf
    for _ in range(times):
        start = time.perf_counter()
        work()
        least = min(least, time.perf_counter() - start)
    return least


def machine_speeds(library: Library) -> Speeds:
    """Measure what the machine can do at best, in a quarter of a second."""
    threads = torch.get_num_threads()
    numbers = torch.ones(MEASURED_MEGABYTES * 2**20 // 4)
    reading = min(_took(lambda: library.sum(numbers.data_ptr(), numbers.numel(), threads)) for _ in range(4))
    times = 2_000_000
    out = torch.zeros(1)
    start = time.perf_counter()
    each = library.multiply(times, threads, out.data_ptr())
    return Speeds(numbers.nbytes / reading, each * times * threads / (time.perf_counter() - start))


@attrs.frozen
class Reached:
    """What products reach with one row and with eight, beside a plain sum over the same weights.

    Attributes:
        summed: bytes a second of the sum.
        read: bytes of weights a second with one row.
        multiplied: multiplications with an addition a second with eight rows.
    """

    summed: float
    read: float
    multiplied: float


def reached(library: Library, source: int) -> Reached:
    """Measure products of one kind of weights, in turn with the sum: a machine may be slower for a while."""
    threads = torch.get_num_threads()
    weights = Cold(MEASURED_MEGABYTES).weights(source, MEASURED_MEGABYTES)
    few, many = (torch.ones((rows, INPUTS[source])) for rows in (1, 8))
    out = torch.empty((8, OUTPUTS))
    works: dict[str, Callable[[], object]] = {
        "sum": lambda: library.sum(weights.data_ptr(), weights.numel() // 4, threads),
        "few": lambda: _multiply(library, few, weights, out, KINDS[source], threads),
        "many": lambda: _multiply(library, many, weights, out, KINDS[source], threads),
    }
    least = dict.fromkeys(works, math.inf)
    for _ in range(3):
        for name, work in works.items():
            least[name] = min(least[name], _took(work, times=1))
    products = len(many) * len(weights) * INPUTS[source] * OUTPUTS
    return Reached(weights.nbytes / least["sum"], weights.nbytes / least["few"], products / least["many"])


NAMES = {WIDE: "float32 weights", NARROW: "bfloat16 weights", DIRECT: "weights in blocks (Q4_1)"}


def told_speeds(library: Library) -> Mapping[str, str]:
    """What this machine does at best, what the products reach with one row and with eight, and by which plans."""
    best, plans = machine_speeds(library), _kept(_path(library)).plans
    told = {"memory": f"{best.read / 1e9:.1f} GB/s", "multiplications": f"{best.multiplied / 1e9:.0f} G/s"}
    for source, name in NAMES.items():
        found = reached(library, source)
        few, many = (_told_plan(plans.get((source, rows)), source) for rows in (1, 8))
        told[name] = (
            f"1 row {found.read / 1e9:.1f} GB/s, {100 * found.read / found.summed:.0f}% of a sum over them{few}; "
            f"8 rows {found.multiplied / 1e9:.0f} G/s, {100 * found.multiplied / best.multiplied:.0f}% of the "
            f"multiplications{many}"
        )
    return told


def _told_plan(plan: Plan | None, source: int) -> str:
    """A plan behind what it reaches; nothing where none was found, and the library has the one it was built with."""
    if plan is None:
        return ""
    if plan in (BY_PANELS, TWICE):
        return " (by panels)" if plan == BY_PANELS else " (read twice)"
    unit = "line" if source == DIRECT else "tile"
    ahead = f", fetched {plan.distance} {unit}{'' if plan.distance == 1 else 's'} ahead" if plan.distance else ""
    return f" (tiles of {plan.columns} column{'' if plan.columns == 1 else 's'}{ahead})"
