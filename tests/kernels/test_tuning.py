"""Plans of the products: tried once, and kept; `test_plans.py` has that none of them changes a bit."""

import ctypes
import json
import re
from itertools import pairwise, product, starmap

import attrs
import numpy as np
import pytest
import torch

from talon_kernels import native
from talon_kernels.native import tuning
from talon_kernels.native.tuning import (
    BY_PANELS,
    DIRECT,
    PANEL,
    SHORT_WIDE,
    WIDE,
    Plan,
    Tried,
    apply_plans,
    tried,
)

TWICE_EIGHT = 16
"""Rows of which a library with 32 registers reads blocks twice, each time for half of them, if its plan says so."""


class Machine:
    """A library on which a plan takes the time that a test says."""

    path = "library.so"

    def __init__(self, seconds, read_twice=None):
        self._seconds, self._read_twice = seconds, read_twice
        self.plans = {}

    def planned(self, source, rows, out):
        built_in = Plan(8, 2) if source == WIDE else Plan(4, 64)
        plan = self.plans.get((source, rows), built_in)
        numbers = np.array(attrs.astuple(plan), dtype=np.int64)
        ctypes.memmove(out, numbers.ctypes.data, numbers.nbytes)

    def plan(self, source, rows, columns, distance, floats):
        twice = source == DIRECT and rows == self._read_twice
        if (rows > 4 and columns > 4) or (source == DIRECT and not twice and (rows > 6 or columns not in (0, 1, 2, 4))):
            return 0  # no such tile
        self.plans[source, rows] = Plan(columns, distance, floats)
        return 1 + twice

    def seconds(self, source, rows):
        return self._seconds(source, rows, self.plans[source, rows])


def found_plans(machine, seconds=tuning.SECONDS):
    return tuning._plans(tried(machine, {}, seconds))


@pytest.fixture
def timed(monkeypatch):
    """Times come from the machine, and not from a clock."""

    def plan_took(library, source, rows, cold, threads, plan):
        known = library.plan(source, rows, plan.columns, plan.distance, plan.floats)
        return library.seconds(source, rows) if known else float("inf")

    monkeypatch.setattr(tuning, "_plan_took", plan_took)
    monkeypatch.setattr(tuning, "_cold", lambda: None)
    monkeypatch.setattr(tuning, "BUSY", 0.0)
    monkeypatch.setattr(tuning, "busy_beside", lambda _: False)


def test_the_quickest_plan_is_found_and_followed(timed):
    best = {PANEL: Plan(3, 4, 8192), WIDE: Plan(1, 0)}

    def seconds(source, rows, plan):
        aim = best.get(source, Plan(2, 1))
        return 1 + abs(plan.columns - aim.columns) + abs(plan.distance - aim.distance) + (plan.floats != aim.floats)

    machine = Machine(seconds)
    plans = found_plans(machine)
    for rows in range(1, 5):
        assert plans[PANEL, rows] == machine.plans[PANEL, rows] == best[PANEL]
    for rows in range(1, 9):
        assert plans[WIDE, rows].columns == 1
        assert plans[WIDE, rows].distance == 0


@pytest.mark.parametrize("panels", [0.5, 2.0])
def test_blocks_are_read_directly_where_that_is_quicker_than_by_panels(timed, panels):
    def seconds(source, rows, plan):
        return panels if source == PANEL or not plan.columns else 1 + (plan.columns != 2) + (plan.distance != 128)

    machine = Machine(seconds)
    plans = found_plans(machine)
    for rows in range(1, 7):
        assert plans[DIRECT, rows] == machine.plans[DIRECT, rows] == (BY_PANELS if panels < 1 else Plan(2, 128))
    assert not any(source == DIRECT and rows > 6 for source, rows in plans)  # of which this machine has no tiles


