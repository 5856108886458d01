"""What slots bring over fixed batches, where answers are of all lengths.

    python tests/benchmarks/batch_speed.py [--prompts PATH] [--policy talon:budget=8] [--slots 8] [--out FILE] [WAY ...]

Thirty-two prompts, whose answers may have 8, 16, ..., 256 tokens in a shuffled order, are decoded in turn, so many at a
time, in these ways, of which each begins a repetition in turn: `fixed`, in fixed batches, of which the next begins when
all texts of the one before are over; `slots`, which the next prompt takes as soon as a text is over; `best-rate`, in
slots with only the nodes that are worth their time; `shared` and `equal`, in slots with four nodes a sequence, which go
to the likeliest of all, or to each alike; and `plain` decoding in slots. Prints the tokens a second of each way, in
medians over repetitions, and the ratio to the first that was named. On a machine that does other work besides,
`--processor-time` counts the seconds of this process alone, which is fair with one thread (`OMP_NUM_THREADS=1`).
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from figures_file import check_options, write_figures
from rich.console import Console
from rich.progress import track
from rich.table import Table

from talon_core import Allocator, BestRate, EqualBudgets, Request, Result, SharedBudget
from talon_core.bench.environment import describe_environment, describe_session
from talon_core.bench.prompts import read_sets
from talon_core.decoding.decoder import Decoder
from talon_core.decoding.loading import decoder_for_model
from talon_core.defaults import AUTO, DEFAULT_MODEL, DEFAULT_POLICY, NONE
from talon_core.engine.bounds import Bounds
from talon_core.models.loading import load_model
from talon_core.plugins.parts import Parts

SEQUENCES, SLOTS, LONGEST = 32, 8, 256

EACH = 4
"""Nodes a sequence where a pass has a budget, the root included."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("ways", nargs="*", metavar="WAY", help="; ".join(WAYS))
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--drafter", default=AUTO)
    parser.add_argument("--policy", default=DEFAULT_POLICY, help="draws the trees; the default one may draft nothing")
    parser.add_argument("--prompts", type=Path, default=Path(__file__).parent.parent / "prompts.jsonl")
    parser.add_argument("--slots", type=int, default=SLOTS, help="sequences at a time")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--longest", type=int, default=LONGEST, help="tokens of the longest answer")
    parser.add_argument("--processor-time", action="store_true", help="count only what this process has computed")
    parser.add_argument("--out", type=Path, default=None, help="write the figures to this JSON file")
    options = parser.parse_args()
    check_options(parser, options, "repetitions")
    named = options.ways or [*WAYS]
    if unknown := [name for name in named if name not in WAYS]:
        parser.error(f"there is no way {unknown[0]!r}; there are {', '.join(WAYS)}")
    if not 1 <= options.slots <= SEQUENCES:
        parser.error(f"--slots is {options.slots}; it must be from 1 to {SEQUENCES}, as many as there are prompts")
    if options.longest < SEQUENCES:
        parser.error(f"--longest is {options.longest}; it must be at least {SEQUENCES}, one token for each sequence")
    model, tokenizer = load_model(options.model)
    again = Bounds(keep=False)  # prompts come several times, and each time they are read
    try:
        drafting = decoder_for_model(model, tokenizer, Parts(options.drafter, options.policy), bounds=again)
    except (ValueError, LookupError) as error:
        parser.error(str(error))
    plain = decoder_for_model(model, tokenizer, Parts(policy=NONE), bounds=again)
    clock = time.process_time if options.processor_time else time.perf_counter
    drafting.engine.now = plain.engine.now = clock
    requests = _requests(drafting, options.prompts, options.longest)
    ways = {
        name: partial(WAYS[name], plain if name == "plain" else drafting, requests, options.slots) for name in named
    }
    figures = {
        "manifest": {
            "model": options.model,
            "drafter": options.drafter,
            "policy": options.policy,
            "slots": options.slots,
            "longest": options.longest,
            "clock": clock.__name__,
            **describe_environment(model, tokenizer, plain.target),
            **describe_session(),
        },
        "ways": _timed(ways, options.repetitions, clock),
    }
    _show(figures)
    write_figures(options.out, figures)


def _requests(decoder: Decoder, path: Path, longest: int) -> list[Request]:
    sets = [[prompt.turns[0] for prompt in one.prompts] for one in read_sets(path)]
    texts = [one[at] for at in range(max(map(len, sets))) for one in sets if at < len(one)]  # a prompt of each set
    lengths = np.random.default_rng(0).permutation(np.linspace(longest / SEQUENCES, longest, SEQUENCES).astype(int))
    made = []
    for at, length in enumerate(lengths.tolist()):
        made.append(decoder.frontend.request(texts[at % len(texts)], {"max_new_tokens": length}))
    return made


def _fixed(decoder: Decoder, requests: Sequence[Request], slots: int) -> list[Result]:
    decoder.engine.allocator = None
    batches = [requests[at : at + slots] for at in range(0, len(requests), slots)]
    return [result for batch in batches for result in decoder.run_all(batch)]


def _in_slots(
    decoder: Decoder, requests: Sequence[Request], slots: int, allocator: Callable[[int], Allocator | None]
) -> list[Result]:
    decoder.engine.allocator = allocator(EACH * slots)
    batch = decoder.batch(requests, slots)
    batch.finish()
    return batch.results()


WAYS: dict[str, Callable[[Decoder, Sequence[Request], int], list[Result]]] = {
    "fixed": _fixed,
    "slots": partial(_in_slots, allocator=lambda _: None),
    "best-rate": partial(_in_slots, allocator=lambda _: BestRate()),
    "shared": partial(_in_slots, allocator=SharedBudget),
    "equal": partial(_in_slots, allocator=EqualBudgets),
    "plain": partial(_in_slots, allocator=lambda _: None),
}


def _timed(
    ways: dict[str, Callable[[], list[Result]]], repetitions: int, clock: Callable[[], float]
) -> dict[str, dict[str, float]]:
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    nodes: dict[str, float] = {}
    texts = set()
    for repetition in track(range(-1, repetitions), "decoding", console=Console(stderr=True), transient=True):
        names = [*ways]
        first_way = repetition % len(names)  # what else the machine does comes and goes
        for name in names[first_way:] + names[:first_way]:
            way = ways[name]
            started = clock()
            results = way()
            seconds = clock() - started
            texts.add(tuple(tuple(result.token_ids) for result in results))
            rounds = [round_ for result in results for round_ in result.rounds]
            nodes[name] = sum(len(round_.tree) for round_ in rounds) / len(rounds)
            if repetition >= 0:  # the first round warms up
                speeds[name].append(sum(len(result.token_ids) for result in results) / seconds)
    if len(texts) != 1:
        raise SystemExit("the ways gave different texts")
    first = next(iter(speeds.values()))
    return {
        name: {
            "tokens_per_second": statistics.median(of),
            "ratio": statistics.median(a / b for a, b in zip(of, first, strict=True)),
            "nodes": nodes[name],
        }
        for name, of in speeds.items()
    }


def _show(figures: dict[str, dict[str, dict[str, float]]]) -> None:
    console = Console()
    console.print(", ".join(f"{name} {value}" for name, value in figures["manifest"].items()))
    table = Table("way", "tokens/s", f"over {next(iter(figures['ways']))}", "nodes a tree")
    for name, of in figures["ways"].items():
        table.add_row(name, f"{of['tokens_per_second']:.1f}", f"{of['ratio']:.2f}x", f"{of['nodes']:.1f}")
    console.print(table)


if __name__ == "__main__":
    main()
