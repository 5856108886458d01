"""`talon trace simulate`: whether drafting while the target verifies would pay, without either model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Column, Table

from talon_core.cli import options as opts
from talon_core.cli.costs import check_drafter_costs, costs_for
from talon_core.cli.lanes import check_timeline, write_timeline
from talon_core.cli.output import if_interrupted, note, print_json, stdout
from talon_core.cli.progress import progress
from talon_core.errors import written
from talon_core.plugins.parts import made_schedule
from talon_core.plugins.registry import Registry, load_registry

if TYPE_CHECKING:
    from talon_core.schedule import Schedule
    from talon_core.trace.schedules import Promises

CAPTION = (
    "@there: the drafter is on the machine of --drafter-profile; tokens/s: by the profile; waits: the target for the "
    "drafter; works: the share of the time in which each does; outside: nodes that the trace knows nothing of"
)
PICTURED = 24
"""Rounds of a picture."""


def simulate(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder of talon trace record.")],
    methods: Annotated[list[str], typer.Argument(metavar="METHOD...", help="As talon trace replay has them.")],
    profile: Annotated[
        str,
        typer.Option(
            "--profile", metavar="NAME|FILE", help="What the target's passes take, and the drafter's beside it."
        ),
    ],
    schedules: Annotated[
        list[str] | None,
        typer.Option(
            "--schedule",
            metavar="SPEC",
            help="What is prepared (talon list schedules); several times; by default cached.",
        ),
    ] = None,
    drafter_profile: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE", help="What the drafter takes on a machine, or on cores, of its own."),
    ] = None,
    transfer: Annotated[
        float, typer.Option(parser=opts.number, metavar="SECONDS", help="What a message between the two takes.")
    ] = 0.0,
    shared: Annotated[
        float,
        typer.Option(
            parser=opts.number,
            metavar="F",
            help="How many times as long the target takes while the drafter works, as on one memory.",
        ),
    ] = 1.0,
    drafter_shared: opts.DrafterShared = 1.0,
    limit: opts.Limit = None,
    picture: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Save some rounds of the best schedule as .html, .png or .svg."),
    ] = None,
    other_machine: opts.OtherMachine = False,
    as_json: opts.Json = False,
) -> None:
    """Say how fast schedules would be, from a trace and what passes take.

    The rounds are the engine's own; the target knows the text, and time passes by the profiles. Each method is decoded
    in turn as well, which the others are compared to.
    """
    if picture is not None:
        check_timeline(picture, "--picture")
    factors = (("shared", shared, 1.0), ("drafter-shared", drafter_shared, 1.0))
    for option, value, least in (("transfer", transfer, 0.0), *factors):
        if value < least:
            raise ValueError(f"--{option} is {value:g}; it must be at least {least:g}")
    if transfer and drafter_profile is None:
        raise ValueError(f"--transfer is {transfer:g} and --drafter-profile is not given; name the drafter's machine")
    if limit is not None and limit < 1:
        raise ValueError(f"--limit is {limit}; it must be at least 1")
    registry = load_registry()
    named = _schedules(schedules or ["cached"], registry)
    from talon_core.profiles.store import find_profile
    from talon_core.trace.folder import read_trace
    from talon_core.trace.machines import Machines
    from talon_core.trace.methods import parse_methods
    from talon_core.trace.schedules import cases, promises

    trace = read_trace(folder)
    here = costs_for(profile, [trace], other_machine)
    there = None if drafter_profile is None else find_profile(drafter_profile)
    if there is not None:
        check_drafter_costs(there, [trace], other_machine)
    machines = Machines(here, there, transfer, shared, drafter_shared)
    wanted = cases(parse_methods(methods, trace, registry), named, machines)
    with if_interrupted("nothing is written"), progress("simulating", "runs") as report:
        answer = promises(trace, wanted, limit, report)
    if any(one.unanswered.drafted for one in answer.found):
        note("the trace does not answer all that was asked; record with more --nodes, --depth or --width")
    if here.machine["device"] == "cpu" and shared == 1:
        note(
            f"the profile '{here.name}' is of a processor, and --shared is 1: figures are as if the drafter took no "
            "core and no memory from the target; talon profile beside measures what it takes"
        )
    if picture is not None:
        case = answer.best.case
        title = f"{case.method.name}, schedule {case.name}, simulated"
        write_timeline(picture, answer.shown, folder.resolve().name, title, PICTURED)
    if as_json:
        print_json(answer.as_dict())
    else:
        _show(answer)


def _schedules(specs: list[str], registry: Registry) -> "dict[str, Schedule | None]":
    """The schedules by what they are called.

    Raises:
        LookupError: for an unknown one.
        ValueError: for a bad option, or one that is given twice.
    """
    found: dict[str, Schedule | None] = {}
    for spec in (each.strip() for each in specs):
        if spec in found:
            raise ValueError(f"the schedule {written(spec)} is given twice; give each one once")
        found[spec] = made_schedule(registry, spec)
    return found


def _show(answer: "Promises") -> None:
    name = Column("method\n@schedule", overflow="fold", min_width=12)
    table = Table(name, caption=CAPTION, caption_justify="left", collapse_padding=True)
    for figure in ("tokens/s", "to\nsync", "MAT", "hits", "waits", "target\nworks", "drafter\nworks", "outside"):
        table.add_column(figure, justify="right")
    for one in answer.found:
        there = "" if one.case.machines.drafter is None else f"@{one.case.place}"
        table.add_row(
            f"{one.case.method.name}@{one.case.name}{there}",
            f"{one.stats.tokens_per_second:.1f}",
            f"{one.speedup:.2f}x",
            f"{one.stats.mean_accepted_tokens:.3f}",
            "-" if one.hits is None else f"{one.hits:.0%}",
            f"{one.target_waits:.0%}",
            f"{one.target_works:.0%}",
            f"{one.drafter_works:.0%}",
            str(one.unanswered.drafted),
        )
    stdout().print(table)
    typer.echo(answer.said)
