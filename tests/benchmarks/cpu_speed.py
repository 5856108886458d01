"""The figures of docs/performance.md on this machine, from one interleaved run: `make speed`.

Compares, prompt by prompt and repetition by repetition, transformers' own `generate`, plain decoding with TALON's
engine, and TALON with the n-gram drafter; times verification by tree size; and measures peak memory in a fresh process.
Prints a table and writes all of it, with versions, as JSON.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from talon_core.bench.environment import describe_environment, describe_session
from talon_core.cli.demo import PROMPT as DEMO_PROMPT
from talon_core.decoder import Decoder
from talon_core.loading import DEFAULT_MODEL, Parts, decoder_for_model, load_model
from talon_core.tree import TokenTree

PROMPTS = {
    "summary": DEMO_PROMPT,
    "code": "Rename the variable `total` to `amount` in this code, and write the whole code again:\n\n```python\n"
    "def total_price(items, tax):\n    total = 0\n    for item in items:\n        total += item.price * item.quantity\n"
    "    if total > 100:\n        total = total - 10\n    total = total * (1 + tax)\n    return total\n```\n",
    "story": "Write a short story about a lighthouse keeper who finds a message in a bottle.",
}
"""Two prompts whose answers repeat their input, and one whose answer does not."""

NODES = (1, 2, 4, 8, 16, 32)
CONTEXT = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--out", type=Path, default=None, help="write the figures to this JSON file")
    options = parser.parse_args()
    model, tokenizer = load_model(options.model)
    plain = decoder_for_model(model, tokenizer, Parts(policy="none"))
    fast = decoder_for_model(model, tokenizer, Parts(drafter="ngram"))
    figures = {
        "manifest": {
            "model": options.model,
            **describe_environment(model, tokenizer, fast.target),
            **describe_session(),
        },
        "decoding": _decoding(model, plain, fast, options.repetitions, options.max_new_tokens),
        "verify": _verify(fast, options.repetitions * 3),
        "memory": _memory(options.model, model),
    }
    _show(figures)
    if options.out is not None:
        options.out.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def _decoding(model: Any, plain: Decoder, fast: Decoder, repetitions: int, new: int) -> dict[str, Any]:
    """Tokens per second of each method, prompt by prompt, in turn."""

    def generate(prompt: str) -> dict[str, Any]:
        ids = torch.as_tensor(plain.frontend.request(prompt, {}).ids)[None]
        started = time.perf_counter()
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=False)
        seconds = time.perf_counter() - started
        tokens = out[0, ids.shape[1] :].tolist()
        return {"tokens": tokens, "tokens_per_second": len(tokens) / seconds}

    def ours(decoder: Decoder) -> Callable[[str], dict[str, Any]]:
        def run(prompt: str) -> dict[str, Any]:
            result = decoder.generate(prompt, max_new_tokens=new)
            stats = result.stats
            models = stats.prefill_seconds + stats.verify_seconds
            return {
                "tokens": result.token_ids,
                "tokens_per_second": stats.tokens_per_second,
                "mean_accepted_tokens": stats.mean_accepted_tokens,
                "outside_model": 1 - models / stats.seconds,
            }

        return run

    methods = {"transformers": generate, "plain": ours(plain), "talon": ours(fast)}
    runs: dict[str, dict[str, list[dict[str, Any]]]] = {prompt: {name: [] for name in methods} for prompt in PROMPTS}
    for repetition in track(range(-1, repetitions), "decoding", console=Console(stderr=True), transient=True):
        for prompt, text in PROMPTS.items():
            for name, method in methods.items():
                run = method(text)
                if repetition >= 0:  # the first round warms up
                    runs[prompt][name].append(run)
    return {prompt: _summary(of) for prompt, of in runs.items()}


def _summary(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    speed = {name: [run["tokens_per_second"] for run in of] for name, of in runs.items()}
    ratios = {
        f"{one} / {other}": statistics.median(a / b for a, b in zip(speed[one], speed[other], strict=True))
        for one, other in (("plain", "transformers"), ("talon", "plain"), ("talon", "transformers"))
    }
    outputs = {tuple(run["tokens"]) for of in runs.values() for run in of}
    return {
        "tokens_per_second": {name: statistics.median(values) for name, values in speed.items()},
        "ratios": ratios,
        "mean_accepted_tokens": runs["talon"][0]["mean_accepted_tokens"],
        "outside_model": {
            name: statistics.median(run["outside_model"] for run in runs[name]) for name in ("plain", "talon")
        },
        "new_tokens": len(runs["talon"][0]["tokens"]),
        "identical_output": len(outputs) == 1,
    }


def _verify(decoder: Decoder, repetitions: int) -> dict[str, Any]:
    """Milliseconds of one verification by nodes, over a context of 256 tokens, sizes in turn."""
    rng = np.random.default_rng(0)
    target: Any = decoder.target
    times: dict[int, list[float]] = {nodes: [] for nodes in NODES}
    with target.session():
        target.prefill([rng.integers(0, target.vocab_size, CONTEXT + 1)], [CONTEXT + 64])
        for repetition in range(repetitions + 2):
            for nodes in NODES:
                parents = np.array([-1, *(rng.integers(0, max(1, node), 1)[0] for node in range(1, nodes))])
                tree = TokenTree(rng.integers(0, target.vocab_size, nodes), parents, np.zeros(nodes))
                started = time.perf_counter()
                target.verify([tree])
                if repetition >= 2:
                    times[nodes].append(1e3 * (time.perf_counter() - started))
                target.runner.cache.staged = [0]  # nothing is committed: the next tree starts where this one did
    medians = {nodes: statistics.median(values) for nodes, values in times.items()}
    ratios = {
        nodes: statistics.median(a / b for a, b in zip(values, times[1], strict=True))
        for nodes, values in times.items()
    }
    return {"milliseconds": medians, "ratio_to_one_node": ratios}


def _memory(name: str, model: Any) -> dict[str, float]:
    """Peak memory of a whole `talon generate` process, in MB, and the limit of three times the weights + 700 MB."""
    weights = sum(parameter.nbytes for parameter in model.parameters()) / 1e6
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    command = [str(Path(sys.executable).parent / "talon"), "generate", PROMPTS["summary"], "--model", name, "--json"]
    subprocess.run(command, check=True, capture_output=True)
    peak = max(before, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) / 1e3
    return {"weights_mb": weights, "peak_mb": peak, "limit_mb": 3 * weights + 700}


def _show(figures: dict[str, Any]) -> None:
    console = Console()
    manifest = figures["manifest"]
    console.print(", ".join(f"{name} {value}" for name, value in manifest.items()))
    table = Table(
        "prompt", "generate", "plain", "talon", "plain/generate", "talon/plain", "MAT", "outside", "identical"
    )
    for prompt, of in figures["decoding"].items():
        speed, ratios = of["tokens_per_second"], of["ratios"]
        table.add_row(
            prompt,
            *(f"{speed[name]:.1f}" for name in ("transformers", "plain", "talon")),
            f"{ratios['plain / transformers']:.2f}x",
            f"{ratios['talon / plain']:.2f}x",
            f"{of['mean_accepted_tokens']:.2f}",
            f"{of['outside_model']['talon']:.1%}",
            "yes" if of["identical_output"] else "NO",
        )
    console.print(table)
    verify = figures["verify"]
    table = Table("nodes", *map(str, NODES), title="verify")
    table.add_row("ms", *(f"{verify['milliseconds'][nodes]:.1f}" for nodes in NODES))
    table.add_row("ratio", *(f"{verify['ratio_to_one_node'][nodes]:.2f}" for nodes in NODES))
    console.print(table)
    memory = figures["memory"]
    console.print("memory, MB: " + ", ".join(f"{name[:-3]} {size:.0f}" for name, size in memory.items()))


if __name__ == "__main__":
    main()
