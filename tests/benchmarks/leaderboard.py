"""The leaderboard: drafters with every policy that is registered, by replay, and the best of them by the clock.

    python tests/benchmarks/leaderboard.py --prompts ./sets [--limit 4] [--best 20] [--work FOLDER] [--until replay]
                                           [--out FILE] [--page docs/leaderboard.md]

At temperatures 0 and 1 records a trace of each drafter, measures what passes take here, replays every registered
policy, plugins' too, and decodes with those that are fastest by these predictions, in turn with plain decoding.
Policies that draw are tried above temperature 0 alone, with every lossless rule for their trees; the others with
their own rule. What draws needs whole laws, so it is replayed on fewer and smaller traces: the best are taken of both
groups, as many of each.

Every step is a command of `talon`; a step that is done is in the work folder, and the same command goes on from
there. `--until` ends behind a step: what is recorded is the same beside other work, and the other steps look at the
clock.

`--corpus` names files of text: the drafter `datastore` retrieves from an index of them, which is made once in the work
folder. `--also` names methods that are decoded with besides the best ones: by default `lookahead` with its window,
which no trace can hold.

`--page` writes the tables into a page, between its lines `<!-- tables -->` and `<!-- end -->`.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from types import MappingProxyType
from typing import Any

from rich.console import Console

from talon_core.basics.numerals import fault_of_temperature
from talon_core.basics.paths import check_file, check_folder, write_whole
from talon_core.bench.methods import parse_methods
from talon_core.bench.prompts import read_sets
from talon_core.bench.results import read_manifest
from talon_core.defaults import DEFAULT_MODEL, EXACT_RULE
from talon_core.plugins.parts import built
from talon_core.plugins.registry import Registry, load_registry
from talon_core.retrieval.corpus import find_corpus

DRAFTERS = (
    *("eagle3", "hydra", "medusa", "draft-model:skip=9-20", "conflayers", "ngram", "pld", "lookahead:window=0"),
    "hybrid:of=eagle3+ngram",
)
"""All that need nothing but what ships, and can be recorded; with the options that pages name for the default model."""

POLICIES = {
    "none": [],
    "chain": ["chain:length=1", "chain:length=2", "chain:length=4"],
    "talon": ["talon:budget=4,top_k=5,mu=0.0959,least=0.101", "talon:budget=8", "talon:budget=16", "talon"],
    "eagle2": ["eagle2:budget=8,depth=3,top_k=4", "eagle2:budget=16,depth=4,top_k=4", "eagle2"],
    "opt-tree": ["opt-tree:budget=8", "opt-tree"],
    "ddtree": ["ddtree:budget=8", "ddtree"],
    "dyspec": ["dyspec:budget=8", "dyspec"],
    "talon-sampled": ["talon-sampled:budget=8", "talon-sampled"],
    "sampled-chain": ["sampled-chain:length=1", "sampled-chain:length=2", "sampled-chain:length=4"],
    "sequoia": ["sequoia:budget=8,depth=3", "sequoia"],
}
"""Options besides, or in the place of, the default ones, where those are a paper's for a GPU; the first of `talon` was
tuned for a CPU (docs/tuning.md)."""

BY_THE_CLOCK_ALONE = ("lookahead",)
"""Methods whose drafts are made in the target's own passes, so that no trace has them."""

PLAIN = "none"
STEPS = ("record", "measure", "replay", "decode")

RECORDED = ("--nodes", "24", "--depth", "10", "--least", "0.005")
"""What traces have: less than by default, so that a recording takes minutes; a large tree may ask for more."""

SMALL = ("--width", "16", "--nodes", "8", "--depth", "5", "--least", "0.005")
"""Of a trace with whole laws, which would take gigabytes otherwise."""

