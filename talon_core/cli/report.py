"""`talon bench report`: what a run found, as one page, and as pictures."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from talon_core.basics.paths import check_file, check_folder, write_whole
from talon_core.bench.methods import PLAIN
from talon_core.cli import options as opts
from talon_core.cli.output import note, print_json

if TYPE_CHECKING:
    from talon_core.bench.results import Results
    from talon_core.report.figures import Oracle
    from talon_core.report.texts import Texts

PAGE = "report.html"
FORMS = ("png", "svg")


def report(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder of talon bench run.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help=f"Where the page goes; {PAGE} in the run's folder by default.")
    ] = None,
    baseline: Annotated[str, typer.Option(metavar="SPEC", help="The method that speeds are to.")] = PLAIN,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="A trace of the same prompts: what the best trees of its drafter would have got."
        ),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="The prompts of the run, whose texts are then shown; the run keeps none."),
    ] = None,
    steps: Annotated[
        int,
        typer.Option(
            parser=opts.whole_number,
            metavar="N",
            help="Step through so many of the fastest prompts, and of the slowest.",
        ),
    ] = 3,
    figures: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write each figure as a file, too; needs matplotlib.")
    ] = None,
    forms: Annotated[
        list[str] | None,
        typer.Option("--format", metavar="FORM", help="Of the figures: png or svg; several times. By default both."),
    ] = None,
    unfinished: Annotated[
        bool, typer.Option("--unfinished", help="Report what is there of a run that is not over.")
    ] = False,
    as_json: opts.Json = False,
) -> None:
    """Write what a run found as one HTML page that loads nothing from elsewhere."""
    from talon_core.bench.results import check_not_of_run, read_results
    from talon_core.report.figures import ORACLE
    from talon_core.report.gather import Besides, report_of
    from talon_core.report.page import page_of
    from talon_core.report.progress import check_finished, progress_of

    if steps < 0:
        raise ValueError(f"--steps is {steps}; it must be at least 0")
    wanted = _forms(forms, figures)
    results = read_results(folder)
    page = out if out is not None else folder / PAGE
    check_file(page, "--out")
    check_not_of_run(page, "--out", folder)
    progress = progress_of(results)
    if not unfinished:
        check_finished(progress, folder)
    if figures is not None:
        from talon_core.report.plotting import check_matplotlib

        check_matplotlib()
    (oracle, no_oracle), questions = _oracle(trace, results), _questions(prompts, results)
    texts, no_texts = _texts(results)
    found = report_of(results, baseline.strip(), Besides(texts, questions, oracle, steps, no_texts, no_oracle))
    text = page_of(found)
    pictures: dict[str, bytes] = {}
    if figures is not None:
        from talon_core.report.plots import pictures_of

        pictures = pictures_of(found, wanted)
        figures.mkdir(parents=True, exist_ok=True)
    write_whole(page, text)
    files = [str(page), *_write(figures, pictures)]
    # that nobody gave a trace is no fault; the page says what one is for
    missing = {name: why for name, why in found.missing.items() if name != ORACLE or trace is not None}
    for why in dict.fromkeys(missing.values()):
        names = ", ".join(f"'{name}'" for name, own in missing.items() if own == why)
        note(f"no figure {names}: {why}")
    if as_json:
        answer: dict[str, Any] = {"report": str(page), "bytes": len(text.encode()), "figures": files[1:]}
        answer["progress"] = {"done": progress.done, "planned": progress.planned, "finished": progress.finished}
        print_json({**answer, "headline": found.headline, "notes": found.notes, "missing": found.missing})
    else:
        typer.echo("\n".join(files))


def _forms(forms: list[str] | None, figures: Path | None) -> list[str]:
    """The forms that are wanted.

    Raises:
        ValueError: for one that there is not, or where no figures are asked for.
    """
    if forms and figures is None:
        raise ValueError(f"--format is {forms[0]} and --figures is not given; name the folder that they go to")
    for form in forms or ():
        if form not in FORMS:
            raise ValueError(f"--format is '{form}'; it must be one of {', '.join(FORMS)}")
    if figures is not None:
        check_folder(figures, "--figures")
    return list(dict.fromkeys(forms or FORMS))


def _oracle(trace: Path | None, results: "Results") -> "tuple[Oracle | None, str]":
    """What the drafter of a trace allows, and why that is not known where the run drafted what the trace lacks."""
    if trace is None:
        return None, ""
    from talon_core.report.efficiency import TooLow, oracle_of
    from talon_core.trace.folder import read_trace

    try:
        return oracle_of(read_trace(trace), results), ""
    except TooLow as error:
        return None, str(error)


def _questions(prompts: Path | None, results: "Results") -> dict[tuple[str, int, int], str]:
    if prompts is None:
        return {}
    from talon_core.report.steps import read_questions

    return read_questions(prompts, results)


def _texts(results: "Results") -> "tuple[Texts, str]":
    """What tokens say, and why they do not where the model's tokenizer is not to be had."""
    from talon_core.cli.session import check_model_name, quieten_libraries
    from talon_core.models.loading import load_tokenizer
    from talon_core.report.texts import Texts

    model = str(results.manifest["settings"].get("model", ""))
    quieten_libraries()
    try:
        check_model_name(model)
        return Texts(load_tokenizer(model)), ""
    except (LookupError, ValueError, OSError) as error:
        why = f"tokens are shown by their numbers, as their texts are not to be had: {error}"
        note(why)
        return Texts(), why[:1].upper() + why[1:]


def _write(folder: Path | None, pictures: dict[str, bytes]) -> list[str]:
    from talon_core.basics.paths import write_whole_bytes

    written = []
    for name, data in pictures.items():
        assert folder is not None
        write_whole_bytes(folder / name, data)
        written.append(str(folder / name))
    return written
