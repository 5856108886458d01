"""How fast prompts are read, beside llama.cpp on the same weights: blocks of a GGUF file, and float32.

    python tests/benchmarks/prompt_speed.py [--model NAME] [--threads N] [--tokens N] [--repetitions N] [--out FILE]

A prompt is read and one token decoded, by each in turn, in one run; times are those of the whole call. Prints medians,
with the 20th and 80th percentile, in tokens a second. Needs the extra `llama-cpp`.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from figures_file import check_options, write_figures
from rich.console import Console
from rich.progress import track
from rich.table import Table

from talon_core.bench.environment import describe_environment, describe_session
from talon_core.bench.peer_process import PeerProcess, wanted
from talon_core.bench.timed import busy_after
from talon_core.decoding.decoder import Decoder
from talon_core.decoding.loading import decoder_for_model
from talon_core.defaults import DEFAULT_MODEL, NONE
from talon_core.models.loading import load_model
from talon_core.peers import LlamaCpp
from talon_core.plugins.parts import Parts

TOKENS = (128, 512)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS)
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--out", type=Path, default=None, help="write the figures to this JSON file")
    options = parser.parse_args()
    check_options(parser, options, "repetitions")
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    why = LlamaCpp().unavailable()
    if why is not None:
        parser.error(f"llama.cpp cannot be measured: {why}")
    decoders = {"blocks": _decoder(options.model, False), "float32": _decoder(options.model, True)}
    room = max(options.tokens) + 2
    processes = {
        name: PeerProcess(peer, _opening(name, peer, options.model, decoders[name], room))
        for name, peer in (("blocks", LlamaCpp()), ("float32", LlamaCpp(widened=True)))
    }
    ways: dict[str, Callable[[Any], float]] = {}
    for name, decoder in decoders.items():
        ways[f"TALON, {name}"] = partial(_ours, decoder)
        ways[f"llama.cpp, {name}"] = partial(_theirs, processes[name], decoder)
    try:
        rows = [_measured(ways, tokens, options.repetitions, decoders["blocks"]) for tokens in options.tokens]
    finally:
        for process in processes.values():
            process.close()
    target: Any = decoders["blocks"].target
    figures = {
        "manifest": describe_environment(target.model, target.tokenizer, target),
        "session": describe_session(),
        "threads": torch.get_num_threads(),
        "peers": {name: process.described for name, process in processes.items()},
        "tokens_a_second": rows,
    }
    _show(figures)
    write_figures(options.out, figures)


def _decoder(model: str, dequantize: bool) -> Decoder:
    loaded, tokenizer = load_model(model, dequantize=dequantize)
    return decoder_for_model(loaded, tokenizer, Parts(policy=NONE))


def _opening(name: str, peer: LlamaCpp, source: str, decoder: Decoder, room: int) -> Any:
    target: Any = decoder.target
    return wanted(
        name,
        peer,
        target.model,
        source=source,
        trust_remote_code=False,
        eos=frozenset(),
        room=room,
        threads=torch.get_num_threads(),
        vocab_size=target.vocab_size,
    )


def _ours(decoder: Decoder, ids: Any) -> float:
    busy_after()
    begun = time.perf_counter()
    decoder.generate(ids, max_new_tokens=1)
    return time.perf_counter() - begun


def _theirs(process: PeerProcess, decoder: Decoder, ids: Any) -> float:
    request = decoder.frontend.request(ids, {"max_new_tokens": 1})
    return process.decode(request)[1]


def _measured(ways: dict[str, Callable[[Any], float]], tokens: int, repetitions: int, one: Decoder) -> dict[str, Any]:
    """Tokens a second of prompts that differ each time, each way in turn."""
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for turn in track(range(repetitions + 1), f"{tokens} tokens", console=Console(stderr=True), transient=True):
        ids = np.random.default_rng(turn).integers(100, one.target.vocab_size, tokens)
        for way, timed in ways.items():
            took = timed(ids)
            if turn:  # the first time is warming up
                seconds[way].append(took)
    return {"tokens": tokens, **{way: _spread([tokens / each for each in taken]) for way, taken in seconds.items()}}


def _spread(values: list[float]) -> list[float]:
    """Median, 20th and 80th percentile."""
    return [statistics.median(values), *np.percentile(values, [20, 80]).tolist()]


def _show(figures: dict[str, Any]) -> None:
    console = Console()
    console.print(", ".join(f"{name} {value}" for name, value in figures["manifest"].items()))
    console.print(f"{figures['threads']} threads")
    ways = [way for way in figures["tokens_a_second"][0] if way != "tokens"]
    table = Table("tokens", *ways)
    for row in figures["tokens_a_second"]:
        table.add_row(str(row["tokens"]), *("{:.0f} ({:.0f} to {:.0f})".format(*row[way]) for way in ways))
    console.print(table)


if __name__ == "__main__":
    main()