SIZES = ("--batches", "1", "--nodes", "1,2,3,4,6,8,16,32,64", "--repetitions", "3")
"""That are measured: one text decodes at a time."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--prompts", type=Path, required=True, help="a folder of prompt sets")
    parser.add_argument("--limit", type=int, default=4, help="prompts of each set")
    parser.add_argument("--laws-limit", type=int, default=1, help="prompts of each set for rules that look at laws")
    parser.add_argument("--clock-limit", type=int, help="prompts of each set that are decoded; by default --limit")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--best", type=int, default=20, help="how many are decoded with at each temperature")
    parser.add_argument("--drafters", nargs="*", default=DRAFTERS, metavar="SPEC")
    parser.add_argument("--laws-drafters", nargs="*", metavar="SPEC", help="likewise for those rules; by default all")
    parser.add_argument("--corpus", nargs="*", type=Path, default=(), metavar="FILE", help="tries datastore on these")
    parser.add_argument("--also", nargs="*", default=BY_THE_CLOCK_ALONE, metavar="METHOD", help="by the clock alone")
    parser.add_argument("--temperatures", nargs="*", type=float, default=(0.0, 1.0), metavar="T")
    parser.add_argument("--work", type=Path, default=None, help="keep traces and results here, and go on from them")
    parser.add_argument("--until", choices=STEPS, default=STEPS[-1], help="the last step; with --work")
    parser.add_argument("--out", type=Path, default=None, help="write the figures to this JSON file")
    parser.add_argument("--page", type=Path, default=None, help="write the tables into this page")
    options = parser.parse_args()
    if options.clock_limit is None:
        options.clock_limit = options.limit
    if options.until != STEPS[-1] and options.work is None:
        parser.error(f"--until is '{options.until}' and --work is not given; nothing would be left of the steps")
    try:
        _check(options)
    except (ValueError, LookupError, OSError) as error:
        parser.error(str(error))
    with tempfile.TemporaryDirectory() as temporary:
        options.work = options.work or Path(temporary)
        options.work.mkdir(parents=True, exist_ok=True)
        boards = _boards(options, STEPS.index(options.until))
    if not boards:
        return
    figures = {"arguments": sys.argv[1:], "temperatures": boards}
    if options.out is not None:
        write_whole(options.out, json.dumps(figures, indent=1) + "\n")
    written = tables(figures)
    if options.page is not None:
        write_page(options.page, written)
    Console().print(written, markup=False)


def _check(options: argparse.Namespace) -> None:
    """Refuse what hours of work would end at.

    Raises:
        ValueError: if a number is too small, nothing is named to be tried, a policy or a drafter cannot be made, there
            are no prompts, or a file or folder cannot be written.
        LookupError: if there is no such drafter.
        OSError: if the page or the prompts cannot be read.
    """
    for option in ("limit", "laws_limit", "clock_limit", "max_new_tokens", "best"):
        if getattr(options, option) < 1:
            raise ValueError(f"--{option.replace('_', '-')} is {getattr(options, option)}; it must be at least 1")
    for option in ("drafters", "temperatures"):
        if not getattr(options, option):
            raise ValueError(f"--{option} is empty; name at least one")
    for temperature in options.temperatures:
        fault = fault_of_temperature(temperature)
        if fault is not None:
            raise ValueError(f"--temperatures has {temperature:g}; {fault}")
    parse_methods(options.also)
    ends = next((sign for sign in (",", "@", " / ") if sign in str(options.work)), None)
    if options.corpus and ends is not None:
        raise ValueError(f"--work is '{options.work}'; with --corpus it must have no '{ends}', which ends an option")
    if options.corpus:
        find_corpus(options.corpus)
    if options.work is not None:
        check_folder(options.work, "--work")
    if options.out is not None:
        check_file(options.out, "--out")
    if options.page is not None:
        check_file(options.page, "--page")
        _around_tables(options.page)
    registry = load_registry()
    for drafter in (*options.drafters, *(options.laws_drafters or ())):
        built(registry, "drafter", drafter)
    for name in (*policies_of(registry, draws=False), *policies_of(registry, draws=True)):
        for policy in POLICIES.get(name, [name]):
            built(registry, "tree policy", policy)
    read_sets(options.prompts)


def _boards(options: argparse.Namespace, last: int) -> dict[str, Any]:
    """What came out at each temperature; nothing if the last step is an earlier one."""
    if options.corpus:
        options.drafters = [*options.drafters, _datastore(options)]
    for temperature in options.temperatures:
        for drafter, laws in _traces(options, temperature):
            _record(options, drafter, temperature, laws)
    for drafter in options.drafters if last >= STEPS.index("measure") else ():
        for temperature in options.temperatures:
            _profile(options, drafter, temperature)
    replayed: dict[float, list[dict[str, Any]]] = {}
    for temperature in options.temperatures if last >= STEPS.index("replay") else ():
        traces = _traces(options, temperature)
        rows = [row for drafter, laws in traces for row in _replayed(options, drafter, laws, temperature)]
        replayed[temperature] = sorted(rows, key=lambda row: (row["laws"], -row["over_plain"]))
    if last < STEPS.index("decode"):
        return {}
    return {f"{at:g}": {"replayed": rows, **_decoded(options, at, rows)} for at, rows in replayed.items()}


def _datastore(options: argparse.Namespace) -> str:
    """The drafter that retrieves from the corpus; its index is made if there is none of these files as they are."""
    files = find_corpus(options.corpus).files
    folder: Path = options.work / f"datastore-{_digest(options.model, _seen(files))}"
    if not folder.exists():
        _talon("datastore", "build", *map(str, options.corpus), "--model", options.model, "--out", str(folder))
    return f"datastore:path={folder}"


def _digest(*of: object) -> str:
    """A short name for what a folder was made of."""
    return hashlib.sha256(repr(of).encode()).hexdigest()[:8]


def _seen(files: Iterable[Path]) -> list[tuple[str, int, int]]:
    """What tells whether files have changed."""
    return [(str(one.resolve()), one.stat().st_size, one.stat().st_mtime_ns) for one in files]


def _contents(options: argparse.Namespace) -> str:
    """A short name for what the prompts, and a model's own files, hold: their paths do not say it."""
    model = Path(options.model)
    files = sorted(one for one in (model, *model.rglob("*")) if one.is_file())
    return _digest([(one.name, one.sha256) for one in read_sets(options.prompts)], _seen(files))


