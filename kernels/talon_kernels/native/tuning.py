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

SECONDS, LATER_SECONDS = 2.0, 1.0
"""Trials of the first process end after so long, whatever is left to be tried, and those of later ones, which go on."""

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
    WIDE: (0, 1, 2, 3, 4),
    NARROW: (0, 1, 2, 4),
    PANEL: (0, 1, 2, 4),
    DIRECT: (0, 32, 64, 128),
    SHORT_WIDE: (0, 1, 2, 3, 4),
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
"""Where the threads had less than this share of the time of a trial to run, other work ran beside them, and the plan
found is worth little."""

LOOK_SECONDS = 0.02
"""So long a process looks whether other work runs beside it before it goes on with trials of another one."""

TRIES = 5
"""So often, once in each process, a plan is tried where the machine was busy each time."""

FORM = 8
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

TWICE = Plan(1, 0, 1)
"""Of blocks, where there are more rows than a tile has, up to twice as many: they are read directly for each half. The
library says 2 to it, and not 1, for twice as many rows as its tiles have at most, the 16 of those in `TRIALS`; 0 where
it never reads them twice. A tile of one column has no panel, and so no floats."""

Plans = Mapping[tuple[int, int], Plan]
"""By where tiles read weights, and by rows."""


@attrs.frozen
class Tried:
    """What is known of one of `TRIALS`.

    Attributes:
        plan: what was found; None where no trial has come to its end, or the library has no tiles of so many rows.
        tries: how many processes have tried it.
        settled: whether one of them came to the end while no other work ran beside it.
    """

    plan: Plan | None = None
    tries: int = attrs.field(default=0, validator=instance_of(int))
    settled: bool = attrs.field(default=False, validator=instance_of(bool))


Kept = Mapping[tuple[int, int], Tried]
"""What is known of trials, in this process and those before it; nothing of those that had no turn."""


@attrs.frozen
class Speeds:
    """What this machine does with all of torch's threads.

    Attributes:
        read: bytes a second of a plain sum over memory.
        multiplied: multiplications with an addition, a second.
    """

    read: float
    multiplied: float


class Watch:
    """Tells whether other work ran beside this process since the watch was made."""

    def __init__(self) -> None:
        self._started, self._ran = time.perf_counter(), time.process_time()

    def busy(self) -> bool:
        took = (time.perf_counter() - self._started) * torch.get_num_threads()
        return time.process_time() - self._ran < BUSY * took


def apply_plans(library: Library) -> Plans:
    """Let the library follow the plans that are kept beside it; try first what is left to be tried, and keep it.

    Where nothing can be kept, as beside a library that lies nowhere or in a folder that cannot be written to, nothing
    is tried. Plans of another `FORM` are tried anew. The first process tries whatever runs beside it; later ones go on
    when nothing does, as they would find little, and slowly.
    """
    path = _path(library)
    kept = _kept(path)
    if _left(kept) and Path(library.path).exists() and os.access(path.parent, os.W_OK):
        # Two that try at once would time each other; a file system may have no locks.
        lock = filelock.FileLock(f"{path}.lock", timeout=SECONDS + 1)  # one that is held longer is not waited for
        with contextlib.suppress(OSError, NotImplementedError), lock:
            now = _kept(path)
            # Where they differ another process has just tried, and this one has waited for it.
            if now == kept and not (kept and busy_beside(library)):
                now = tried(library, kept, LATER_SECONDS if kept else SECONDS)
                _keep(path, now)
            kept = now
    plans = _plans(kept)
    _follow(library, plans)
    return plans


def busy_beside(library: Library) -> bool:
    """Whether other work runs beside what all of torch's threads do now."""
    watch, ends, out = Watch(), time.perf_counter() + LOOK_SECONDS, torch.zeros(1)
    while time.perf_counter() < ends:
        library.multiply(100_000, torch.get_num_threads(), out.data_ptr())
    return watch.busy()


def _plans(kept: Kept) -> dict[tuple[int, int], Plan]:
    return {trial: known.plan for trial, known in kept.items() if known.plan is not None}


def _follow(library: Library, plans: Plans) -> None:
    for (source, rows), plan in plans.items():
        library.plan(source, rows, plan.columns, plan.distance, plan.floats)


def _left(kept: Kept) -> list[tuple[int, int]]:
    """What is to be tried, and first what was tried the least."""
    known = {trial: kept.get(trial, Tried()) for trial in TRIALS}
    left = [trial for trial in TRIALS if not known[trial].settled and known[trial].tries < TRIES]
    return sorted(left, key=lambda trial: known[trial].tries)


