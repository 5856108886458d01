"""The leaderboard: drafters with every policy that is registered, by replay, and the best of them by the clock.

    python tests/benchmarks/leaderboard.py --prompts ./sets [--limit 4] [--best 20] [--work FOLDER] [--out FILE]
                                           [--page docs/leaderboard.md]

At temperatures 0 and 1 records a trace of each drafter, replays every registered policy on it, plugins' too, predicts
their tokens per second by a profile that is measured first, and decodes with the best twenty, in turn with plain
decoding. Policies that draw are tried above temperature 0 alone, with every lossless rule for their trees; the others
with their own rule. What draws needs whole laws, so it is replayed on fewer and smaller traces: the best are taken of
both groups, as many of each. Every step is a command of `talon`; a step that is done is in the work folder, and the
same command goes on from there.

`--page` writes the tables into a page, between its lines `<!-- tables -->` and `<!-- end -->`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rich.console import Console

from talon_core.defaults import DEFAULT_MODEL
from talon_core.paths import write_whole
from talon_core.plugins.registry import Registry, load_registry

DRAFTERS = (
    *("eagle3", "hydra", "medusa", "draft-model:skip=9-20", "conflayers", "ngram", "pld", "lookahead:window=0"),
    "hybrid:of=eagle3+ngram",
)
"""All that need nothing but what ships, and can be recorded; with the options that pages name for the default model."""

POLICIES = {
    "none": [],
    "chain": ["chain:length=2", "chain:length=4"],
    "talon": ["talon:budget=8", "talon:budget=16", "talon"],
    "eagle2": ["eagle2:budget=8,depth=3,top_k=4", "eagle2:budget=16,depth=4,top_k=4", "eagle2"],
    "opt-tree": ["opt-tree:budget=8", "opt-tree"],
    "ddtree": ["ddtree:budget=8", "ddtree"],
    "dyspec": ["dyspec:budget=8", "dyspec"],
    "talon-sampled": ["talon-sampled:budget=8", "talon-sampled"],
    "sampled-chain": ["sampled-chain:length=2", "sampled-chain:length=4"],
    "sequoia": ["sequoia:budget=8,depth=3", "sequoia"],
}
"""Options besides, or in the place of, the default ones, where those are a paper's for a GPU."""

PLAIN = "none"
SMALL = ("--width", "16", "--depth", "8", "--nodes", "16")
"""Of a trace with whole laws, which would take gigabytes otherwise."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--prompts", type=Path, required=True, help="a folder of prompt sets")
    parser.add_argument("--limit", type=int, default=4, help="prompts of each set")
    parser.add_argument("--laws-limit", type=int, default=1, help="prompts of each set for rules that look at laws")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--best", type=int, default=20, help="how many are decoded with at each temperature")
    parser.add_argument("--drafters", nargs="*", default=DRAFTERS, metavar="SPEC")
    parser.add_argument("--temperatures", nargs="*", type=float, default=(0.0, 1.0), metavar="T")
    parser.add_argument("--work", type=Path, default=None, help="keep traces and results here, and go on from them")
    parser.add_argument("--out", type=Path, default=None, help="write the figures to this JSON file")
    parser.add_argument("--page", type=Path, default=None, help="write the tables into this page")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        options.work = options.work or Path(temporary)
        options.work.mkdir(parents=True, exist_ok=True)
        figures = {
            "arguments": sys.argv[1:],
            "temperatures": {f"{at:g}": _board(options, at) for at in options.temperatures},
        }
    if options.out is not None:
        write_whole(options.out, json.dumps(figures, indent=1) + "\n")
    written = tables(figures)
    if options.page is not None:
        write_page(options.page, written)
    Console().print(written, markup=False)


def _board(options: argparse.Namespace, temperature: float) -> dict[str, Any]:
    """What came of one temperature: the replays, the best first, and what the clock says of the best."""
    registry = load_registry()
    replayed: list[dict[str, Any]] = []
    for drafter in options.drafters:
        profile = _profile(options, drafter)
        for laws in (False, True) if temperature else (False,):
            methods = methods_of(registry, laws)
            if methods:
                trace = _recorded(options, drafter, temperature, laws)
                answer = _talon("trace", "replay", str(trace), *methods, "--profile", str(profile), "--json")
                replayed += [{"drafter": drafter, "laws": laws, **one} for one in answer["methods"]]
    replayed.sort(key=lambda one: (one["laws"], -one["predicted_tokens_per_second"]))
    share = options.best // (2 if temperature else 1)
    best: list[str] = []
    for laws in (False, True):
        tried = [one for one in replayed if one["laws"] == laws and one["method"] != PLAIN]
        best += [f"{one['drafter']} / {one['method'].replace('/', ' / ')}" for one in tried[:share]]
    folder = options.work / f"bench-{temperature:g}"
    _talon("bench", "run", *best, *_texts(options, options.limit, temperature), "--out", str(folder))
    compared = _talon("bench", "compare", str(folder), "--json")
    return {"replayed": replayed, "compared": compared["all"], "environment": compared.get("environment")}


def methods_of(registry: Registry, laws: bool) -> list[str]:
    """Policies, as `talon trace replay` takes them.

    Args:
        registry: what there is.
        laws: those that draw, each with every lossless rule for its trees; otherwise plain decoding and all the others,
            with their own rule.
    """
    lossless = {name: rule.cls for name, rule in registry.entries["rule"].items() if not rule.cls.lossy}
    found = []
    for name, policy in registry.entries["tree policy"].items():
        draws = policy.cls.children != "deterministic"
        if draws != laws:
            continue
        rules = sorted(rule for rule, cls in lossless.items() if {policy.cls.children, "any"} & cls.exact_for)
        for spec in POLICIES.get(name, [name]):
            found += [f"{spec}/{rule}" for rule in rules] if draws else [spec]
    return found if laws else [PLAIN, *found]


def _profile(options: argparse.Namespace, drafter: str) -> Path:
    """What passes of the target and a drafter take here."""
    kept: Path = options.work / f"profile-{_file_name(options.model)}-{_file_name(drafter)}.json"
    if not kept.exists():
        with tempfile.TemporaryDirectory() as data:  # so that none of the user's profiles is replaced
            made = _talon(
                *("profile", "measure", "leaderboard", "--model", options.model, "--drafter", drafter, "--json"),
                environment={"TALON_DATA": data},
            )
            write_whole(kept, Path(made["file"]).read_text(encoding="utf-8"))
    return kept


def _file_name(spec: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in spec)


def _recorded(options: argparse.Namespace, drafter: str, temperature: float, laws: bool) -> Path:
    """The trace of a drafter; one that is there is gone on with."""
    kind = "-laws" if laws else ""
    trace: Path = options.work / f"trace-{temperature:g}{kind}-{_file_name(drafter)}"
    how = ["--laws", *SMALL] if laws else []
    limit = options.laws_limit if laws else options.limit
    texts = _texts(options, limit, temperature)
    _talon("trace", "record", "--drafter", drafter, *texts, "--out", str(trace), *how, "--json")
    return trace


def _texts(options: argparse.Namespace, limit: int, temperature: float) -> list[str]:
    return [
        *("--model", options.model, "--prompts", str(options.prompts), "--limit", str(limit)),
        *("--max-new-tokens", str(options.max_new_tokens), "--temperature", f"{temperature:g}"),
    ]


def _talon(*arguments: str, environment: Mapping[str, str] = MappingProxyType({})) -> dict[str, Any]:
    """What a command says, where it says it in JSON; its progress goes to this one's stderr."""
    command = [sys.executable, "-m", "talon_core", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment})
    if done.returncode:
        sys.exit(f"talon {' '.join(arguments)} ended with status {done.returncode}")
    return json.loads(done.stdout) if "--json" in arguments else {}