def _traces(options: argparse.Namespace, temperature: float) -> Iterator[tuple[str, bool]]:
    """Drafters, and whether whole laws are recorded."""
    yield from ((drafter, False) for drafter in options.drafters)
    if temperature:
        of_laws = options.drafters if options.laws_drafters is None else options.laws_drafters
        yield from ((drafter, True) for drafter in of_laws)


def policies_of(registry: Registry, draws: bool) -> list[str]:
    """Names of the policies that draw their children, or of all the others, plugins' too."""
    found = registry.entries["tree policy"].items()
    return [name for name, policy in found if (policy.cls.children != "deterministic") == draws]


def methods_of(registry: Registry, laws: bool, reads_texts: bool = False) -> list[str]:
    """Policies, as `talon trace sweep` takes them, plain decoding first.

    Args:
        registry: what there is.
        laws: those that draw, each with every lossless rule for its trees; otherwise all the others, with their own
            rule.
        reads_texts: the drafter does, and is asked again: where it leads the target's laws are not known, so that
            only `match` can be tried.
    """
    lossless = {name: rule.cls for name, rule in registry.entries["rule"].items() if not rule.cls.lossy}
    found = [PLAIN]
    for name in policies_of(registry, laws):
        children = registry.entries["tree policy"][name].cls.children
        rules = sorted(rule for rule, cls in lossless.items() if {children, "any"} & cls.exact_for)
        rules = [rule for rule in rules if rule == EXACT_RULE or not reads_texts]
        for spec in POLICIES.get(name, [name]):
            found += [f"{spec}/{rule}" for rule in rules] if laws else [spec]
    return found


def _record(options: argparse.Namespace, drafter: str, temperature: float, laws: bool) -> Path:
    """The trace of a drafter; what is there is gone on with, and not looked at if all of the same has ended before."""
    kind = "-laws" if laws else ""
    trace: Path = options.work / f"trace-{temperature:g}{kind}-{_file_name(drafter)}"
    how = ["--laws", *SMALL] if laws else RECORDED
    texts = _texts(options, options.laws_limit if laws else options.limit, temperature)
    command = ["trace", "record", "--drafter", drafter, *texts, "--out", str(trace), *how, "--json"]
    ended = options.work / f"{trace.name}.command"
    said = "\n".join([*command, _contents(options)]) + "\n"
    if not ended.exists() or ended.read_text(encoding="utf-8") != said:
        _talon(*command)
        write_whole(ended, said)
    return trace


