"""`talon profile`: what the passes of a round take on this machine, measured once, kept by name, and shown."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from talon_core.basics.numerals import rounded
from talon_core.basics.paths import check_folder
from talon_core.cli import options as opts
from talon_core.cli.output import if_interrupted, note, print_json, stdout
from talon_core.cli.progress import progress
from talon_core.defaults import CHECK_POLICY, EXACT_RULE, NONE
from talon_core.engine.ahead.place import check_usable, parse_place
from talon_core.errors import one_line
from talon_core.plugins.parts import Parts, built, choose_drafter, resolve
from talon_core.plugins.registry import Registry, load_registry

if TYPE_CHECKING:
    from talon_core.profiles.beside import BesidePlan
    from talon_core.profiles.contention import Contention
    from talon_core.profiles.measure import ProfilePlan
    from talon_core.profiles.profile import Profile

profile = typer.Typer(
    help="Measure what passes take on this machine, keep it by name, and show it.", no_args_is_help=True
)

MOST_NODES = 4096
"""Of a tree that is measured."""

MOST_ROWS = 1024
"""Of a drafter's layer, and candidates of each row."""

WIDTH = 120
"""Columns of the tables where stdout is no terminal."""

NOTHING = "nothing is kept"
"""What Ctrl-C leaves of a measurement."""

Name = Annotated[str, typer.Argument(metavar="NAME|FILE", help="A profile of talon profile list, or a .json file.")]


def sizes(most: int | None = None) -> Callable[[Any], tuple[int, ...]]:
    """Reads numbers with commas between them, at least 1, into rising ones."""

    def read(given: Any) -> tuple[int, ...]:
        if isinstance(given, tuple):
            return given
        found = {opts.whole_number(each.strip()) for each in str(given).split(",")}
        if min(found) < 1 or (most is not None and max(found) > most):
            raise typer.BadParameter(
                f"'{given}' must be of numbers of at least 1" + (f", at most {most}" if most else "")
            )
        return tuple(sorted(found))

    return read


@profile.command()
def measure(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the profile is called.")],
    model: opts.Model = opts.DEFAULT_MODEL,
    drafter: opts.Drafter = opts.DEFAULT_DRAFTER,
    trust_remote_code: opts.TrustRemoteCode = False,
    nodes: Annotated[
        Any, typer.Option(parser=sizes(MOST_NODES), metavar="N,...", help="Nodes of each tree, the root included.")
    ] = "1,2,4,8,16,24,32,48,64",
    contexts: Annotated[
        Any, typer.Option(parser=sizes(), metavar="N,...", help="Tokens of the texts.")
    ] = "64,256,1024",
    batches: Annotated[
        Any, typer.Option(parser=sizes(256), metavar="N,...", help="Texts that share a pass; 1 must be among them.")
    ] = "1,4",
    rows: Annotated[
        Any, typer.Option(parser=sizes(MOST_ROWS), metavar="N,...", help="Nodes of a layer that are drafted from.")
    ] = "1,2,4,8,16",
    widths: Annotated[
        Any, typer.Option(parser=sizes(MOST_ROWS), metavar="N,...", help="Candidates of each of them.")
    ] = "4,16",
    repetitions: Annotated[
        int, typer.Option(parser=opts.whole_number, metavar="N", help="Time everything this many times.")
    ] = 5,
    temperature: opts.Temperature = 0.0,
    replace: opts.Replace = False,
    as_json: opts.Json = False,
) -> None:
    """Time passes of all sizes as the engine makes them, and keep what they take. Ctrl-C leaves nothing.

    By default that takes some minutes with the default model on a CPU.
    """
    from talon_core.profiles.measure import ProfilePlan
    from talon_core.profiles.store import KEPT, check_name, profiles_folder, save_profile

    check_name(name)
    check_folder(profiles_folder(), "the folder of profiles")
    if repetitions < 1:
        raise ValueError(f"--repetitions is {repetitions}; it must be at least 1")
    opts.sampling_options(temperature, None, None, None, None)
    if 1 not in batches:
        raise ValueError(f"--batches is {','.join(map(str, batches))}; 1 must be among them")
    registry = load_registry()
    if drafter not in (opts.DEFAULT_DRAFTER, NONE):
        built(registry, "drafter", drafter)  # a typing error costs no waiting
    plan = ProfilePlan(nodes, contexts, batches, rows, widths, repetitions, temperature)
    with KEPT.making(name):
        if not replace:
            KEPT.check_free(name)
        with if_interrupted(NOTHING):
            made = _measured(name, plan, model, drafter, trust_remote_code, registry)
        replaced = KEPT.file_of(name) is not None
        file = save_profile(made)
    if replaced:
        note(f"the profile '{name}' that was there is replaced")
    if as_json:
        print_json({"file": str(file), **_answer(made)})
        return
    _show(made)
    typer.echo(str(file))


