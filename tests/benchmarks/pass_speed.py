"""What a pass of the target costs on this machine, by nodes: float32 weights and blocks, recorded and not.

    python tests/benchmarks/pass_speed.py [--model NAME] [--threads N] [--context N] [--repetitions N] [--out FILE]

Prints medians of milliseconds in turn, what the memory and the processor do at best, and what a round of plain
decoding, and one of the default drafter and policy, spends outside of recorded passes. Reading a prompt of 512 tokens
is timed as well, in tokens a second. `walked` is a recorded pass with the greedy walk behind it, and `most likely` the
same where nobody wants the logits, as in greedy decoding.

Of each way a sample is the least of three passes, after fourteen that are not counted: one of them is recorded, and
then it is found out whether a screen of the head is quicker with so many nodes.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import torch
from figures_file import check_options, write_figures
from rich.console import Console
from rich.progress import track
from rich.table import Table

from talon_core.bench.environment import describe_environment, describe_session
from talon_core.decoding.loading import decoder_for_model
from talon_core.defaults import DEFAULT_MODEL, NONE
from talon_core.hf.target import HFTarget
from talon_core.models.loading import load_model
from talon_core.plugins.parts import Parts
from talon_core.tree import TokenTree
from talon_kernels.native import Library, load
from talon_kernels.native.tuning import machine_speeds

NODES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
CONTEXT = 256
"""Tokens that a pass comes behind, by default."""
PROMPT = 512
WAYS = {"as it is": (False, None), "recorded": (True, None), "walked": (True, True), "most likely": (True, False)}
"""Whether a pass is recorded, and where it is walked whether the logits are wanted."""
ROUNDS = {"plain": Parts(policy=NONE), "default": Parts()}
UNCOUNTED, COUNTED = 14, 3
"""Passes of a sample: those in which one is recorded and ways are tried, and those of which the least is taken."""
WALKED = "walk", "walk_on", "walk_chains"
"""What the library runs recorded passes by: one, several plain ones, and those of rounds whose trees are chains."""
NO_ROWS = np.empty(0, dtype=np.int64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--nodes", type=int, nargs="+", default=NODES)
    parser.add_argument("--context", type=int, default=CONTEXT, help="tokens that a pass comes behind")
    parser.add_argument("--out", type=Path, default=None, help="write the figures to this JSON file")
    options = parser.parse_args()
    check_options(parser, options, "repetitions")
    if options.context < 1:
        parser.error(f"--context is {options.context}; it must be at least 1")
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    targets = {name: _target(options.model, name == "float32") for name in ("float32", "blocks")}
    rows = [_measured(targets, nodes, options.context, options.repetitions) for nodes in options.nodes]
    library = load()
    figures = {
        "manifest": describe_environment(*_model_of(options.model, targets["blocks"]), targets["blocks"]),
        "session": describe_session(),
        "threads": torch.get_num_threads(),
        "context": options.context,
        "best": attrs.asdict(machine_speeds(library)) if library is not None else None,
        "bytes": {name: _bytes(target.model) for name, target in targets.items()},
        "milliseconds": rows,
        "prompt_tokens_a_second": {name: _prompt_speed(target) for name, target in targets.items()},
        "rounds": {name: _rounds(targets["blocks"], parts, library) for name, parts in ROUNDS.items()},
        "not_recorded": {name: target.own_executor().failure for name, target in targets.items()},
    }
    _show(figures)
    write_figures(options.out, figures)


def _target(model: str, dequantize: bool) -> HFTarget:
    loaded, tokenizer = load_model(model, dequantize=dequantize)
    target = decoder_for_model(loaded, tokenizer, Parts(policy=NONE)).target
    assert isinstance(target, HFTarget)
    return target


def _model_of(name: str, target: HFTarget) -> tuple[Any, Any]:
    return target.model, target.tokenizer


def _bytes(model: Any) -> int:
    held = {tensor.data_ptr(): tensor.nbytes for tensor in (*model.parameters(), *model.buffers())}
    return sum(held.values())


def _measured(targets: dict[str, HFTarget], nodes: int, context: int, repetitions: int) -> dict[str, Any]:
    """Median milliseconds of a pass over a chain of nodes, each way in turn."""
    seconds: dict[str, list[float]] = {}
    tree = TokenTree(np.arange(5, 5 + nodes), np.arange(-1, nodes - 1), np.zeros(nodes))
    for _ in track(range(repetitions), f"{nodes} nodes", console=Console(stderr=True), transient=True):
        for name, target in targets.items():
            for way, (recorded, logits) in WAYS.items():
                seconds.setdefault(f"{name}, {way}", []).append(_pass(target, tree, context, recorded, logits))
    return {"nodes": nodes, **{way: 1000 * statistics.median(taken) for way, taken in seconds.items()}}


def _pass(target: HFTarget, tree: TokenTree, context: int, recorded: bool, logits: bool | None) -> float:
    """Seconds of the quickest of `COUNTED` passes, after `UNCOUNTED` others."""
    runner, executor = target.runner, target.own_executor()
    kept = executor._passes
    executor._passes = kept if recorded else None
    try:
        with target.session():
            runner.open(0, context + (UNCOUNTED + COUNTED) * len(tree.tokens) + 1)
            runner.read({0: _text(target, context)})
            least = float("inf")
            for turn in range(UNCOUNTED + COUNTED):
                begun = time.perf_counter()
                if logits is None:
                    runner.run({0: (tree, 0)})
                else:
                    runner.walk({0: tree}, [0], frozenset(), logits=logits)
                taken = time.perf_counter() - begun
                least = least if turn < UNCOUNTED else min(least, taken)
                if logits is None:  # a walk commits what it has found
                    runner.commit({0: NO_ROWS})
            runner.close(0)
    finally:
        executor._passes = kept
    return least


def _rounds(target: HFTarget, parts: Parts, library: Library | None) -> dict[str, float] | None:
    """Milliseconds of a round, and of it outside of recorded passes: medians over generations of 64 tokens."""
    if library is None:
        return None
    decoder = decoder_for_model(target.model, target.tokenizer, parts)
    whole, outside = [], []
    with passes_timed(library) as inside:
        for turn in range(6):
            inside[0] = 0.0
            stats = decoder.generate(_text(target, 32), max_new_tokens=64).stats
            if turn:  # in the first one passes are written down
                whole.append(1000 * (stats.seconds - stats.prefill_seconds) / stats.rounds)
                outside.append(whole[-1] - 1000 * inside[0] / stats.rounds)
    return {"milliseconds": statistics.median(whole), "outside": statistics.median(outside)}


@contextmanager
def passes_timed(library: Library) -> Iterator[list[float]]:
    """While entered, what is given counts the seconds in recorded passes, in one place."""
    inside = [0.0]

    def timed(function: Callable[..., int]) -> Callable[..., int]:
        def call(*given: Any) -> int:
            begun = time.perf_counter()
            found = function(*given)
            inside[0] += time.perf_counter() - begun
            return found

        return call

    before = {name: getattr(library, name) for name in WALKED}
    vars(library).update({name: timed(function) for name, function in before.items()})
    try:
        yield inside
    finally:
        vars(library).update(before)


def _text(target: HFTarget, tokens: int) -> Any:
    return np.arange(100, 100 + tokens) % target.vocab_size


def _prompt_speed(target: HFTarget) -> float:
    text, least = _text(target, PROMPT), float("inf")
    for _ in range(4):
        with target.session():
            target.runner.open(0, PROMPT + 1)
            begun = time.perf_counter()
            target.runner.read({0: text})
            least = min(least, time.perf_counter() - begun)
            target.runner.close(0)
    return PROMPT / least


def _show(figures: dict[str, Any]) -> None:
    console = Console()
    console.print(", ".join(f"{name} {value}" for name, value in figures["manifest"].items()))
    if figures["best"] is not None:
        best = figures["best"]
        console.print(f"memory {best['read'] / 1e9:.1f} GB/s, multiplications {best['multiplied'] / 1e9:.0f} G/s")
    for name, size in figures["bytes"].items():
        speed = figures["prompt_tokens_a_second"][name]
        why = figures["not_recorded"][name]
        recorded = f", not recorded: {why}" if why else ""
        console.print(f"{name}: {size / 1e6:.0f} MB, prompt {speed:.0f} tokens/s{recorded}")
    for name, found in figures["rounds"].items():
        if found is not None:
            share = found["outside"] / found["milliseconds"]
            console.print(
                f"a {name} round: {found['milliseconds']:.2f} ms, outside of recorded passes {share:.1%} of it"
            )
    for name in figures["bytes"]:
        table = Table("nodes", *WAYS, title=f"milliseconds from {name}")
        for row in figures["milliseconds"]:
            table.add_row(str(row["nodes"]), *(f"{row[f'{name}, {way}']:.2f}" for way in WAYS))
        console.print(table)


if __name__ == "__main__":
    main()