def _profile(options: argparse.Namespace, drafter: str, temperature: float) -> Path:
    """What passes of the target and a drafter take here in texts of a temperature."""
    at = f"-{temperature:g}" if temperature else ""
    kept: Path = options.work / f"profile{at}-{_file_name(options.model)}-{_file_name(drafter)}.json"
    if not kept.exists():
        of = ("--model", options.model, "--drafter", drafter, "--temperature", f"{temperature:g}")
        with tempfile.TemporaryDirectory() as data:  # so that none of the user's profiles is replaced
            made = _talon(
                *("profile", "measure", "leaderboard", *of, *SIZES, "--json"), environment={"TALON_DATA": data}
            )
            write_whole(kept, Path(made["file"]).read_text(encoding="utf-8"))
    return kept


def _file_name(spec: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in spec)


def _texts(options: argparse.Namespace, limit: int, temperature: float) -> list[str]:
    return [
        *("--model", options.model, "--prompts", str(options.prompts), "--limit", str(limit)),
        *("--max-new-tokens", str(options.max_new_tokens), "--temperature", f"{temperature:g}"),
    ]


def _replayed(options: argparse.Namespace, drafter: str, laws: bool, temperature: float) -> list[dict[str, Any]]:
    """What each method does with a drafter's trace, of all sets and of each."""
    registry = load_registry()
    methods = methods_of(registry, laws, built(registry, "drafter", drafter).reads_texts)
    trace = _record(options, drafter, temperature, laws)
    how = (
        "--trace",
        str(trace),
        "--profile",
        str(_profile(options, drafter, temperature)),
        "--out",
        str(options.work / "replays"),
    )
    rows = _talon("trace", "sweep", *methods, *how, "--json")["rows"]
    plain = {row["set"]: row["predicted_tokens_per_second"] for row in rows if row["method"] == PLAIN}
    of_sets = {
        method: {row["set"]: row for row in rows if row["method"] == method and row["set"] is not None}
        for method in methods
    }
    return [
        {
            "drafter": drafter,
            "method": row["method"],
            "laws": laws,
            "mean_accepted_tokens": _short(row["mean_accepted_tokens"]),
            "share": _short(row["oracle"]["share"]),
            "target_passes": row["target_passes"],
            "draft_passes": row["draft_passes"],
            "nodes_verified": row["nodes_verified"],
            "outside": row["outside"],
            "over_plain": _short(
                geometric_mean(
                    own["predicted_tokens_per_second"] / plain[name] for name, own in of_sets[row["method"]].items()
                )
            ),
            "sets": {
                name: [_short(own["mean_accepted_tokens"]), _short(own["oracle"]["share"])]
                for name, own in of_sets[row["method"]].items()
            },
        }
        for row in rows
        if row["set"] is None and row["method"] != PLAIN
    ]


def _short(figure: float | None) -> float | None:
    return None if figure is None else round(figure, 4)


def _decoded(options: argparse.Namespace, temperature: float, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the clock says of the best: of those that draw and of the others, as many of each."""
    kinds = (False, True) if temperature else (False,)
    each = -(-options.best // len(kinds))
    best = [row for laws in kinds for row in [row for row in rows if row["laws"] == laws][:each]]
    methods = [f"{row['drafter']} / {row['method'].replace('/', ' / ')}" for row in best]
    there = [method.resolved for method in parse_methods(methods)]
    methods += [spec for spec in options.also if parse_methods([spec])[-1].resolved not in there]
    texts = _texts(options, options.clock_limit, temperature)
    folder = options.work / f"bench-{temperature:g}-{_digest(methods, texts)}"
    _talon("bench", "run", *methods, *texts, "--warmup", "1", "--out", str(folder))
    manifest = read_manifest(folder)
    assert manifest is not None
    compared = _talon("bench", "compare", str(folder), "--json")
    return {"compared": compared["all"], "environment": manifest["environment"]}


def _talon(*arguments: str, environment: Mapping[str, str] = MappingProxyType({})) -> dict[str, Any]:
    """What a command says, where it says it in JSON; its progress goes to this one's stderr."""
    command = [sys.executable, "-m", "talon_core", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment})
    if done.returncode:
        sys.exit(f"talon {' '.join(arguments)} ended with status {done.returncode}")
    return json.loads(done.stdout) if "--json" in arguments else {}