def _path(library: Library) -> Path:
    """Where plans for this number of threads are kept."""
    place = Path(library.path)
    return place.with_name(f"{place.stem}-{torch.get_num_threads()}.plans.json")


def _kept(path: Path) -> Kept:
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["form"] != FORM:
            return {}
        found: dict[tuple[int, int], Tried] = {}
        for one in kept["trials"]:
            trial = int(one["source"]), int(one["rows"])
            plan = None if one["plan"] is None else Plan(**one["plan"])
            if trial not in TRIALS or one["tries"] < 0 or not (plan is None or _could_be_found(plan)):
                return {}
            found[trial] = Tried(plan, one["tries"], one["settled"])
        return found
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return {}


def _could_be_found(plan: Plan) -> bool:
    """Whether numbers are like those of trials and of plans that are built in; others come of a damaged file."""
    ahead = {distance for distances in DISTANCES.values() for distance in distances}
    return plan.columns in (0, *WIDTHS) and plan.distance in ahead and 0 <= plan.floats <= max(PANELS)


def _keep(path: Path, kept: Kept) -> None:
    trials = [{"source": source, "rows": rows, **attrs.asdict(known)} for (source, rows), known in kept.items()]
    text = json.dumps({"form": FORM, "trials": trials})
    with contextlib.suppress(OSError), tempfile.TemporaryDirectory(dir=path.parent) as folder:  # or it is tried again
        whole = Path(folder) / path.name
        whole.write_text(text, encoding="utf-8")
        whole.replace(path)


class _TimeIsOver(Exception):
    """A trial stops where it is."""


def tried(library: Library, before: Kept, seconds: float = SECONDS) -> Kept:
    """Go on with trials for as long as there is time, and add what they find to what is known.

    A trial for which the time was short finds nothing: the library follows what it did before. Such a trial is the
    first of the next process.
    """
    ends = time.perf_counter() + seconds
    built_in = {trial: _planned(library, *trial) for trial in TRIALS}
    found = dict(before)
    _follow(library, _plans(found))
    cold, threads = _cold(), torch.get_num_threads()

    def took(source: int, rows: int, plan: Plan) -> float:
        if time.perf_counter() > ends:
            raise _TimeIsOver
        return _plan_took(library, source, rows, cold, threads, plan)

    for at, trial in enumerate(_left(found)):
        followed = {one: _planned(library, *one) for one in (trial, (DIRECT, trial[1]))}
        known, watch = found.get(trial, Tried()), Watch()
        try:
            plan, direct = _found(library, trial, built_in[trial], found, took)
        except _TimeIsOver:
            _follow(library, followed | _plans(found))
            if at == 0:  # all the time of a process was not enough
                found[trial] = attrs.evolve(known, tries=known.tries + 1)
            break
        found[trial] = Tried(plan, known.tries + 1, settled=plan is None or not watch.busy())
        if direct is not None:
            found[DIRECT, trial[1]] = attrs.evolve(found[DIRECT, trial[1]], plan=direct)
        _follow(library, followed | _plans(found))
    return found


def _found(
    library: Library, trial: tuple[int, int], built_in: Plan, known: Kept, took: Callable[[int, int, Plan], float]
) -> tuple[Plan | None, Plan | None]:
    """The best plan, None where there are no such tiles; and after a trial of panels that of blocks read directly."""
    source, rows = trial
    of = partial(took, source, rows)
    if source == DIRECT and library.plan(source, rows, *attrs.astuple(TWICE)) == 2:
        return _quickest([BY_PANELS, TWICE], of), None
    if source == PANEL:
        library.plan(DIRECT, rows, 0, 0, 0)  # or they would be read directly
    plans = [plan for (own, _), plan in _plans(known).items() if own == source and plan not in (BY_PANELS, TWICE)]
    plan = _better(built_in, plans[-1] if plans else built_in, of, source)  # the last is likely to be quick
    if plan is None:
        return None, None
    if source == DIRECT and (rows > BAND or (PANEL, rows) in known):
        return _quickest([plan, BY_PANELS], of), None
    direct = known.get((DIRECT, rows), Tried()).plan if source == PANEL else None
    if direct is None or direct == BY_PANELS:
        return plan, direct
    library.plan(source, rows, *attrs.astuple(plan))
    return plan, _quickest([direct, BY_PANELS], partial(took, DIRECT, rows))


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


