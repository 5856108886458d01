"""`talon tune`: the options of a policy, searched on traces under a profile, and kept as a preset."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Column, Table

from talon_core.basics.kept import is_file, is_name
from talon_core.basics.numerals import counted
from talon_core.basics.paths import check_file, check_folder
from talon_core.cli import options as opts
from talon_core.cli.costs import check_drafter_costs, costs_for
from talon_core.cli.output import if_interrupted, note, print_json, wide_stdout
from talon_core.cli.progress import progress
from talon_core.defaults import NONE
from talon_core.engine.ahead.place import check_usable, parse_place
from talon_core.plugins.presets import KEPT, as_text, check_kept, check_meaning, check_preset_name, save_preset
from talon_core.plugins.registry import Registry, load_registry

if TYPE_CHECKING:
    from talon_core.profiles.profile import Profile
    from talon_core.trace.folder import Trace
    from talon_core.tune.run import Tuned, TunePlan
    from talon_core.tune.schedules import Scheduled, SchedulePlan

MUCH = 0.05
"""Share of the time that a policy may take itself before somebody is told."""


def tune(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="FOLDER... POLICY",
            help="Folders of talon trace record, then the policy; what is written in its spec is fixed.",
        ),
    ],
    profile: opts.Profile = None,
    other_machine: opts.OtherMachine = False,
    rule: opts.Rule = opts.DEFAULT_RULE,
    search: Annotated[
        list[str] | None,
        typer.Option(
            "--search",
            metavar="OPTION=VALUES",
            help="Search this, too, or otherwise: OPTION=LOW..HIGH, with :log behind it, or OPTION=a|b; several times.",
        ),
    ] = None,
    trials: Annotated[int, typer.Option(parser=opts.whole_number, metavar="N", help="What each search tries.")] = 100,
    folds: Annotated[
        int,
        typer.Option(parser=opts.whole_number, metavar="K", help="Parts of the prompts, each left out of one search."),
    ] = 5,
    seed: Annotated[
        int, typer.Option(parser=opts.whole_number, metavar="S", help="Of the folds and the searches.")
    ] = 0,
    schedules: Annotated[
        list[str] | None,
        typer.Option(
            "--schedule",
            metavar="SPEC",
            help="Simulate what is found with this schedule (talon list schedules), too, and keep what is fastest; "
            "several times.",
        ),
    ] = None,
    draft_on: opts.DraftOn = opts.DEFAULT_PLACE,
    drafter_profile: Annotated[
        str | None, typer.Option(metavar="NAME|FILE", help="What the drafter takes where the schedules draft.")
    ] = None,
    transfer: Annotated[
        float, typer.Option(parser=opts.number, metavar="SECONDS", help="What a message to it takes, and one back.")
    ] = 0.0,
    shared: Annotated[
        Any,
        typer.Option(
            parser=opts.number, metavar="F", help="How many times as long the target takes while the drafter works."
        ),
    ] = None,
    drafter_shared: opts.DrafterShared = 1.0,
    against: Annotated[str | None, typer.Option(metavar="POLICY", help="Compare with this policy as well.")] = None,
    save: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Keep it as a preset; a NAME is what --policy takes.",
        ),
    ] = None,
    replace: opts.Replace = False,
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw what was tried; the file ends in .png or .svg.")
    ] = None,
    jobs: opts.Jobs = None,
    as_json: opts.Json = False,
) -> None:
    """Search the options that make a policy fastest, as traces and a profile predict it, and say what that is worth.

    The gain is on prompts left out: a part of them at a time, with what a search on the others has found. The same
    traces, profile and seed give the same preset. Ctrl-C leaves nothing.
    """
    from talon_core.trace.folder import check_not_of_trace
    from talon_core.tune.picture import check_picture, draw
    from talon_core.tune.run import TunePlan, tuned
    from talon_core.tune.search import needs_optuna
    from talon_core.tune.space import space_of

    plan = TunePlan(trials, folds, seed, rule, against, opts.processes(jobs))
    plan.check()
    *folders, policy = what
    if not folders:
        raise ValueError(f"'{policy}' is all that is given; give a folder of talon trace record and then a policy")
    if save is not None and is_file(save):
        for folder in folders:
            check_not_of_trace(Path(save), "--save", Path(folder))
    registry = load_registry()
    if replace and (save is None or is_file(save)):
        raise ValueError("--replace is about a name, and none is given; name it with --save")
    name = None if save is None else _name_of(save, registry, replace)
    space = space_of(registry, policy, search or ())
    if name is not None:
        check_kept(space.base)
    needs_optuna()
    if picture is not None:
        check_picture(picture)
    tried = _schedules(schedules or (), draft_on, drafter_profile, transfer, shared, drafter_shared)
    if tried is not None and not other_machine:
        check_usable(parse_place(draft_on))
    traces = _traces(folders)
    costs = _costs(profile, traces, other_machine)
    if tried is not None:
        if tried.drafter is not None:
            check_drafter_costs(tried.drafter, traces, other_machine)
        tried.check(costs, traces, space.base, rule, registry)
    with _making(save, replace):
        with if_interrupted("nothing is saved"):
            with progress("searching", "trials") as report:
                found = tuned(traces, space, costs, registry, plan, report)
            ahead = None
            if tried is not None:
                from talon_core.tune.schedules import scheduled

                with progress("simulating schedules", "traces") as report:
                    ahead = scheduled(traces, found.best.spec, rule, costs, tried, registry, report)
        _notes(found)
        if ahead is not None and ahead.outside:
            _note_outside(ahead.outside, "with these schedules")
        file = None
        try:
            if save is not None and name is not None:
                command = _command(
                    folders, policy, str(profile), other_machine, plan, search or (), save, tried, drafter_profile
                )
                file = _saved(save, name, found, traces, costs, plan, command, registry, ahead)
            if picture is not None:
                draw(found, picture)
        except (OSError, ValueError):
            note(f"what was found is {found.best.spec}")  # a long search is not lost with a full disk
            raise
    if as_json:
        kept = {"name": name, "file": None if file is None else str(file)}
        told = {"schedule": None if ahead is None else ahead.as_dict()}
        print_json({**found.as_dict(), **told, **kept, "picture": None if picture is None else str(picture)})
        return
    _show(found)
    if ahead is not None:
        typer.echo(f"{ahead.said}.")
    typer.echo(found.best.spec if file is None else str(file))


@contextmanager
def _making(save: str | None, replace: bool) -> Iterator[None]:
    """While entered, nobody else makes a preset of that name; a file is its giver's own."""
    if save is None or is_file(save):
        yield
        return
    with KEPT.making(save):
        if not replace:  # it may have been made since the name was looked at
            KEPT.check_free(save)
        yield