def tables(figures: dict[str, Any], most: int = 20) -> str:
    """The figures in Markdown: for each temperature the best by the clock, all by replay, and the best by set.

    Args:
        figures: as the script writes them.
        most: rows of the tables by set.
    """
    lines: list[str] = []
    for temperature, board in figures["temperatures"].items():
        lines += [f"### Temperature {temperature}, by the clock", ""]
        lines += _table(("method", "tokens/s", "over plain decoding", "95% interval", "MAT"), _timed(board["compared"]))
        for laws, kind in ((False, ""), (True, ", drawn trees")):
            rows = [row for row in board["replayed"] if row["laws"] == laws]
            if rows:
                lines += ["", f"### Temperature {temperature}, by replay{kind}", "", *_matrix(rows)]
                lines += ["", f"### Temperature {temperature}, the best by set{kind}", "", *_by_set(rows[:most])]
        lines.append("")
    return "\n".join(lines)


def _timed(compared: dict[str, dict[str, Any]]) -> list[Sequence[str]]:
    rows = []
    for name, one in sorted(compared.items(), key=lambda item: -item[1]["tokens_per_second"]):
        ratio, mat = one["to_plain"], one["mean_accepted_tokens"]
        interval = "" if ratio is None or ratio["low"] is None else f"{ratio['low']:.2f} to {ratio['high']:.2f}"
        median = "" if ratio is None else f"{ratio['median']:.2f}x"
        tokens = "" if mat is None else f"{mat:.2f}"
        rows.append((f"`{name}`", f"{one['tokens_per_second']:.1f}", median, interval, tokens))
    return rows


def _matrix(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A row for each policy and a column for each drafter: the speed over plain decoding, and the MAT."""
    drafters = sorted({row["drafter"] for row in rows}, key=lambda name: -_highest(rows, "drafter", name))
    methods = sorted({row["method"] for row in rows}, key=lambda name: -_highest(rows, "method", name))
    by_both = {(row["method"], row["drafter"]): row for row in rows}
    best = {drafter: _highest(rows, "drafter", drafter) for drafter in drafters}
    cells = [
        (f"`{method}`", *(_cell(by_both.get((method, drafter)), best[drafter]) for drafter in drafters))
        for method in methods
    ]
    return _table(("policy", *(f"`{drafter}`" for drafter in drafters)), cells)


def _highest(rows: Sequence[Mapping[str, Any]], part: str, name: str) -> float:
    return max(float(row["over_plain"]) for row in rows if row[part] == name)


def _cell(row: Mapping[str, Any] | None, best: float) -> str:
    if row is None:
        return ""
    speed = f"{row['over_plain']:.2f}x"
    speed = f"**{speed}**" if row["over_plain"] == best else speed
    return f"{speed} ({row['mean_accepted_tokens']:.2f}{_outside(row)})"


def _outside(row: Mapping[str, Any]) -> str:
    """A star where the trace does not answer more than one question in twenty rounds."""
    return "*" if 20 * row["outside"] > row["target_passes"] else ""


def _by_set(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What a round has, and the MAT and the share of the oracle of each set."""
    sets = [*rows[0]["sets"]]
    head = ("drafter", "policy", "over plain decoding", "draft passes", "nodes", *(f"`{name}`" for name in sets), "all")
    cells = [
        (
            f"`{row['drafter']}`",
            f"`{row['method']}`",
            f"{row['over_plain']:.2f}x",
            f"{row['draft_passes'] / row['target_passes']:.1f}",
            f"{row['nodes_verified'] / row['target_passes']:.1f}{_outside(row)}",
            *(_share(*row["sets"][name]) for name in sets),
            _share(row["mean_accepted_tokens"], row["share"]),
        )
        for row in rows
    ]
    return _table(head, cells)


def _share(mat: float, share: float | None) -> str:
    return f"{mat:.2f}" + ("" if share is None else f" ({share:.0%})")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


def write_page(page: Path, written: str) -> None:
    """Put the tables into a page, in the place of those that are there.

    Raises:
        ValueError: if the page does not have the two lines that they stand between.
    """
    before, after = _around_tables(page)
    write_whole(page, f"{before}\n{written}\n{after}")


def _around_tables(page: Path) -> tuple[str, str]:
    """What stands before the tables of a page and behind them, with the lines that mark their place."""
    before, begin, rest = page.read_text(encoding="utf-8").partition("<!-- tables -->\n")
    _, end, after = rest.partition("<!-- end -->\n")
    if not begin or not end:
        raise ValueError(f"'{page}' has no lines '<!-- tables -->' and '<!-- end -->' for the tables to stand between")
    return before + begin, end + after


if __name__ == "__main__":
    main()