def _measured(
    name: str, wanted: "ProfilePlan", model: str, drafter: str, trust_remote_code: bool, registry: Registry
) -> "Profile":
    from talon_core.cli.session import open_session
    from talon_core.profiles.measure import Measuring

    session = open_session(model, trust_remote_code=trust_remote_code)
    spec = choose_drafter(registry, session.model) if drafter == opts.DEFAULT_DRAFTER else drafter
    named = None if spec == NONE else spec
    measuring = Measuring(wanted, session.model, session.tokenizer, named, model, registry=registry)
    with progress("measuring", "contexts and batches") as report:
        return measuring.run(name, report)


@profile.command()
def beside(
    model: opts.Model = opts.DEFAULT_MODEL,
    drafter: opts.Drafter = opts.DEFAULT_DRAFTER,
    draft_on: opts.DraftOn = opts.DEFAULT_PLACE,
    trust_remote_code: opts.TrustRemoteCode = False,
    nodes: Annotated[
        int, typer.Option(parser=opts.whole_number, metavar="N", help="Nodes of each tree, the root included.")
    ] = 8,
    rows: Annotated[
        int, typer.Option(parser=opts.whole_number, metavar="N", help="Nodes of a layer that are drafted from.")
    ] = 4,
    repetitions: Annotated[
        int, typer.Option(parser=opts.whole_number, metavar="N", help="Time everything this many times.")
    ] = 5,
    as_json: opts.Json = False,
) -> None:
    """Time the target's passes beside the drafter's, and the drafter's beside the target's, on a processor.

    It says what talon trace simulate and talon tune take as --shared and --drafter-shared.
    """
    from talon_core.profiles.beside import BesidePlan

    for option, value, most in (
        *(("nodes", nodes, MOST_NODES), ("rows", rows, MOST_ROWS)),
        ("repetitions", repetitions, None),
    ):
        if value < 1 or (most is not None and value > most):
            raise ValueError(f"--{option} is {value}; it must be at least 1{f' and at most {most}' if most else ''}")
    registry = load_registry()
    if drafter == NONE:
        raise ValueError("--drafter is 'none'; name one, as nothing else works beside the target")
    if drafter != opts.DEFAULT_DRAFTER:
        built(registry, "drafter", drafter)  # a typing error costs no waiting
    place = parse_place(draft_on)
    if place is not None and place.device != "cpu":
        raise ValueError(
            f"--draft-on is '{draft_on}', and on a GPU of its own a drafter costs the target nothing; name thread, or "
            "cpu:1 with a number of cores"
        )
    check_usable(place)
    plan = BesidePlan(nodes, rows, repetitions=repetitions)
    with if_interrupted(NOTHING):
        found = _beside(plan, model, drafter, draft_on, trust_remote_code, registry)
    if as_json:
        print_json(found.as_dict())
    else:
        typer.echo(f"{found.said}.")


def _beside(
    plan: "BesidePlan", model: str, drafter: str, draft_on: str, trust_remote_code: bool, registry: Registry
) -> "Contention":
    from talon_core.cli.session import open_session
    from talon_core.decoding.loading import target_for_model
    from talon_core.profiles.beside import drafting_beside, measured_beside

    session = open_session(model, trust_remote_code=trust_remote_code)
    parts = resolve(Parts(drafter, CHECK_POLICY, EXACT_RULE), registry)
    target, resolved = target_for_model(session.model, session.tokenizer, parts)
    assert resolved.drafter is not None
    with drafting_beside(resolved.drafter, target, draft_on, session.source) as (own, threads):
        return measured_beside(target, resolved.rule, own, threads, draft_on, plan)