def tables(figures: dict[str, Any], most: int = 40) -> str:
    """The figures in Markdown: for each temperature what the clock says of the best, then the replays.

    Args:
        figures: as the script writes them.
        most: replays that are shown of each group: those that draw, on fewer texts, and the others.
    """
    lines: list[str] = []
    for temperature, board in figures["temperatures"].items():
        lines += [f"### Temperature {temperature}, by the clock", ""]
        lines += _table(("method", "tokens/s", "over plain decoding", "95% interval", "MAT"), _timed(board["compared"]))
        lines += ["", f"### Temperature {temperature}, by replay", ""]
        head = (
            "drafter",
            "policy and rule",
            "MAT",
            "share of the oracle",
            "draft passes a round",
            "nodes",
            "predicted",
        )
        for laws in (False, True):
            rows = [_replayed(one) for one in board["replayed"] if one["laws"] == laws][:most]
            lines += [*_table(head, rows), ""] if rows else []
    return "\n".join(lines)


def _timed(compared: dict[str, dict[str, Any]]) -> list[Sequence[str]]:
    rows = []
    for name, one in sorted(compared.items(), key=lambda item: -item[1]["tokens_per_second"]):
        ratio, mat = one["to_plain"], one["mean_accepted_tokens"]
        interval = "" if ratio is None else f"{ratio['low']:.2f} to {ratio['high']:.2f}"
        median = "" if ratio is None else f"{ratio['median']:.2f}x"
        rows.append((f"`{name}`", f"{one['tokens_per_second']:.1f}", median, interval, f"{mat:.2f}"))
    return rows


def _replayed(one: dict[str, Any]) -> Sequence[str]:
    """A row; the share is of what the drafter's best trees of that size would have had in hindsight."""
    passes, mat = one["target_passes"], one["mean_accepted_tokens"]
    return (
        f"`{one['drafter']}`",
        f"`{one['method']}`",
        f"{mat:.2f}" + ("*" if one["outside"] else ""),
        f"{mat / one['oracle']['in_hindsight']:.0%}",
        f"{one['draft_passes'] / passes:.1f}",
        f"{one['nodes_verified'] / passes:.1f}",
        f"{one['predicted_tokens_per_second']:.1f}",
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


def write_page(page: Path, written: str) -> None:
    """Put the tables into a page, in the place of those that are there.

    Raises:
        SystemExit: if the page does not have the two lines that they stand between.
    """
    before, begin, rest = page.read_text(encoding="utf-8").partition("<!-- tables -->\n")
    _, end, after = rest.partition("<!-- end -->\n")
    if not begin or not end:
        sys.exit(f"'{page}' has no lines '<!-- tables -->' and '<!-- end -->' for the tables to stand between")
    write_whole(page, f"{before}{begin}\n{written}\n{end}{after}")


if __name__ == "__main__":
    main()
