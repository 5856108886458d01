"""`talon trace sweep`: many methods on many traces, in parallel, each worked out once and kept."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from talon_core.basics.numerals import counted
from talon_core.basics.paths import check_folder
from talon_core.cli import options as opts
from talon_core.cli.costs import costs_for, note_assumed
from talon_core.cli.output import BEST, GOES_ON, if_interrupted, note, print_json, wide_stdout
from talon_core.cli.progress import progress

if TYPE_CHECKING:
    from talon_core.trace.sweep import Summary

CAPTION = "tokens per target pass (MAT); oracle: of the drafted tokens that could be accepted with as many nodes"


def sweep(
    methods: Annotated[
        list[str],
        typer.Argument(
            metavar="METHOD...",
            help="As talon trace replay has them; 'talon:budget={16,32},mu={0.01,0.1}' stands for four.",
        ),
    ],
    traces: Annotated[
        list[Path], typer.Option("--trace", metavar="FOLDER", help="A folder of talon trace record; several times.")
    ],
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where the lines go; what is there already is not worked out again.")
    ],
    jobs: opts.Jobs = None,
    ray: Annotated[
        bool,
        typer.Option(
            "--ray", help="Work on a cluster of Ray: that of $RAY_ADDRESS, or this machine's, or one that is started."
        ),
    ] = False,
    profile: opts.Profile = None,
    other_machine: opts.OtherMachine = False,
    time_all: opts.TimeAll = False,
    untimed: opts.Untimed = False,
    as_json: opts.Json = False,
) -> None:
    """Try many methods on many traces, in parallel, and keep what comes of each text.

    Ctrl-C leaves a folder that the same command goes on with, and that other methods and traces can be added to.
    """
    from talon_core.trace.folder import read_trace
    from talon_core.trace.on_ray import on_ray
    from talon_core.trace.processes import in_processes
    from talon_core.trace.sweep import Sweep, summaries

    opts.check_other_machine(other_machine, profile)
    opts.check_time_all(time_all, profile, untimed)
    count = opts.processes(jobs)
    check_folder(out, "--out")
    if jobs is not None and ray:
        raise ValueError(f"--jobs is {jobs} and --ray is given; a cluster says itself how many processes it has")
    costs = told = None
    if profile is not None:
        costs = costs_for(profile, [read_trace(folder) for folder in traces], other_machine)
        told = costs.fingerprint
    wanted = Sweep(traces, methods, costs, told, time_all, timed=not untimed)
    executor = on_ray() if ray else in_processes(count)
    with if_interrupted(GOES_ON.format(out)), progress("sweeping", "lines") as report:
        lines = wanted.run(out, executor, report)
    found = summaries(lines)
    for trace in wanted.traces:
        missing = trace.planned_texts - len(trace.texts())
        if missing:
            note(f"left out, as the trace in '{trace.folder}' does not have them yet: {counted(missing, 'text')}")
    outside = {one.method: None for one in found if one.totals.outside}
    if outside:
        named = ", ".join(outside)
        note(f"a trace does not answer all that was asked by {named}; record with more --nodes, --depth or --width")
    if costs is None:
        first = wanted.traces[0]
        note_assumed(first, wanted.made[first.fingerprint], "sweep")
    names = {trace.fingerprint: str(trace.folder) for trace in wanted.traces}
    if as_json:
        rows = [{**one.as_dict(), "folder": names[one.trace]} for one in found]
        print_json({"folder": str(out), "lines": len(lines), "rows": rows})
        return
    for trace in wanted.traces:
        of_trace = [one for one in found if one.trace == trace.fingerprint]
        _show(f"{trace.folder}: {trace['drafter']['spec']}", of_trace)
    typer.echo(str(out))


def _show(title: str, found: Sequence["Summary"]) -> None:
    """A row for each method, a column for each set; where these have no room, they are a table of their own."""
    sets = list(dict.fromkeys(one.set for one in found if one.set is not None))
    console, own = wide_stdout(), sets if len(sets) > 1 else []
    tables = [_close(_table(title, found, own), console)]
    if own and not _fits(tables[0], console):
        tables = [_close(each, console) for each in (_of_sets(title, found, own), _table("all sets", found, []))]
    for each in tables:
        console.print(each)


def _close(table: Table, console: Console) -> Table:
    """A table whose columns stand close where it has no room otherwise."""
    if not _fits(table, console):
        table.padding = 0
    return table


def _fits(table: Table, console: Console) -> bool:
    """Whether a table has room without breaking words."""
    return console.measure(table, options=console.options.update_width(1000)).minimum <= console.width


def _of_sets(title: str, found: Sequence["Summary"], sets: Sequence[str]) -> Table:
    """MAT by method and set."""
    table = Table(_method(), title=title, title_justify="left")
    for name in sets:
        table.add_column(name, justify="right", min_width=len(name))
    for one in _of_all(found):
        table.add_row(one.method, *_mats(found, one.method, sets))
    return table


def _table(title: str, found: Sequence["Summary"], sets: Sequence[str]) -> Table:
    """What became of each method, with MAT by set."""
    table = Table(_method(), title=title, title_justify="left", caption=CAPTION, caption_justify="left")
    for name in ("MAT", *sets, "nodes", "oracle"):
        table.add_column(name, justify="right", min_width=len(name))
    predicted = all(one.totals.predicted_seconds is not None for one in found)
    timed = predicted and any(one.totals.timed_texts for one in found)
    if predicted:
        for name in ("tokens/s", "best by laws", "best", *(["timed"] if timed else [])):
            table.add_column(name, justify="right", min_width=len(name))
        told = "; timed: texts on which the policy's own time was taken" if timed else ""
        table.caption = f"{CAPTION}; tokens/s: predicted by the profile; {BEST}{told}"
    for one in _of_all(found):
        totals, own = one.totals, one.totals.predicted_tokens_per_second
        table.add_row(
            one.method,
            f"{totals.mean_accepted_tokens:.3f}",
            *_mats(found, one.method, sets),
            f"{totals.nodes_verified / totals.target_passes:.1f}",
            "" if one.share is None else f"{100 * one.share:.0f} %",
            *([*map(_speed, (own, one.by_the_laws_tokens_per_second, one.tokens_per_second))] if predicted else []),
            *([str(totals.timed_texts)] if timed else []),
        )
    return table


def _method() -> Column:
    return Column("method", overflow="fold", min_width=16)


def _of_all(found: Sequence["Summary"]) -> list["Summary"]:
    """What became of each method on all sets."""
    return [one for one in found if one.set is None]


def _mats(found: Sequence["Summary"], method: str, sets: Sequence[str]) -> list[str]:
    by_set = {one.set: one.totals.mean_accepted_tokens for one in found if one.method == method}
    return [f"{by_set[name]:.3f}" for name in sets]


def _speed(speed: float | None) -> str:
    return "" if speed is None else f"{speed:.1f}"