@profile.command()
def show(name: Name, as_json: opts.Json = False) -> None:
    """Show what a profile says: the fit at the sizes that it was made from, and its error."""
    from talon_core.profiles.store import find_profile

    found = find_profile(name)
    if as_json:
        print_json(_answer(found))
    else:
        _show(found)


@profile.command("list")
def listing(as_json: opts.Json = False) -> None:
    """List the profiles that have a name: those that come with TALON, and yours."""
    from talon_core.profiles.store import KEPT, known_profiles, read_profile

    found = []
    for why in KEPT.nameless().values():
        note(one_line(why))
    for name, file in known_profiles().items():
        try:
            found.append((name, read_profile(file)))
        except (ValueError, OSError) as error:
            note(one_line(error))
    if as_json:
        rows = [{"name": name, **{key: one.as_dict()[key] for key in _SAID}} for name, one in found]
        print_json({"profiles": rows})
        return
    from rich.table import Table

    table = Table("name", "origin", "machine", "model", "drafter")
    for name, one in found:
        table.add_row(name, one.origin, _machine(one), str(one.model.get("name")), one.drafter or NONE)
    stdout().print(table)


_SAID = ("origin", "machine", "model", "drafter", "temperature", "made")


def _machine(found: "Profile") -> str:
    gpu = found.machine["gpu"]
    return str(gpu[0]).partition(",")[0] if gpu else f"{found.machine['cpu']}, threads: {found.machine['threads']}"


def _answer(found: "Profile") -> dict[str, Any]:
    errors = {
        kind: None if table.error is None else {"median": table.error.median, "largest": table.error.largest}
        for kind, table in found.tables.items()
    }
    return {**found.as_dict(), "errors": errors}


def _show(found: "Profile") -> None:
    from rich.table import Table

    from talon_core.profiles.profile import AXES

    console = stdout()
    if not console.is_terminal:
        console.width = WIDTH
    what = f"{found.name} ({found.origin}): {_machine(found)}, {found.machine['dtype']}"
    console.print(f"{what}; {found.model.get('name')} with {found.drafter or NONE}, temperature {found.temperature:g}")
    verify, draft = found.verify_table.fit, found.draft_table.fit
    assert verify is not None
    first, contexts, batches = verify.axes
    places = [(context, batch) for batch in batches for context in contexts]
    heads = [f"context {context}\nbatch {batch}" for context, batch in places]
    rows = [[verify.at(nodes, *place) for place in places] for nodes in first]
    tables = [_grid("verify, in ms", "nodes", heads, first, rows)]
    if draft is not None:
        sizes, widths = draft.axes
        rows = [[draft.at(size, width) for width in widths] for size in sizes]
        tables.append(_grid("draft layer, in ms", "rows", [f"width {width}" for width in widths], sizes, rows))
    for table in tables:
        console.print(table)
    for kind in [kind for kind, axes in AXES.items() if len(axes) == 1]:
        fit = found.tables[kind].fit
        if fit is not None:
            said = ", ".join(f"{rounded(1e3 * fit.at(size))} ms at {size}" for size in fit.axes[0])
            console.print(f"{kind}, by {AXES[kind][0]}: {said}")
    table = Table("fit", "points", "median error", "largest")
    for kind, own in found.tables.items():
        error = own.error
        if error is not None:
            table.add_row(kind, str(len(own.points)), f"{100 * error.median:.1f} %", f"{100 * error.largest:.1f} %")
    if table.row_count:
        console.print(table)


def _grid(title: str, by: str, heads: Sequence[str], sizes: Sequence[int], rows: Sequence[Sequence[float]]) -> Any:
    from rich.table import Table

    table = Table(by, *heads, title=title, title_justify="left")
    for column in table.columns:
        column.justify = "right"
    for size, row in zip(sizes, rows, strict=True):
        table.add_row(str(size), *(f"{1e3 * seconds:,.2f}" for seconds in row))
    return table
