"""A comparison written down: as JSON, Markdown, LaTeX or CSV."""

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from talon_core.basics.records import as_plain
from talon_core.bench import tables
from talon_core.bench.advice import advice
from talon_core.bench.between import SideBySide
from talon_core.bench.compare import Comparison, Summary
from talon_core.bench.results import Results

ENDINGS: Mapping[str, str] = {".json": "json", ".md": "markdown", ".tex": "latex", ".csv": "csv"}
"""How a file's name ends, and what is written into it."""

INTERVALS = ("speed", "after_prompt", "ratio", "to_plain", "mat", "mat_ratio", "accepted_ratio", "mat_of_sets")
NUMBERS = ("draft_passes_per_round", "hits", "outside_target", "identical", "compared", "more_prompts")


def answer(compared: SideBySide, results: Sequence[Results]) -> dict[str, Any]:
    """It as what JSON knows: a run by itself as one object, several in a list."""
    runs = [
        {"run": label, "folder": str(each.folder), "settings": each.manifest["settings"], **comparison.as_dict()}
        for (label, comparison), each in zip(compared.runs.items(), results, strict=True)
    ]
    if len(runs) == 1:
        return {**runs[0], "notes": advice(next(iter(compared.runs.values())))}
    return {"runs": runs, "pairs": [attrs.asdict(pair) for pair in compared.pairs], "notes": list(compared.notes)}


def one_or_all(compared: SideBySide) -> Comparison | SideBySide:
    """A run by itself has more tables than several side by side."""
    return compared if len(compared.runs) > 1 else next(iter(compared.runs.values()))


def as_csv(compared: SideBySide) -> str:
    """A line for each run, set and method with every figure in full; `set` is empty for all prompts together."""
    rows = [*_rows(compared)]
    written = io.StringIO()
    writer = csv.DictWriter(written, [*rows[0]], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return written.getvalue()


def _rows(compared: SideBySide) -> Iterator[dict[str, Any]]:
    for label, run in compared.runs.items():
        for name, summaries in {"": run.all, **run.sets}.items():
            for method, summary in summaries.items():
                yield {"run": label, "set": name, "method": method, "baseline": run.baseline, **_figures(summary)}


def _figures(summary: Summary) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "lossless": summary.lossless,
        "measurements": summary.measurements,
        "prompts": summary.speed.prompts,
    }
    for name in INTERVALS:
        interval = getattr(summary, name)
        for suffix, end in (("", "median"), ("_low", "low"), ("_high", "high")):
            figures[name + suffix] = None if interval is None else getattr(interval, end)
    return {**figures, **{name: getattr(summary, name) for name in NUMBERS}}


FORMS: Mapping[str, Callable[[SideBySide, Sequence[Results]], str]] = {
    "json": lambda compared, results: (
        json.dumps(as_plain(answer(compared, results)), ensure_ascii=False, allow_nan=False, indent=2) + "\n"
    ),
    "markdown": lambda compared, _: tables.as_markdown(one_or_all(compared)),
    "latex": lambda compared, _: tables.as_latex(one_or_all(compared)),
    "csv": lambda compared, _: as_csv(compared),
}