@pytest.mark.parametrize("twice", [0.5, 1.0])
def test_blocks_are_read_twice_where_that_is_quicker_than_by_panels(timed, twice):
    rows = TWICE_EIGHT
    machine = Machine(lambda _, own, plan: twice if own == rows and plan.columns else 1.0, rows)
    plans = found_plans(machine)
    right = tuning.TWICE if twice < 1.0 else BY_PANELS
    assert plans[DIRECT, rows] == machine.plans[DIRECT, rows] == right


def test_a_plan_that_is_hardly_quicker_is_not_taken(timed):
    plans = found_plans(Machine(lambda source, rows, plan: 1.0 if plan == Plan(8, 2) else 0.97))
    assert plans[WIDE, 1] == Plan(8, 2)


def test_a_plan_is_found_though_the_machine_was_slow_while_it_was_tried_at_first(timed, monkeypatch):
    calls = []

    def seconds(source, rows, plan):
        calls.append(plan)
        slow = calls.count(plan) == 1 and len(calls) < 5  # as if other work ran beside the first trials
        return (1.0 if plan.columns == 4 else 2.0) * (3 if slow else 1)

    monkeypatch.setattr(tuning, "TRIALS", ((DIRECT, 1),))
    assert found_plans(Machine(seconds))[DIRECT, 1].columns == 4


