"""The figures of docs/performance.md on this machine, from one interleaved run: `make speed`.

Compares, prompt by prompt and repetition by repetition, transformers' own `generate`, plain decoding with TALON's
engine, and TALON with the n-gram drafter and with the trained drafters that travel with it for the model; times
verification by tree size and drafting by pass; and measures peak memory in a fresh process. Prints tables and writes
all of it, with versions, as JSON.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from figures_file import check_options, write_figures
from rich.console import Console
from rich.progress import track
from rich.table import Table

from talon_core.bench.engines import Decoded, engine_of, engine_of_transformers
from talon_core.bench.environment import describe_environment, describe_session
from talon_core.decoding.decoder import Decoder
from talon_core.decoding.loading import decoder_for_model
from talon_core.defaults import DEFAULT_MODEL
from talon_core.engine.bounds import Bounds
from talon_core.models.loading import load_model
from talon_core.plugins.parts import Parts
from talon_core.tree import TokenTree
from talon_drafters.checkpoints.files import shipped_for

SUMMARY = """\
Make this text shorter, and keep its facts:

A lighthouse is a tower with a strong lamp that guides ships at night. The first lighthouses were fires on hills near \
the coast. Later, people built towers of stone, and the fires were replaced by lamps with oil. In 1822, the French \
engineer Augustin Fresnel invented a lens that made the light visible from more than twenty miles. Each lighthouse has \
its own pattern of flashes, so that sailors know which one they see. Until the last century, a keeper lived in the \
tower, lit the lamp every evening and cleaned the lens every morning. Today almost all lighthouses work without a \
keeper."""

PROMPTS = {
    "summary": SUMMARY,
    "code": "Rename the variable `total` to `amount` in this code, and write the whole code again:\n\n```python\n"
    "def total_price(items, tax):\n    total = 0\n    for item in items:\n        total += item.price * item.quantity\n"
    "    if total > 100:\n        total = total - 10\n    total = total * (1 + tax)\n    return total\n```\n",
    "story": "Write a short story about a lighthouse keeper who finds a message in a bottle.",
}
"""Two prompts whose answers repeat their input, and one whose answer does not."""

TRAINED = ("eagle3", "hydra", "medusa")
BASELINES = ("plain", "transformers")
OF_ITSELF = """\
import atexit, pathlib, runpy, sys
status = pathlib.Path("/proc/self/status")
atexit.register(lambda: print(status.read_text().split("VmHWM:")[1].split()[0], file=sys.stderr))
runpy.run_module("talon_core", run_name="__main__", alter_sys=True)
"""
"""Runs `talon`, and says last on stderr what its memory was at most, in kB.

