"""`talon trace`: what a drafter proposes along the target's own text, recorded once, and policies tried on it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Column, Table

from talon_core.basics.numerals import counted
from talon_core.basics.paths import check_folder
from talon_core.bench.prompts import read_sets
from talon_core.cli import options as opts
from talon_core.cli.costs import costs_for, note_assumed
from talon_core.cli.output import BEST, GOES_ON, if_interrupted, note, print_json, wide_stdout
from talon_core.cli.progress import progress
from talon_core.cli.simulate import simulate
from talon_core.cli.sweep import sweep
from talon_core.plugins.parts import built, choose_drafter
from talon_core.plugins.registry import Registry, load_registry

if TYPE_CHECKING:
    from talon_core.profiles.profile import Profile
    from talon_core.trace.folder import Trace
    from talon_core.trace.record import Recorded, TracePlan
    from talon_core.trace.run import Answer

BELOW = (
    "MAT: mean accepted tokens, of a pass of the target; passes: of the target; drafts: of the drafter; nodes: of a "
    "tree in the mean; outside: questions that the trace does not answer; by the laws, in hindsight: MAT of the best "
    "trees, as large as its largest"
)

trace = typer.Typer(
    help="Record what a drafter proposes, and try policies on it without a model.", no_args_is_help=True
)

trace.command()(sweep)
trace.command()(simulate)


@trace.command()
def record(
    prompts: Annotated[
        Path, typer.Option(help="A file of prompts, *.jsonl or *.txt, or a folder of them; each file is a set.")
    ],
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where the trace goes; an unfinished one is gone on with.")
    ],
    drafter: opts.Drafter = opts.DEFAULT_DRAFTER,
    model: opts.Model = opts.DEFAULT_MODEL,
    trust_remote_code: opts.TrustRemoteCode = False,
    limit: opts.Limit = None,
    max_new_tokens: Annotated[
        int, typer.Option(parser=opts.whole_number, metavar="N", help="Most tokens of a text.")
    ] = 128,
    temperature: opts.Temperature = 0.0,
    seed: Annotated[int, typer.Option(parser=opts.whole_number, metavar="S", help="Of drawing.")] = 0,
    raw: opts.Raw = False,
    width: Annotated[
        int, typer.Option(parser=opts.whole_number, metavar="N", help="Candidates that are kept of each node.")
    ] = 32,
    depth: Annotated[
        int, typer.Option(parser=opts.whole_number, metavar="N", help="Layers that are drafted at each position.")
    ] = 12,
    nodes: Annotated[
        int, typer.Option(parser=opts.whole_number, metavar="N", help="Nodes of each layer that are drafted from.")
    ] = 64,
    least: Annotated[
        float,
        typer.Option(
            parser=opts.number, metavar="X", help="How likely each of these is, to the likeliest of its layer."
        ),
    ] = 1e-3,
    laws: Annotated[
        bool,
        typer.Option("--laws", help="Keep whole laws, the drafter's and the target's, at every node; takes gigabytes."),
    ] = False,
    methods: Annotated[
        list[str] | None,
        typer.Option("--try", metavar="METHOD", help="Replay this as well when all is recorded; several times."),
    ] = None,
    as_json: opts.Json = False,
) -> None:
    """Let the model write, and keep what a drafter proposes at every position of its text.

    Ctrl-C leaves a folder that the same command goes on with.
    """
    from talon_core.trace.methods import parse_parts
    from talon_core.trace.record import TracePlan

    opts.sampling_options(temperature, None, None, seed, max_new_tokens)
    for option, value in (("limit", limit), ("width", width), ("depth", depth), ("nodes", nodes)):
        if value is not None and value < 1:
            raise ValueError(f"--{option} is {value}; it must be at least 1")
    if not 0 <= least <= 1:
        raise ValueError(f"--least is {least}; it must be between 0 and 1")
    registry = load_registry()
    if drafter != opts.DEFAULT_DRAFTER:
        built(registry, "drafter", drafter)  # a typing error costs no waiting
    wanted = TracePlan(
        model=model,
        sets=tuple(read_sets(prompts, limit)),
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        seed=seed,
        raw=raw,
        width=width,
        depth=depth,
        nodes=nodes,
        least=least,
        laws=laws,
    )
    wanted.check()
    for method in methods or ():
        parse_parts(method, registry)  # likewise
    recorded = _record(wanted, out, drafter, trust_remote_code, methods or (), registry)
    answer = {
        "folder": str(out),
        "texts": recorded.texts,
        "positions": recorded.positions,
        "bytes": recorded.size,
        "seconds": recorded.seconds,
    }
    if as_json:
        print_json(answer)  # it stays, whatever becomes of the replay
    note(_said(recorded))
    if methods:
        tried = _replay(recorded.trace, methods, registry, None)
        if as_json:
            print_json({**answer, "replay": tried.as_dict()})
        else:
            _show(tried)
        note_assumed(recorded.trace, [one.method for one in tried.tried])
    if not as_json:
        typer.echo(str(out))


def _record(
    wanted: "TracePlan", out: Path, drafter: str, trust_remote_code: bool, methods: Sequence[str], registry: Registry
) -> "Recorded":
    from talon_core.cli.session import open_session
    from talon_core.trace.folder import Trace, find_trace
    from talon_core.trace.methods import parse_methods
    from talon_core.trace.record import Recorder, check_same
    from talon_core.trace.replay import Replay

    there = find_trace(out)  # a folder of something else is refused before a model is loaded
    if there is not None:
        check_same(there, {"settings": wanted.settings()})
    check_folder(out, "--out")
    session = open_session(wanted.model, trust_remote_code=trust_remote_code)
    spec = choose_drafter(registry, session.model) if drafter == opts.DEFAULT_DRAFTER else drafter
    own = built(registry, "drafter", spec)
    recorder = Recorder(wanted, session.model, session.tokenizer, own, spec, registry)
    planned = Trace(out, recorder.manifest())
    for method in parse_methods(methods, planned, registry):
        Replay(planned).check(method)  # before hours of recording
    vocab_size = int(planned["target"]["vocab_size"])
    if wanted.width > vocab_size:
        note(f"--width is {wanted.width}; no more than the vocabulary's {vocab_size} tokens are kept of each node")
    note(f"the trace of '{spec}' goes to '{out}'")
    with if_interrupted(GOES_ON.format(out)), progress("recording", "texts") as report:
        return recorder.run(out, report)


def _said(recorded: "Recorded") -> str:
    if not recorded.texts:
        return "everything was there already"
    per = recorded.size / max(1, recorded.positions)
    speed = recorded.positions / recorded.seconds
    recorded_texts, positions = counted(recorded.texts, "text"), counted(recorded.positions, "position")
    return (
        f"{recorded_texts}, {positions} in {recorded.seconds:.0f} s ({speed:.1f} a second), "
        f"{recorded.size / 1e6:.1f} MB ({per / 1e3:.1f} kB a position)"
    )


@trace.command()
def replay(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder of talon trace record.")],
    methods: Annotated[
        list[str],
        typer.Argument(
            metavar="METHOD...",
            help="Policies, as talon:budget=12, with a rule behind a slash; ngram/talon takes a drafter of texts.",
        ),
    ],
    jobs: opts.Jobs = None,
    profile: opts.Profile = None,
    other_machine: opts.OtherMachine = False,
    time_all: opts.TimeAll = False,
    untimed: opts.Untimed = False,
    as_json: opts.Json = False,
) -> None:
    """Try policies on a trace: the rounds that decoding would have had, without either model.

    With a profile of talon profile it is predicted how many tokens a second that would be. What a policy itself takes
    is a part of it; where it can be tried on many texts at once, that is measured on some of them.
    """
    opts.check_other_machine(other_machine, profile)
    opts.check_time_all(time_all, profile, untimed)
    opts.check_jobs(jobs)
    from talon_core.trace.folder import read_trace

    found = read_trace(folder)
    costs = None if profile is None else costs_for(profile, [found], other_machine)
    answer = _replay(found, methods, load_registry(), jobs, costs, time_all, timed=not untimed)
    if as_json:
        print_json(answer.as_dict())
    else:
        _show(answer)
    if costs is None:
        note_assumed(found, [one.method for one in answer.tried])


def _replay(
    trace: "Trace",
    methods: Sequence[str],
    registry: Registry,
    jobs: int | None,
    costs: "Profile | None" = None,
    time_all: bool = False,
    timed: bool = True,
) -> "Answer":
    """Try methods, and say on stderr what the trace lacks."""
    from talon_core.basics.memory import keep_freed_memory
    from talon_core.trace.methods import parse_methods
    from talon_core.trace.run import replayed

    chosen = parse_methods(methods, trace, registry)
    keep_freed_memory()
    with if_interrupted("the trace is as it was"), progress("replaying", "texts") as report:
        answer = replayed(trace, chosen, jobs, report, costs, time_all, timed)
    if answer.missing:
        left = counted(answer.missing, "text")
        note(f"left out, as the trace does not have them yet: {left}; talon trace record goes on with them")
    outside = [one["method"] for one in answer.as_dict()["methods"] if one["outside"]]
    if outside:
        named = ", ".join(outside)
        note(f"the trace does not answer all that was asked by {named}; record with more --nodes, --depth or --width")
    return answer


def _show(answer: "Answer") -> None:
    console, below = wide_stdout(), BELOW
    predicted = None not in [one.totals.predicted_tokens_per_second for one in answer.tried]
    narrow = console.width < (136 if predicted else 110)
    table = Table(Column("method", overflow="fold", min_width=8 if narrow else 16), padding=0 if narrow else (0, 1))
    counts = () if predicted and console.width < 90 else ("passes", "drafts")  # there is no room for them
    for name in ("MAT", *counts, "nodes", "outside", "by the laws", "in hindsight"):
        table.add_column(name, justify="right")
    timed = predicted and any(one.totals.timed_texts for one in answer.tried)
    if predicted:
        told = "; timed: texts on which the policy's time was taken" if timed else ""
        below = f"{BELOW}; tokens/s: predicted by the profile; {BEST}{told}"
        for name in ("tokens/s", "best by laws", "best", *(["timed"] if timed else [])):
            table.add_column(name, justify="right")
    for one in answer.tried:
        totals, best = one.totals, one.oracle
        all_speeds = totals.predicted_tokens_per_second, best.by_the_laws_tokens_per_second, best.tokens_per_second
        speeds = [one for one in all_speeds if one is not None]
        table.add_row(
            one.method.name,
            f"{totals.mean_accepted_tokens:.3f}",
            *([str(totals.target_passes), str(totals.draft_passes)] if counts else []),
            f"{totals.nodes_verified / totals.target_passes:.1f}",
            str(totals.outside),
            f"{best.by_the_laws:.3f}",
            f"{best.in_hindsight:.3f}",
            *(f"{speed:.1f}" for speed in speeds),
            *([str(totals.timed_texts)] if timed else []),
        )
    console.print(table)
    console.print(below, style="dim")