class Clock:
    """Time that passes by the trials of a `Machine` alone, of which the process runs a share."""

    def __init__(self, monkeypatch, share=1.0):
        self.now, self.share = 0.0, share
        monkeypatch.setattr(tuning.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(tuning.time, "process_time", lambda: self.now * self.share * torch.get_num_threads())

    def machine(self, seconds=lambda source, rows, plan: 1.0, each=1.0):
        def passing(source, rows, plan):
            self.now += each
            return seconds(source, rows, plan)

        return Machine(passing)


def test_no_plan_is_timed_when_the_time_is_over(timed, monkeypatch):
    for seconds in (*range(40), 100, 200):
        clock = Clock(monkeypatch)
        found = found_plans(clock.machine(), seconds=seconds)
        assert clock.now <= seconds + 1
        assert found or seconds < 40


def test_the_memory_of_trials_is_made_in_their_time(timed, monkeypatch):
    clock = Clock(monkeypatch)
    monkeypatch.setattr(tuning, "_cold", lambda: setattr(clock, "now", 200.0))
    assert found_plans(clock.machine(), seconds=100) == {}


def test_a_trial_that_ends_too_early_leaves_what_was_followed(timed, monkeypatch):
    """A plan that was found for other rows may be of half the speed, and was compared with too little."""
    monkeypatch.setattr(tuning, "TRIALS", ((WIDE, 1), (WIDE, 4)))
    clock = Clock(monkeypatch)

    def seconds(source, rows, plan):
        clock.now += 0 if rows == 1 else 100
        return 1.0 if plan.columns == 1 else 2.0

    machine = clock.machine(seconds)
    plans = found_plans(machine, seconds=50)
    assert plans[WIDE, 1].columns == 1
    assert (WIDE, 4) not in plans
    assert machine.plans[WIDE, 4] == Plan(8, 2)


def processes(machine, count):
    """What each of some processes finds, one after another."""
    found = [{}]
    for _ in range(count):
        machine.plans.clear()
        found.append(tried(machine, found[-1], 100.0))
    return found[1:]


def test_later_processes_go_on_until_all_was_tried_once(timed, monkeypatch):
    clock = Clock(monkeypatch)
    monkeypatch.setattr(tuning, "BUSY", 0.7)
    machine = clock.machine(lambda source, rows, plan: 1 + abs(plan.columns - 3) + abs(plan.distance - 1))
    found = processes(machine, 20)
    assert 0 < len(found[0]) < len(found[1]) < len(tuning.TRIALS)
    assert all(known.tries == 1 and known.settled for known in found[-1].values())
    assert {*found[-1]} == {*tuning.TRIALS}
    assert found[-1][WIDE, 4].plan == Plan(3, 1)
    now = clock.now
    machine.plans.clear()
    assert tried(machine, found[-1]) == found[-1]
    assert clock.now == now
    assert all(machine.plans[trial] == plan for trial, plan in tuning._plans(found[-1]).items())


def test_beside_other_work_all_is_tried_once_before_anything_is_tried_again_and_then_that_ends(timed, monkeypatch):
    clock = Clock(monkeypatch, share=0.5)
    monkeypatch.setattr(tuning, "BUSY", 0.7)
    found = processes(clock.machine(), 80)
    with_tiles = [trial for trial, known in found[-1].items() if known.plan is not None]
    assert all(known.settled == (known.plan is None) for known in found[-1].values())
    assert {found[-1][trial].tries for trial in with_tiles} == {tuning.TRIES}
    for one in found:
        tries = [one.get(trial, Tried()).tries for trial in with_tiles]
        assert max(tries) - min(tries) <= 1
    assert found[-1] == found[-2]
    clock.share = 1.0  # what was tried on a busy machine is tried again on one that is not
    assert tried(clock.machine(), found[1], 10**5)[tuning.TRIALS[-1]].settled


def test_a_trial_that_takes_all_the_time_of_a_process_is_given_up_at_last(timed, monkeypatch):
    monkeypatch.setattr(tuning, "TRIALS", ((WIDE, 1),))
    clock = Clock(monkeypatch)
    assert processes(clock.machine(each=60.0), 9)[-1] == {(WIDE, 1): Tried(None, tuning.TRIES)}
    assert clock.now == tuning.TRIES * 120


def test_weights_that_are_read_in_turn_come_again_when_all_others_were_read():
    cold = tuning.Cold(64)
    seen = [cold.weights(WIDE, 16), *(cold.weights(source, 13) for source in (SHORT_WIDE, DIRECT))]
    ends = [(part.data_ptr(), part.data_ptr() + part.numel()) for part in seen]
    assert all(end <= begin for (_, end), (begin, _) in pairwise(ends))
    for _ in range(10):
        part = cold.weights(WIDE, 16)
        assert part.shape == (1, 2048 * 1536 * 4)
        assert part.eq(1).all()  # all of it is there


def test_all_caches_together_decide_how_much_is_read_in_turn(tmp_path, monkeypatch):
    def cache(cpu, at, level, kind, whose, size):
        folder = tmp_path / f"cpu{cpu}" / "cache" / f"index{at}"
        folder.mkdir(parents=True)
        for name, text in zip(tuning.CACHE_FILES, (level, kind, whose, size), strict=True):
            (folder / name).write_text(f"{text}\n")

    for cpu in range(5):
        cache(cpu, 0, 1, "Data", cpu, "512K")
        cache(cpu, 1, 1, "Instruction", cpu, "4096K")
        cache(cpu, 2, 3, "Unified", "0-1" if cpu < 2 else "2-4", "32768K")
        cache(cpu, 3, 4, "Unified", cpu, "no number")
    monkeypatch.setattr(tuning, "usable_cpus", lambda: {0, 1})
    assert tuning.cache_megabytes(tmp_path) == 33
    monkeypatch.setattr(tuning, "usable_cpus", lambda: {0, 1, 2, 3})
    assert tuning.cache_megabytes(tmp_path) == 66
    assert tuning.cache_megabytes(tmp_path / "nowhere") == 0
    for cache, right in ((0, 64), (36, 72), (300, 256)):
        monkeypatch.setattr(tuning, "cache_megabytes", lambda cache=cache: cache)
        assert tuning._cold().weights(SHORT_WIDE, right).numel() in range(right * 2**20 - 2**22, right * 2**20 + 1)


def planned(folder):
    """A machine whose library lies in a folder, the plans that were tried for it, and the file that keeps them."""
    machine = Machine(lambda source, rows, plan: plan.columns)
    machine.path = str(folder / "key-digest.so")
    (folder / "key-digest.so").touch()
    plans = apply_plans(machine)
    (kept,) = folder.glob("*.plans.json")
    return machine, plans, kept


def test_plans_are_kept_beside_the_library_and_read_again(timed, tmp_path):
    machine, plans, kept = planned(tmp_path)
    assert plans[WIDE, 1].columns == 1
    again = Machine(None)
    assert apply_plans(again) == {}  # its file is nowhere
    again.path = machine.path
    assert apply_plans(again) == plans
    assert again.plans == machine.plans | plans
    whole = json.loads(kept.read_text())
    kept.write_text(json.dumps(whole | {"trials": [{"source": 0}]}))
    assert apply_plans(machine) == plans  # what cannot be read is tried again
    assert json.loads(kept.read_text())["trials"][0]["plan"]


@pytest.mark.parametrize(
    "damaged",
    [
        *(b"", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b"9" * 5000),
        b'{"form": %d, "trials": 3}' % tuning.FORM,
        b'{"form": %d, "trials": [{"plan": null, "tries": 1, "settled": true, "source": 1e400}]}' % tuning.FORM,
    ],
)
def test_plans_that_are_damaged_are_found_anew(timed, tmp_path, damaged):
    machine, plans, kept = planned(tmp_path)
    kept.write_bytes(damaged)
    assert apply_plans(machine) == plans
    assert json.loads(kept.read_text())["form"] == tuning.FORM


@pytest.mark.parametrize(
    "damage",
    [
        {"plan": {"columns": 3, "distance": 2**31 - 1, "floats": 4096}},
        {"plan": {"columns": 3, "distance": -1, "floats": 4096}},
        {"plan": {"columns": 2**40, "distance": 2, "floats": 4096}},
        {"plan": {"columns": 3, "distance": 2, "floats": -4096}},
        *({"tries": -1}, {"source": 17}, {"rows": -1}),
    ],
)
def test_plans_that_no_trial_finds_are_found_anew(timed, tmp_path, damage):
    machine, plans, kept = planned(tmp_path)
    whole = json.loads(kept.read_text())
    whole["trials"][0] |= damage
    kept.write_text(json.dumps(whole))
    assert apply_plans(machine) == plans
    assert not damage.items() <= json.loads(kept.read_text())["trials"][0].items()


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_plans_that_were_tried_beside_other_work_are_tried_again_in_a_few_later_processes(
    timed, tmp_path, monkeypatch, share
):
    monkeypatch.setattr(tuning, "BUSY", 0.7)
    monkeypatch.setattr(tuning, "TRIALS", ((WIDE, 1), (WIDE, 4)))
    clock = Clock(monkeypatch, share)
    machine = clock.machine(each=0.01)
    machine.path = str(tmp_path / "library.so")
    (tmp_path / "library.so").touch()
    times = [clock.now]
    for _ in range(10):
        apply_plans(machine)
        times.append(clock.now)
    assert sum(one < other for one, other in pairwise(times)) == (tuning.TRIES if share < tuning.BUSY else 1)


def nothing_tried(machine):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "seconds", None)
        machine.plans.clear()
        return apply_plans(machine)


