"""`python -m talon_strategies.fitting POLICY TRACE... --out FILE`: fit the head of a policy on recorded traces."""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs

import talon_core
from talon_core.basics.numerals import counted
from talon_core.basics.paths import check_file, write_whole_bytes
from talon_core.errors import PluginError, one_line
from talon_core.trace.columns import TextTrace
from talon_core.trace.folder import Trace, read_trace
from talon_core.trace.replay import weight_bits_of
from talon_strategies.entropy import OFFERED
from talon_strategies.fitting.examples import KINDS, Examples, Kind
from talon_strategies.fitting.fit import Losses, fitted
from talon_strategies.fitting.texts import texts_with_rows

INTERRUPTED = 130
"""The exit status after Ctrl-C."""

EACH = 5
"""One text of so many is held out."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with these arguments, by default the process's own, and return its exit status."""
    try:
        _run(_parsed(arguments))
    except (OSError, ValueError, PluginError) as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m talon_strategies.fitting",
        description="Fit the head of a policy on traces of talon trace record, one drafter's and one target's. Every "
        "fifth text is held out, and it is said how well the head predicts on those.",
    )
    parser.add_argument("policy", choices=KINDS, help="Whose head.")
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE", help="Folders of talon trace record.")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="The safetensors file to write.")
    parser.add_argument("--hidden", type=int, default=16, metavar="N", help="Neurons of the network; 16.")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="Of what it begins from; 0.")
    parser.add_argument("--json", action="store_true", help="Print what is said as one object.")
    return parser.parse_args(arguments)


def _run(given: argparse.Namespace) -> None:
    for option, value, least in (("hidden", given.hidden, 1), ("seed", given.seed, 0)):
        if value < least:
            raise ValueError(f"--{option} is {value}; it must be at least {least}")
    check_file(given.out, "--out")
    kind = KINDS[given.policy]
    traces = [read_trace(folder) for folder in given.traces]
    check_alike(traces)
    texts = [(trace, text) for trace in traces for text in texts_with_rows(trace, kind.depth)]
    examples = [_examples(kind, trace, text) for trace, text in texts if text is not None]
    some, left_out = [one for one in examples if len(one.accepted)], len(texts) - len(examples)
    told_out = (
        f"left out: {counted(left_out, 'text')}, along which the drafter knows more candidates than are asked for"
    )
    held_out, rest = some[EACH - 1 :: EACH], [one for place, one in enumerate(some) if place % EACH != EACH - 1]
    if not held_out:
        besides = f" ({told_out})" if left_out else ""
        raise ValueError(f"the traces have {len(some)} texts to learn from; there must be at least {EACH}{besides}")
    learnt_from = Examples.together(rest)
    head = fitted(learnt_from, given.hidden, given.seed)
    losses = Losses.of(head, learnt_from, Examples.together(held_out))
    told = origin(given.policy, kind, traces) | {
        "texts": len(rest),
        "left_out": left_out,
        "examples": len(learnt_from.accepted),
        "hidden": given.hidden,
        "seed": given.seed,
        "held_out": {"texts": len(held_out), **attrs.asdict(losses)},
    }
    write_whole_bytes(given.out, attrs.evolve(head, origin=told).to_bytes())
    if given.json:
        print(json.dumps(told))
        return
    print(f"{told['examples']} examples of {len(rest)} texts: {given.out}")
    if left_out:
        print(told_out)
    print(f"cross-entropy on {len(held_out)} other texts, in nats: the head {losses.head:.4f}, ", end="")
    print(f"the drafter's own probabilities {losses.drafter:.4f}, a constant {losses.constant:.4f}")


def check_alike(traces: Sequence[Trace]) -> None:
    """Refuse traces of several drafters.

    Targets may differ, as a model and its quantised copies do.

    Raises:
        ValueError: if there are several.
    """
    names = {trace["drafter"]["name"] for trace in traces}
    if len(names) > 1:
        raise ValueError(f"the traces are of the drafters {', '.join(sorted(names))}; a head is for one")
    if len({trace.manifest["drafter"].get("sha256") for trace in traces}) > 1:
        raise ValueError(
            f"the traces are of several drafters '{names.pop()}' with different weights; a head is for one"
        )


def _examples(kind: Kind, trace: Trace, text: TextTrace) -> Examples:
    assert text.rows is not None
    try:
        text.rows.check(range(len(text.rows.above)), OFFERED, trace["target"]["vocab_size"])
    except ValueError as error:
        raise ValueError(f"prompt {text.prompt} of the set '{text.set}' in '{trace.folder}': {error}") from error
    return kind.read(text, text.rows, weight_bits_of(trace))


def origin(policy: str, kind: Kind, traces: Sequence[Trace]) -> dict[str, Any]:
    """What a head's file tells of where it comes from."""
    return {
        "policy": policy,
        "features": [*kind.features],
        "drafter": traces[0]["drafter"]["name"],
        "talon": talon_core.__version__,
        "traces": [dict(_told(trace)) for trace in traces],
    }


def _told(trace: Trace) -> Iterator[tuple[str, Any]]:
    settings, drafter = trace["settings"], trace["drafter"]
    yield "target", Path(settings["model"]).name
    yield "weights_sha256", trace["target"]["weights_sha256"]
    yield "weight_bits", weight_bits_of(trace)
    yield "drafter_sha256", drafter["sha256"]
    yield "prompts", [{key: one.get(key) for key in ("name", "prompts", "sha256")} for one in settings["sets"]]
    yield "settings", {key: settings[key] for key in ("max_new_tokens", "temperature", "width", "depth", "nodes")}


if __name__ == "__main__":
    sys.exit(main())