What the system says of a child that has ended counts this process as well, of which it is a copy at first.
"""

NODES = (1, 2, 4, 8, 16, 32)
CONTEXT = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--out", type=Path, default=None, help="write the figures to this JSON file")
    options = parser.parse_args()
    check_options(parser, options, "repetitions")
    model, tokenizer = load_model(options.model)
    again = Bounds(keep=False)  # prompts come several times, and each time they are read
    plain = decoder_for_model(model, tokenizer, Parts(policy="none"), bounds=again)
    trained = [kind for kind in TRAINED if shipped_for(model, kind)]
    fast = {
        drafter: decoder_for_model(model, tokenizer, Parts(drafter), bounds=again) for drafter in ("ngram", *trained)
    }
    figures = {
        "manifest": {
            "model": options.model,
            **describe_environment(model, tokenizer, plain.target),
            **describe_session(),
        },
        "decoding": _decoding(model, plain, fast, options.repetitions, options.max_new_tokens),
        "verify": _verify(plain, options.repetitions * 3),
        "draft": {name: _draft(plain, fast[name], options.repetitions) for name in trained},
        "memory": _memory(options.model, model),
    }
    _show(figures)
    write_figures(options.out, figures)


def _decoding(
    model: Any, plain: Decoder, fast: dict[str, Decoder], repetitions: int, new: int
) -> dict[str, dict[str, Any]]:
    """Tokens per second of the whole call of each method, prompt by prompt, in turn."""
    methods = {
        "transformers": engine_of_transformers(model, plain),
        "plain": engine_of(plain),
        **{name: engine_of(of) for name, of in fast.items()},
    }
    prompts = {name: plain.frontend.request(text, {}).ids for name, text in PROMPTS.items()}
    runs: dict[str, dict[str, list[Decoded]]] = {prompt: {name: [] for name in methods} for prompt in PROMPTS}
    for repetition in track(range(-1, repetitions), "decoding", console=Console(stderr=True), transient=True):
        for prompt, ids in prompts.items():
            for name, method in methods.items():
                run = method(ids, {"max_new_tokens": new})
                if repetition >= 0:  # the first round warms up
                    runs[prompt][name].append(run)
    return {prompt: _summary(of) for prompt, of in runs.items()}


def _summary(runs: dict[str, list[Decoded]]) -> dict[str, Any]:
    speed = {name: [run.stats["tokens_per_second"] for run in of] for name, of in runs.items()}
    drafters = [name for name in runs if name not in BASELINES]
    pairs = [("plain", "transformers"), *((name, other) for name in drafters for other in BASELINES)]
    ratios = {
        f"{one} / {other}": statistics.median(a / b for a, b in zip(speed[one], speed[other], strict=True))
        for one, other in pairs
    }
    outputs = {tuple(run.token_ids) for of in runs.values() for run in of}
    return {
        "tokens_per_second": {name: statistics.median(values) for name, values in speed.items()},
        "ratios": ratios,
        "mean_accepted_tokens": {name: runs[name][0].stats["mean_accepted_tokens"] for name in drafters},
        "outside_target": {
            name: statistics.median(_outside_target(run.stats) for run in runs[name]) for name in ("plain", *drafters)
        },
        "new_tokens": len(runs["plain"][0].token_ids),
        "identical_output": len(outputs) == 1,
    }


def _outside_target(stats: Mapping[str, Any]) -> float:
    """The share of the seconds in which the target computes nothing."""
    target = stats["prefill_seconds"] + stats["verify_seconds"]
    return float(1 - target / stats["seconds"])


def _verify(decoder: Decoder, repetitions: int) -> dict[str, Any]:
    """Milliseconds of one verification by nodes, over a context of 256 tokens, sizes in turn."""
    rng = np.random.default_rng(0)
    target: Any = decoder.target
    times: dict[int, list[float]] = {nodes: [] for nodes in NODES}
    with target.session():
        target.open(0, CONTEXT + 65)
        target.read({0: rng.integers(0, target.vocab_size, CONTEXT)})
        for repetition in range(repetitions + 2):
            for nodes in NODES:
                parents = np.array([-1, *(rng.integers(0, max(1, node), 1)[0] for node in range(1, nodes))])
                tree = TokenTree(rng.integers(0, target.vocab_size, nodes), parents, np.zeros(nodes))
                started = time.perf_counter()
                target.verify({0: tree})
                if repetition >= 2:
                    times[nodes].append(1e3 * (time.perf_counter() - started))
                target.runner.cache.committed({0: 0})  # nothing is committed: the next tree starts where this one did
    medians = {nodes: statistics.median(values) for nodes, values in times.items()}
    ratios = {
        nodes: statistics.median(a / b for a, b in zip(values, times[1], strict=True))
        for nodes, values in times.items()
    }
    return {"milliseconds": medians, "ratio_to_one_node": ratios}


def _draft(plain: Decoder, decoder: Decoder, repetitions: int) -> dict[str, float]:
    """Milliseconds of a trained drafter for each of its passes, all it does counted, and their share of a plain step.

    Medusa's heads make one pass a round, the others one for each layer of the tree.
    """
    passes: list[float] = []
    shares: list[float] = []
    for repetition in range(-1, repetitions):
        steps = plain.generate(PROMPTS["story"], max_new_tokens=96).rounds
        rounds = decoder.generate(PROMPTS["story"], max_new_tokens=96).rounds
        if repetition >= 0:
            some = [one.draft_seconds / one.draft_passes for one in rounds if one.draft_passes]
            passes += some
            shares.append(statistics.median(some) / statistics.median(one.verify_seconds for one in steps))
    return {"milliseconds_per_pass": 1e3 * statistics.median(passes), "share_of_a_step": statistics.median(shares)}


def _memory(name: str, model: Any) -> dict[str, float]:
    """Peak memory of a whole `talon generate` process, in MB, and the limit of three times the weights + 700 MB."""
    weights = sum(tensor.nbytes for tensor in {*model.parameters(), *model.buffers()}) / 1e6
    command = [sys.executable, "-c", OF_ITSELF, "generate", PROMPTS["summary"], "--model", name, "--json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    peak = int(done.stderr.split()[-1]) / 1e3
    return {"weights_mb": weights, "peak_mb": peak, "limit_mb": 3 * weights + 700}


def _show(figures: dict[str, Any]) -> None:
    console = Console()
    manifest = figures["manifest"]
    console.print(", ".join(f"{name} {value}" for name, value in manifest.items()))
    table = Table("prompt", "method", "tokens/s", "over plain", "over generate", "MAT", "outside", "identical")
    for prompt, of in figures["decoding"].items():
        ratios, accepted, outside = of["ratios"], of["mean_accepted_tokens"], of["outside_target"]
        for name, speed in of["tokens_per_second"].items():
            table.add_row(
                prompt,
                name,
                f"{speed:.1f}",
                *(f"{ratios[pair]:.2f}x" if (pair := f"{name} / {other}") in ratios else "" for other in BASELINES),
                f"{accepted[name]:.2f}" if name in accepted else "",
                f"{outside[name]:.1%}" if name in outside else "",
                "yes" if of["identical_output"] else "NO",
                end_section=name == list(of["tokens_per_second"])[-1],
            )
    console.print(table)
    verify = figures["verify"]
    table = Table("nodes", *map(str, NODES), title="verify")
    table.add_row("ms", *(f"{verify['milliseconds'][nodes]:.1f}" for nodes in NODES))
    table.add_row("ratio", *(f"{verify['ratio_to_one_node'][nodes]:.2f}" for nodes in NODES))
    console.print(table)
    for name, cost in figures["draft"].items():
        console.print(
            f"{name}: {cost['milliseconds_per_pass']:.2f} ms a pass, {cost['share_of_a_step']:.1%} of a plain step"
        )
    memory = figures["memory"]
    console.print("memory, MB: " + ", ".join(f"{name[:-3]} {size:.0f}" for name, size in memory.items()))


if __name__ == "__main__":
    main()
