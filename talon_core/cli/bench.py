"""`talon bench`: methods measured against each other on prompt sets."""

from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from talon_core.basics.paths import check_file, check_folder, write_whole
from talon_core.bench.between import side_by_side
from talon_core.bench.compare import compare as compare_results
from talon_core.bench.forms import ENDINGS, FORMS, answer, one_or_all
from talon_core.bench.methods import PLAIN, parse_methods
from talon_core.bench.peers import check_peers
from talon_core.bench.prompts import read_sets
from talon_core.bench.results import check_not_of_run, check_settings, read_manifest, read_results
from talon_core.bench.schedule import Plan
from talon_core.bench.tables import tables
from talon_core.cli import options as opts
from talon_core.cli.output import GOES_ON, if_interrupted, note, print_json, wide_stdout
from talon_core.cli.progress import progress
from talon_core.defaults import AUTO
from talon_core.rule import CLAIMED, MEASURED

if TYPE_CHECKING:
    from talon_core.bench.between import SideBySide
    from talon_core.bench.compare import Comparison
    from talon_core.bench.results import Results

TABLE = "table"
"""What is printed where no other form is asked for."""

bench = typer.Typer(help="Measure methods against each other on prompt sets, and compare.", no_args_is_help=False)


@bench.callback(invoke_without_command=True)
def bench_alone(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


@bench.command()
def run(
    specs: Annotated[
        list[str],
        typer.Argument(
            metavar="SPEC",
            help="Methods as drafter/policy/rule (' / ' where an option holds a slash), with a schedule "
            "drafter/policy/rule@schedule, and behind that @place; parts left out take the defaults. none is plain "
            "decoding, which is always among them; generate is transformers' own loop.",
        ),
    ],
    prompts: Annotated[
        Path, typer.Option("--prompts", metavar="PATH", help="A .jsonl or .txt file, or a folder; each file is a set.")
    ],
    peers: Annotated[
        list[str] | None,
        typer.Option(
            "--peer", metavar="SPEC", help="What else decodes the prompts in turn, of talon list peers; several times."
        ),
    ] = None,
    model: opts.Model = opts.DEFAULT_MODEL,
    trust_remote_code: opts.TrustRemoteCode = False,
    lossy: opts.Lossy = False,
    draft_on: opts.DraftOn = opts.DEFAULT_PLACE,
    attention: opts.Attention = None,
    limit: opts.Limit = None,
    max_new_tokens: Annotated[
        int, typer.Option(parser=opts.whole_number, metavar="N", help="Most tokens of an answer.")
    ] = 128,
    temperature: opts.Temperature = 0.0,
    seed: Annotated[
        int, typer.Option(parser=opts.whole_number, metavar="S", help="Of drawing; each repetition adds 1.")
    ] = 0,
    repetitions: Annotated[
        int, typer.Option(parser=opts.whole_number, metavar="N", help="Measure everything this many times.")
    ] = 1,
    warmup: Annotated[
        int, typer.Option(parser=opts.whole_number, metavar="N", help="Decode one prompt this many times before.")
    ] = 3,
    turns: Annotated[str, typer.Option(help="first or all: of each conversation.")] = "first",
    raw: opts.Raw = False,
    rounds: Annotated[
        bool, typer.Option("--rounds", help="Keep every round with its tree, in rounds.jsonl beside the results.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where the results go; a run that is there already is gone on with."),
    ] = None,
    as_json: opts.Json = False,
) -> None:
    """Decode every prompt with every method in turn, and write a line of results for each.

    Ctrl-C leaves a folder that the same command with --out goes on with.
    """
    opts.sampling_options(temperature, None, None, seed, max_new_tokens)
    for option, value, least in (("limit", limit, 1), ("repetitions", repetitions, 1), ("warmup", warmup, 0)):
        if value is not None and value < least:
            raise ValueError(f"--{option} is {value}; it must be at least {least}")
    if turns not in ("first", "all"):
        raise ValueError(f"--turns is '{turns}'; it must be first or all")
    plan = Plan(
        model=model,
        methods=tuple(parse_methods(specs, attention, lossy, peers or (), draft_on)),
        sets=tuple(read_sets(prompts, limit)),
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        seed=seed,
        repetitions=repetitions,
        all_turns=turns == "all",
        raw=raw,
        warmup=warmup,
        rounds=rounds,
    )
    check_peers(plan.peers, temperature)
    folder = out if out is not None else Path(f"bench-{datetime.now():%Y%m%d-%H%M%S}")
    manifest = read_manifest(folder)
    if manifest is not None:
        check_settings(folder, manifest, "settings", plan.settings())
    check_folder(folder, "--out")
    for method in plan.methods:
        method.check_place()
    results = measure(plan, folder, trust_remote_code)
    comparison = compare_results(results)
    if as_json:
        differing = {name: len(summary.differences) for name, summary in comparison.all.items()}
        units = len(plan.units())
        lines = len(results.measurements)
        answer = {"folder": str(folder), "units": units, "lines": lines, "differing": differing}
        answer["lossy"] = [method.name for method in plan.methods if not method.lossless]
        answer["peers"] = [name for name, _ in plan.peers]
        answer["claimed"] = [method.name for method in plan.methods if method.lossless == CLAIMED]
        print_json(answer)
    else:
        _show(comparison)
        typer.echo(str(folder))


def measure(plan: Plan, folder: Path, trust_remote_code: bool = False) -> "Results":
    """Load the model, and measure what is not in the folder yet, with its progress on stderr."""
    from talon_core.bench.run import Bench
    from talon_core.cli.session import open_session

    session = open_session(plan.model, trust_remote_code=trust_remote_code)
    with closing(Bench(plan, session.model, session.tokenizer, trust_remote_code)) as bench:
        note(f"the results go to '{folder}'")
        if bench.chosen is not None:
            note(f"'{AUTO}' is the drafter '{bench.chosen}' with this model")
        before = read_results(folder) if read_manifest(folder) is not None else None
        if before is not None:
            cut = f", and {before.unfinished} unfinished at the end are left out" if before.unfinished else ""
            note(f"{len(before.measurements)} measurements are there already{cut}")
        with if_interrupted(GOES_ON.format(folder)), progress("measuring", "prompts") as report:
            return bench.run(folder, report)


@bench.command()
def compare(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER...", help="Folders of talon bench run; a run need not be finished. Several: side by side."
        ),
    ],
    baseline: Annotated[str, typer.Option(metavar="SPEC", help="The method that ratios are to.")] = PLAIN,
    form: Annotated[
        str | None, typer.Option("--format", help="What is printed: table, markdown, latex or csv.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a file too: .json (what --json prints), .md, .tex or .csv."),
    ] = None,
    as_json: opts.Json = False,
) -> None:
    """Compare the methods of a run. Exit status 1 if greedy outputs differ where rounding cannot be the reason.

    That is float32: there, every method must give plain decoding's tokens, unless it is lossy or a peer.
    """
    form = _form(form, as_json)
    if out is not None:
        check_file(out, "--out")
        for folder in folders:
            check_not_of_run(out, "--out", folder)
    if out is not None and out.suffix.lower() not in ENDINGS:
        raise ValueError(f"--out is '{out}'; its name must end in {', '.join(ENDINGS)}, which says what is written")
    results = [read_results(folder) for folder in folders]
    runs = side_by_side(results, baseline.strip())
    written = {form} | ({ENDINGS[out.suffix.lower()]} if out is not None else set())
    texts = {name: FORMS[name](runs, results) for name in written if name != TABLE}
    if out is not None:
        write_whole(out, texts[ENDINGS[out.suffix.lower()]])
    for each in results:
        if each.unfinished:
            note(f"{each.unfinished} unfinished lines at the end of the results in '{each.folder}' are left out")
    if as_json:
        print_json(answer(runs, results))
    elif form == TABLE:
        _show(one_or_all(runs))
    else:
        typer.echo(texts[form], nl=False)
    wrong = (
        each.manifest["environment"].get("dtype") == "float32"
        and any(summary.differences and summary.lossless not in (False, MEASURED) for summary in run.all.values())
        for each, run in zip(results, runs.runs.values(), strict=True)
    )
    raise typer.Exit(int(any(wrong)))


def _form(form: str | None, as_json: bool) -> str:
    """What stdout gets.

    Raises:
        ValueError: for a form that there is not, or for two.
    """
    if as_json and form is not None:
        raise ValueError(f"--format is {form} and --json asks for JSON; give one of them")
    if form is not None and form not in (known := [TABLE, *(each for each in FORMS if each != "json")]):
        raise ValueError(f"--format is '{form}'; it must be one of {', '.join(known)}")
    return form or TABLE


def _show(compared: "Comparison | SideBySide") -> None:
    console = wide_stdout()
    for table in tables(compared):
        console.print(table)