@pytest.mark.parametrize("problem", ["a folder", PermissionError("read-only"), NotImplementedError("no flock here")])
def test_where_no_lock_can_be_made_nothing_is_tried_and_what_is_kept_is_followed(timed, tmp_path, monkeypatch, problem):
    machine, plans, kept = planned(tmp_path)
    lock = kept.with_name(f"{kept.name}.lock")
    if problem == "a folder":
        lock.unlink(missing_ok=True)
        lock.mkdir()
    else:

        def refuse(*_, **__):
            raise problem

        monkeypatch.setattr(tuning.filelock.FileLock, "acquire", refuse)
    whole = json.loads(kept.read_text())
    kept.write_text(json.dumps(whole | {"trials": whole["trials"][:2]}))  # most is left to be tried
    assert nothing_tried(machine) == machine.plans == dict([*plans.items()][:2])
    kept.unlink()
    assert nothing_tried(machine) == machine.plans == {}  # what is built in


def test_in_a_folder_that_cannot_be_written_to_nothing_is_tried(timed, tmp_path, monkeypatch):
    machine, _, kept = planned(tmp_path)
    kept.unlink()
    monkeypatch.setattr(tuning.os, "access", lambda path, mode: path != tmp_path)
    assert nothing_tried(machine) == {}


def test_the_kernels_are_loaded_from_a_cache_in_which_no_lock_can_be_made(library, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError("read-only")

    monkeypatch.setattr(tuning, "_kept", lambda _: {})
    monkeypatch.setattr(tuning.filelock.FileLock, "acquire", refuse)
    assert native._Loader().outcome().path == library.path


def test_beside_other_work_the_first_process_tries_alone(timed, tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "busy_beside", lambda _: True)
    machine, plans, kept = planned(tmp_path)
    assert plans
    whole = json.loads(kept.read_text())
    kept.write_text(json.dumps(whole | {"trials": whole["trials"][:5]}))
    assert nothing_tried(machine) == dict([*plans.items()][:5])
    monkeypatch.setattr(tuning, "busy_beside", lambda _: False)
    assert apply_plans(machine).keys() == plans.keys()


def test_whether_other_work_runs_is_seen_at_once(library, monkeypatch):
    ran = tuning.time.process_time
    for share, busy in ((0.0, True), (1e6, False)):
        monkeypatch.setattr(tuning.time, "process_time", lambda share=share: share * ran())
        before = tuning.time.perf_counter()
        assert tuning.busy_beside(library) is busy
        assert tuning.time.perf_counter() - before >= tuning.LOOK_SECONDS


def test_who_waited_for_another_process_that_tried_does_not_try_as_well(timed, tmp_path, monkeypatch):
    machine, plans, kept = planned(tmp_path)
    before = json.loads(kept.read_text())
    late = json.dumps(before | {"trials": before["trials"][:5]})
    kept.unlink()
    enter = tuning.filelock.FileLock.__enter__

    def entered_late(lock):
        kept.write_text(late)
        return enter(lock)

    monkeypatch.setattr(tuning.filelock.FileLock, "__enter__", entered_late)
    assert nothing_tried(machine) == dict([*plans.items()][:5])


def test_plans_of_another_form_are_tried_anew(timed, tmp_path):
    machine, plans, kept = planned(tmp_path)
    whole = json.loads(kept.read_text())
    entries = whole["trials"]
    entries[0]["plan"]["columns"] = 3
    of_five = {"form": 5, "tries": 1, "busy": False, "plans": [{**entries[0]}]}
    before = [whole | {"form": tuning.FORM - 1}, of_five, {"trials": entries}, entries]  # at first there was no number
    for one in before:
        kept.write_text(json.dumps(one))
        assert apply_plans(machine) == plans
        assert json.loads(kept.read_text())["form"] == tuning.FORM
    kept.write_text(json.dumps(whole))
    assert apply_plans(machine) != plans


def test_the_machine_and_the_products_are_measured(library, monkeypatch):
    monkeypatch.setattr(tuning, "MEASURED_MEGABYTES", 1)
    told = tuning.told_speeds(library)
    assert [*told] == ["memory", "multiplications", *tuning.NAMES.values()]
    assert all("1 row" in figure for figure in [*told.values()][2:])
    best = tuning.machine_speeds(library)
    assert 1e8 < best.read < 1e13
    assert 1e8 < best.multiplied < 1e13


class Told:
    """A library whose sums take a second and whose products take four, or as many as they have rows if that is more."""

    def __init__(self, folder):
        self.path = str(folder / "library.so")

    def sum(self, weights, count, threads):
        self.seconds, self.summed = 1.0, (weights, 4 * count)

    def linear(self, x, weights, bias, out, rows, outputs, inputs, kind, threads):
        self.seconds, self.multiplied = max(4.0, rows), weights


NOT_TRIED = " (built in, not tried)"
PLANNED = re.compile(r"\(tiles of (\d) columns, fetched (\d) (?:tile|line)s? ahead\)")


@pytest.fixture
def telling(tmp_path, monkeypatch):
    """Tells of such a library that follows these plans."""
    library = Told(tmp_path)
    monkeypatch.setattr(tuning, "MEASURED_MEGABYTES", 1)
    monkeypatch.setattr(tuning, "_took", lambda work, times: (work(), library.seconds)[1])
    monkeypatch.setattr(tuning, "machine_speeds", lambda library: tuning.Speeds(1e9, 1e9))

    def tell(plans):
        tuning._keep(tuning._path(library), {trial: Tried(plan, 1, settled=True) for trial, plan in plans.items()})
        whole = tuning.told_speeds(library)
        assert library.multiplied == library.summed[0]
        return whole

    return tell


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize(
    ("plans", "few", "many"),
    [
        ({}, NOT_TRIED, NOT_TRIED),
        (
            {(WIDE, 1): Plan(1, 0), (WIDE, 8): Plan(3, 2)},
            " (tiles of 1 column)",
            " (tiles of 3 columns, fetched 2 tiles ahead)",
        ),
        ({(WIDE, 1): Plan(1, 0, 0), (WIDE, 8): None}, " (tiles of 1 column)", ""),
        ({(WIDE, 1): Plan(1, 1)}, " (tiles of 1 column, fetched 1 tile ahead)", NOT_TRIED),
        (
            {(DIRECT, 1): Plan(4, 64), (DIRECT, 8): BY_PANELS},
            " (tiles of 4 columns, fetched 64 lines ahead)",
            " (by panels)",
        ),
        ({(SHORT_WIDE, 1): Plan(1, 2), (SHORT_WIDE, 8): None}, " (tiles of 1 column, fetched 2 tiles ahead)", ""),
    ],
)
def test_products_are_told_with_their_plans_and_beside_a_sum_over_the_same_weights(
    telling, monkeypatch, plans, few, many, busy
):
    monkeypatch.setattr(tuning.Watch, "busy", lambda _: busy)
    whole = telling(plans)
    assert all(line.endswith(tuning.BESIDE) == busy for line in whole.values())
    source = next((source for source, _ in plans), WIDE)
    one, eight = whole[tuning.NAMES[source]].removesuffix(tuning.BESIDE).split("; ")
    assert one.endswith(f"25% of a sum over them{few}")
    assert eight.startswith("8 rows ")
    assert eight.endswith(f"of the multiplications, 2.00 times as long as 1 row{many}")


def test_of_all_weights_that_are_tried_the_plans_for_one_row_and_for_eight_are_told(telling):
    """Panels have no product of their own: what they are tried for is told of blocks."""
    tried = sorted({source for source, _ in tuning.TRIALS} - {PANEL})
    plans = dict(zip(product(tried, (1, 8)), starmap(Plan, product((2, 3, 4), (1, 2, 3, 4))), strict=False))
    found = [line for name, line in telling(plans).items() if name in tuning.NAMES.values()]
    told = [Plan(int(one), int(ahead)) for line in found for one, ahead in PLANNED.findall(line)]
    assert len(found) == len(tried)
    assert sorted(map(attrs.astuple, told)) == sorted(map(attrs.astuple, plans.values()))


@pytest.mark.parametrize(
    ("speed", "said"),
    [(0.25, "25% of a sum"), (0.994, "99% of a sum"), (0.996, "as fast as a sum"), (1.24, "as fast as a sum")],
)
def test_nothing_is_said_to_reach_more_than_all(speed, said):
    assert tuning._beside(speed, 1.0, "a sum") == said


def test_other_work_is_noticed_by_the_time_for_which_a_process_did_not_run(monkeypatch):
    for share, busy in ((0.5, True), (0.9, False)):
        clock = Clock(monkeypatch, share)
        watch = tuning.Watch()
        clock.now += 1
        assert watch.busy() is busy