def _name_of(save: str, registry: Registry, replace: bool) -> str:
    """What a preset is to be called; refused before anything is searched."""
    if not is_file(save):
        check_preset_name(save, registry)
        if not replace:
            KEPT.check_free(save)
        check_folder(KEPT.folder(), "the folder of presets")
        return save
    file = Path(save)
    if not save.endswith(".json") or not is_name(file.stem):
        raise ValueError(f"--save is '{save}'; a preset's file is called as the preset is, with .json behind it")
    check_file(file, "--save")
    check_meaning(file.stem, registry)
    return file.stem


def _traces(folders: Sequence[str]) -> list["Trace"]:
    """The traces, which must be of one target and one drafter."""
    from talon_core.trace.folder import read_trace

    traces = [read_trace(Path(folder)) for folder in folders]
    first = traces[0]
    for number, trace in enumerate(traces):
        if any(trace.fingerprint == other.fingerprint for other in traces[:number]):
            raise ValueError(f"the trace in '{trace.folder}' is given twice; give each one once")
        for part, key, is_what in (("target", "weights_sha256", "model"), ("drafter", "sha256", "drafter")):
            if trace[part][key] != first[part][key]:
                raise ValueError(
                    f"the traces in '{first.folder}' and '{trace.folder}' are of another {is_what} each; tune on one "
                    "of them at a time"
                )
    return traces


def _costs(profile: str | None, traces: Sequence["Trace"], other_machine: bool) -> "Profile":
    if profile is None:
        raise ValueError(
            "there is no profile: what a node and a layer cost decides how many of them pay; name one with --profile "
            "(talon profile list), or make one (talon profile measure)"
        )
    costs = costs_for(profile, traces, other_machine)
    if not costs.draft_table.points:
        raise ValueError(
            f"the profile '{costs.name}' does not say what the drafter takes; make one with it "
            f"(talon profile measure --drafter {traces[0]['drafter']['spec']})"
        )
    return costs


def _schedules(
    specs: Sequence[str],
    draft_on: str,
    drafter_profile: str | None,
    transfer: float,
    shared: float | None,
    drafter_shared: float,
) -> "SchedulePlan | None":
    """What is simulated; None where no schedule is named.

    Raises:
        LookupError: if there is no such profile.
        ValueError: if something is said of schedules, and none is named, or one twice; or that is no profile.
    """
    from talon_core.profiles.store import find_profile

    written = [spec.strip() for spec in specs]
    for spec in written:
        if written.count(spec) > 1:
            raise ValueError(f"the schedule '{spec}' is given twice; give each one once")
    about = {"draft-on": draft_on != opts.DEFAULT_PLACE, "drafter-profile": drafter_profile is not None}
    about |= {"transfer": bool(transfer), "shared": shared is not None, "drafter-shared": drafter_shared != 1.0}
    for option, given in about.items():
        if given and not written:
            raise ValueError(f"--{option} is about schedules, and none is named; name one with --schedule")
    if not written:
        return None
    from talon_core.tune.schedules import SchedulePlan  # which loads torch

    drafter = None if drafter_profile is None else find_profile(drafter_profile)
    return SchedulePlan(tuple(written), draft_on, drafter, transfer, shared, drafter_shared)


