"""A report as one HTML page that loads nothing from elsewhere."""

from importlib.resources import files
from typing import Any

import talon_core
from talon_core.report import svg_figures
from talon_core.report.colours import SCHEMES, number_of
from talon_core.report.figures import Extreme, Report, Walks
from talon_core.report.sections import sections
from talon_core.report.svg import NO_TEXT
from talon_core.rounds import PARTS


def page_of(report: Report) -> str:
    """The page. Every name and text in it is escaped."""
    return rendered(
        "page.html",
        report=report,
        sections=[*sections(report)],
        walks=_walks(report, report.walks) if report.walks is not None and _walked(report.walks) else None,
        extremes=report.walks.prompts if report.walks is not None else [],
        key=svg_figures.key,
    )


def rendered(name: str, **values: Any) -> str:
    """A page of this folder's templates, with the frame that all of them have. Every text in it is escaped.

    Args:
        name: of the template.
        values: what it shows.
    """
    from jinja2 import Environment, FunctionLoader, StrictUndefined
    from markupsafe import Markup

    folder = files("talon_core.report")

    def read(file: str) -> str:
        return (folder / file).read_text(encoding="utf-8")

    jinja = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, loader=FunctionLoader(read)
    )
    jinja.filters["svg"] = Markup  # `talon_core.report.svg` has escaped what is in it
    page = jinja.get_template(name).render(
        schemes=SCHEMES,
        style=Markup(read("page.css")),
        script=Markup(read("page.js")),
        swatch=svg_figures.swatch,
        number_of=number_of,
        version=talon_core.__version__,
        **values,
    )
    return page.translate(NO_TEXT)


def _walked(walks: Walks) -> bool:
    return any(each.walks for each in walks.prompts)


def _walks(report: Report, walks: Walks) -> dict[str, Any]:
    """What the page's script steps through, with short names: there are thousands."""
    return {
        "words": walks.words,
        "parts": PARTS,
        "methods": {one.name: {"label": one.label, "colour": number_of(one.place)} for one in report.methods},
        "prompts": [
            {
                "title": _title(each),
                "asked": each.text,
                "walks": [
                    {
                        "method": walk.method,
                        "said": f"{walk.tokens_per_second:.1f} tokens/s, {walk.ratio:.2f} times plain decoding",
                        "rounds": walk.rounds,
                        "steps": [
                            {
                                "above": step.parents,
                                "words": step.tokens,
                                "shares": step.shares,
                                "path": step.path,
                                "own": step.own,
                                "pieces": step.pieces,
                                "nodes": step.nodes,
                                "ms": [step.milliseconds[part] for part in PARTS],
                                "drafts": step.draft_passes,
                            }
                            for step in walk.steps
                        ],
                    }
                    for walk in each.walks
                ],
            }
            for each in walks.prompts
            if each.walks
        ],
    }


def _title(each: Extreme) -> str:
    turn = f", turn {each.turn}" if each.turn else ""
    return f"{each.set} {each.prompt}{turn}: {'fast' if each.fast else 'slow'}, {each.ratio:.2f}x"
