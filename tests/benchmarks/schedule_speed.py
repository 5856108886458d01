"""Whether drafting while the target verifies pays on this machine.

    python tests/benchmarks/schedule_speed.py --prompts ./sets [--limit 1] [--layers-more 0] [--drafters SPEC ...]
                                              [--schedules SPEC ...] [--places PLACE ...] [--out FILE]

Each drafter decodes the prompts with each schedule: `sync` with all threads for target and drafter in turn (2 + 0 on
two cores), the others in each place with one thread fewer for the target, and the drafter beside it (1 + 1). All ways
take turns on each prompt. Prints tokens a second with the ratio to `sync`, hits, and seconds that were waited.

`--layers-more N` makes the target slower and leaves its text as it is: so many further layers, of random weights, add
nothing to its hidden states, as their last projections are 0. `draft-model:model=FILE` with the file of the same model
then drafts what the target says. Drafters that need its features have to be left out.
"""

import argparse
import copy
import json
import statistics
from pathlib import Path
from typing import Any

import attrs
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from talon_core.bench.bootstrap import median_with_interval
from talon_core.bench.environment import describe_environment, describe_session
from talon_core.bench.prompts import read_sets
from talon_core.decoding.decoder import Decoder
from talon_core.decoding.loading import decoder_for_model
from talon_core.defaults import DEFAULT_MODEL
from talon_core.models.loading import load_model
from talon_core.plugins.parts import Parts, resolve
from talon_core.plugins.registry import load_registry

SYNC = "sync"
DRAFTERS = ("ngram", "eagle3", "hybrid:of=eagle3+ngram")
SCHEDULES = ("cached:budget=8", "pearl")
PLACES = ("thread",)
TOLD = ("hits", "misses", "rounds", "waited")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--prompts", type=Path, default=Path(__file__).parent.parent / "prompts.jsonl")
    parser.add_argument("--limit", type=int, default=1, help="prompts of each set")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--drafters", nargs="+", default=DRAFTERS, metavar="SPEC")
    parser.add_argument("--policy", default="chain:length=4")
    parser.add_argument("--schedules", nargs="+", default=SCHEDULES, metavar="SPEC", help="besides sync")
    parser.add_argument("--places", nargs="+", default=PLACES, metavar="PLACE", help="as --draft-on takes them")
    parser.add_argument("--layers-more", type=int, default=0, metavar="N", help="make the target slower")
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--out", type=Path, default=None, help="write the figures to this JSON file")
    options = parser.parse_args()
    threads = torch.get_num_threads()
    model, tokenizer = load_model(options.model, dequantize=options.layers_more > 0)
    if options.layers_more:
        slow_down(model, options.layers_more)
    texts = [prompt.turns[0] for one in read_sets(options.prompts, options.limit) for prompt in one.prompts]
    figures: dict[str, Any] = {"drafters": {}}
    for drafter in options.drafters:
        ways: dict[str, tuple[Decoder, int]] = {}
        for name, schedule, place in _ways(options):
            parts = Parts(drafter, options.policy, schedule=schedule, draft_on=place)
            decoder = decoder_for_model(model, tokenizer, resolve(parts, load_registry()), None, options.model)
            ways[name] = decoder, threads if schedule == SYNC else max(threads - 1, 1)
        figures["drafters"][drafter] = _measured(drafter, ways, texts, options)
    target = next(iter(ways.values()))[0].target
    figures["manifest"] = {
        "layers_more": options.layers_more,
        "policy": options.policy,
        **describe_environment(model, tokenizer, target),
        **describe_session(),
    }
    _show(figures)
    if options.out is not None:
        options.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def _ways(options: argparse.Namespace) -> list[tuple[str, str, str]]:
    """Names, schedules and places."""
    others = [(f"{one} on {place}", one, place) for one in options.schedules for place in options.places]
    return [(SYNC, SYNC, "thread"), *others]


def slow_down(model: Any, more: int) -> None:
    """Append layers that take their time and change nothing."""
    layers = model.model.layers
    torch.manual_seed(0)
    for _ in range(more):
        layer = copy.deepcopy(layers[-1])
        for name, weight in layer.named_parameters():
            if weight.dim() > 1:
                with torch.no_grad():
                    weight.normal_(0.0, 0.02)
                    if name.endswith(("o_proj.weight", "down_proj.weight")):
                        weight.zero_()
        layer.self_attn.layer_idx, layer.self_attn.config = len(layers), layers[0].self_attn.config
        layers.append(layer)
    for config in {id(one): one for one in (model.config, model.model.config)}.values():
        config.num_hidden_layers = len(layers)
        if getattr(config, "layer_types", None):
            config.layer_types = [*config.layer_types, *[config.layer_types[-1]] * more]


def _measured(drafter: str, ways: dict[str, tuple[Decoder, int]], texts: list[str], options: Any) -> dict[str, Any]:
    """Every way on every prompt, in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    told: dict[str, dict[str, float]] = {
        name: dict.fromkeys(("hits", "misses", "waited", "rounds"), 0) for name in ways
    }
    wrong: list[str] = []
    for decoder, threads in ways.values():  # passes are recorded, costs become known
        torch.set_num_threads(threads)
        decoder.generate(texts[0], max_new_tokens=16)
    for text in track(texts * options.repetitions, drafter, console=Console(stderr=True), transient=True):
        first: list[int] | None = None
        for name, (decoder, threads) in ways.items():
            torch.set_num_threads(threads)
            result = decoder.generate(text, max_new_tokens=options.max_new_tokens)
            first = result.token_ids if first is None else first
            if result.token_ids != first:
                wrong.append(f"{name}: {text[:40]!r}")
            stats = result.stats
            seconds[name].append(stats.seconds / max(stats.new_tokens, 1))
            told[name]["hits"] += stats.hits
            told[name]["misses"] += stats.misses
            told[name]["rounds"] += stats.rounds
            told[name]["waited"] += sum(
                span.seconds for one in result.rounds for span in one.spans if span.part == "wait"
            )
    sync = seconds[SYNC]
    figures = {
        name: {
            "tokens_per_second": 1 / statistics.mean(own),
            "over_sync": attrs.asdict(median_with_interval([a / b for a, b in zip(sync, own, strict=True)])),
            **told[name],
        }
        for name, own in seconds.items()
    }
    return {"ways": figures, "texts_differ": wrong}


def _show(figures: dict[str, Any]) -> None:
    console = Console()
    console.print(", ".join(f"{name} {value}" for name, value in figures["manifest"].items()))
    table = Table("drafter", "schedule", "tokens/s", "over sync", "95%", "hits", "waited, s")
    for drafter, own in figures["drafters"].items():
        for name, one in own["ways"].items():
            over, begun = one["over_sync"], one["hits"] + one["misses"]
            hits = f"{one['hits'] / begun:.0%}" if begun else ""
            between = "" if over["low"] is None else f"{over['low']:.2f} to {over['high']:.2f}"
            speed = f"{one['tokens_per_second']:.1f}", f"{over['median']:.2f}", between
            table.add_row(drafter, name, *speed, hits, f"{one['waited']:.2f}")
        for where in own["texts_differ"]:
            console.print(f"another text than sync's: {drafter}, {where}")
    console.print(table)


if __name__ == "__main__":
    main()