def _better(first: Plan, other: Plan, took: Callable[[Plan], float], source: int) -> Plan | None:
    """The best plan, with one setting changed at a time; None where the library knows no such tiles.

    Args:
        first: what the library was built with, which stays where nothing is quicker.
        other: one that is likely to be quick.
        took: seconds of a plan.
        source: where tiles read weights.
    """
    settings: list[tuple[str, tuple[int, ...]]] = [("columns", WIDTHS[::-1]), ("distance", DISTANCES[source])]
    if source == PANEL:
        settings.append(("floats", PANELS))
    seconds = {plan: took(plan) for plan in dict.fromkeys((first, other))}
    for name, values in settings:
        best = min(seconds, key=seconds.__getitem__)
        for value in values:
            plan = attrs.evolve(best, **{name: value})
            if plan not in seconds:
                seconds[plan] = took(plan)
    known = sorted((plan for plan in seconds if seconds[plan] < math.inf), key=seconds.__getitem__)
    if not known:
        return None
    return _quickest([first, *[plan for plan in known if plan != first][:FINALISTS]], took)


def _quickest(plans: Sequence[Plan], took: Callable[[Plan], float]) -> Plan:
    """The quickest plan; the first of them where none is quicker by `GAIN`.

    They are timed in turn: a machine may be slower for a while.
    """
    least = dict.fromkeys(plans, math.inf)
    for _ in range(3):
        for plan in plans:
            least[plan] = min(least[plan], took(plan))
    best = min(plans, key=least.__getitem__)
    return best if least[best] * GAIN < least[plans[0]] else plans[0]


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
        times: how long eight rows take, in times of one.
    """

    summed: float
    read: float
    multiplied: float
    times: float


def reached(library: Library, source: int, cold: Cold) -> Reached:
    """Measure products of one kind of weights, in turn with the sum: a machine may be slower for a while.

    Args:
        library: the kernels.
        source: where tiles read weights.
        cold: memory that has at least `MEASURED_MEGABYTES`.
    """
    threads = torch.get_num_threads()
    weights = cold.weights(source, MEASURED_MEGABYTES)
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
    summed, read = weights.nbytes / least["sum"], weights.nbytes / least["few"]
    return Reached(summed, read, products / least["many"], least["many"] / least["few"])


NAMES = {
    WIDE: "float32 weights",
    SHORT_WIDE: "float32 weights, short rows",
    NARROW: "bfloat16 weights",
    SHORT_NARROW: "bfloat16 weights, short rows",
    DIRECT: "weights in blocks (Q4_1)",
}


def told_speeds(library: Library) -> Mapping[str, str]:
    """What this machine does at best, what the products reach with one row and with eight, and by which plans."""
    kept, watch = _kept(_path(library)), Watch()
    best = machine_speeds(library)
    beside = BESIDE if watch.busy() else ""
    told = {
        "memory": f"{best.read / 1e9:.1f} GB/s{beside}",
        "multiplications": f"{best.multiplied / 1e9:.0f} G/s{beside}",
    }
    cold = Cold(MEASURED_MEGABYTES)
    for source, name in NAMES.items():
        watch = Watch()
        found = reached(library, source, cold)
        beside = BESIDE if watch.busy() else ""
        few, many = (_told_plan(kept.get((source, rows)), source) for rows in (1, 8))
        told[name] = (
            f"1 row {found.read / 1e9:.1f} GB/s, {_beside(found.read, found.summed, 'a sum over them')}{few}; "
            f"8 rows {found.multiplied / 1e9:.0f} G/s, "
            f"{_beside(found.multiplied, best.multiplied, 'the multiplications')}, {found.times:.2f} times as long as "
            f"1 row{many}{beside}"
        )
    return told


def _beside(speed: float, best: float, what: str) -> str:
    """A speed beside one that it should come near; what is as fast, within what timings differ, is said to be so."""
    percent = round(100 * speed / best)
    return f"{percent}% of {what}" if percent < 100 else f"as fast as {what}"


BESIDE = "; other work ran beside this, so that it says little"


def _told_plan(known: Tried | None, source: int) -> str:
    """A plan behind what it reaches; nothing where there are no tiles of so many rows, and others are taken."""
    if known is None or (known.plan is None and not known.settled):
        return " (built in, not tried)"
    plan = known.plan
    if plan is None:
        return ""
    if plan == BY_PANELS:
        return " (by panels)"
    unit = "line" if source == DIRECT else "tile"
    ahead = f", fetched {plan.distance} {unit}{'' if plan.distance == 1 else 's'} ahead" if plan.distance else ""
    return f" (tiles of {plan.columns} column{'' if plan.columns == 1 else 's'}{ahead})"