def _command(
    folders: Sequence[str],
    policy: str,
    profile: str,
    other_machine: bool,
    plan: "TunePlan",
    searches: Sequence[str],
    save: str,
    tried: "SchedulePlan | None",
    drafter_profile: str | None,
) -> str:
    """The command that finds this again."""
    words = ["talon", "tune", *folders, policy, "--profile", profile]
    words += ["--other-machine"] if other_machine else []
    words += ["--rule", plan.rule] if plan.rule != opts.DEFAULT_RULE else []
    words += [word for one in searches for word in ("--search", one)]
    words += ["--trials", str(plan.trials), "--folds", str(plan.folds), "--seed", str(plan.seed)]
    words += ["--against", plan.against] if plan.against is not None else []
    if tried is not None:
        words += [word for spec in tried.schedules for word in ("--schedule", spec)]
        words += ["--draft-on", tried.draft_on] if tried.draft_on != opts.DEFAULT_PLACE else []
        words += ["--drafter-profile", drafter_profile] if drafter_profile is not None else []
        words += ["--transfer", f"{tried.transfer:g}"] if tried.transfer else []
        words += ["--shared", f"{tried.shared:g}"] if tried.shared is not None else []
        words += ["--drafter-shared", f"{tried.drafter_shared:g}"] if tried.drafter_shared != 1.0 else []
    return shlex.join([*words, "--save", save])


def _saved(
    save: str,
    name: str,
    found: "Tuned",
    traces: Sequence["Trace"],
    costs: "Profile",
    plan: "TunePlan",
    command: str,
    registry: Registry,
    ahead: "Scheduled | None",
) -> Path:
    from talon_core.basics.paths import write_whole
    from talon_core.trace.processes import apart
    from talon_core.tune.preset import preset_of

    preset = preset_of(name, found, traces, costs, plan, {"command": command, **apart(_session)}, ahead)
    if not is_file(save):
        return save_preset(preset, registry)
    write_whole(Path(save), as_text(preset))
    return Path(save)


def _session() -> dict[str, Any]:
    import talon_core
    from talon_core.bench.environment import describe_session

    return {**describe_session(), "talon": talon_core.__version__}


def _notes(found: "Tuned") -> None:
    """What somebody should know who reads the figures."""
    if found.missing:
        left = counted(found.missing, "text")
        note(f"left out, as the traces do not have them yet: {left}; talon trace record goes on with them")
    if found.left_out:
        note(
            f"{found.left_out} of {found.tried} trials asked what the traces do not answer, and do not count; record "
            "with more --nodes, --depth or --width to try them"
        )
    if found.refused:
        note(f"{found.refused} of {found.tried} trials were of options that the policy refuses together")
    if found.outside:
        _note_outside(found.outside, "on these texts")
    gain = found.gains[found.space.base].left_out
    if gain.low is None or gain.low <= 1:
        note(f"that it is faster than '{found.space.base}' is not shown on prompts left out; record more of them")
    plain = found.gains[NONE].left_out
    if plain.high is not None and plain.high < 1:
        note(
            f"by the profile it is slower than plain decoding on prompts left out ({plain.median:.3f} times as fast); "
            "for prompts like these take --policy none"
        )
    elif plain.low is None or plain.low <= 1:
        note("that it is faster than plain decoding is not shown on prompts left out; record more of them")
    share = found.own_time[found.best.spec]
    if share > MUCH:
        note(f"the policy itself takes {100 * share:.0f} % of the time here, which is left out of all figures")


def _note_outside(counts: Mapping[str, int], where: str) -> None:
    named = ", ".join(f"{spec} ({count})" for spec, count in counts.items())
    note(f"{where} the traces do not answer all that was asked, and figures are estimates: {named}")


def _show(found: "Tuned") -> None:
    console = wide_stdout()
    table = Table("option", "searched", "without", "found")
    for one in found.dimensions:
        table.add_row(one.option, str(one.values), one.default, found.best.options[one.option])
    console.print(table)
    told = "how many times as fast, predicted; left out: on prompts that the search has not seen"
    gains = Table(Column("than", overflow="fold"), caption=told, caption_justify="left")
    for title in ("left out", "95 %", "on the prompts searched", "tokens/s"):
        gains.add_column(title, justify="right")
    for other, gain in found.gains.items():
        low, high = gain.left_out.low, gain.left_out.high
        between = "" if low is None or high is None else f"{low:.3f} to {high:.3f}"
        speed = f"{found.tokens_per_second[other]:.1f}"
        gains.add_row(other, f"{gain.left_out.median:.3f}", between, f"{gain.searched:.3f}", speed)
    gains.add_row(found.best.spec, "", "", "", f"{found.tokens_per_second[found.best.spec]:.1f}")
    console.print(gains)
