"""Whether drafting while the target verifies pays on this machine.

    python tests/benchmarks/schedule_speed.py --prompts ./sets [--limit 1] [--layers-more 0] [--drafters SPEC ...]
                                              [--schedules SPEC ...] [--places PLACE ...] [--predict] [--out FILE]

Each drafter decodes the prompts with each schedule: `sync` with all threads for target and drafter in turn (2 + 0 on
two cores), the others in each place with one thread fewer for the target, and the drafter beside it (1 + 1). All ways
take turns on each prompt. Prints tokens a second with the ratio to `sync`, with the reading of the prompt and after it,
hits, and who waits: the shares of the time after the prompt in which no pass of the target runs, and in which the
drafter neither drafts nor prepares.

`--predict` simulates every way as well, and prints what was predicted beside what was measured. A trace of the same
prompts and two profiles of the same model are made for it, with all threads and with those that target and drafter have
beside each other. How much target and drafter slow each other down is timed as `talon profile beside` does it, with
trees of `--beside-nodes` and layers of `--beside-rows`; what a message takes is read off the text that warms up, and on
a GPU how much slower the target is. Neither counts the reading of prompts.

`--layers-more N` makes the target slower and leaves its text as it is: so many further layers, of random weights, add
nothing to its hidden states, as their last projections are 0. `draft-model:model=FILE` with the file of the same model
then drafts what the target says. Drafters that need its features have to be left out.
"""

import argparse
import copy
from pathlib import Path
from typing import Any

import torch
from figures_file import check_options, write_figures
from rich.console import Console
from rich.table import Table
from schedule_predicted import Predictions
from schedule_ways import measured, ways_of

from talon_core.bench.environment import describe_environment, describe_session
from talon_core.bench.prompts import read_sets
from talon_core.defaults import DEFAULT_MODEL
from talon_core.models.loading import load_model

DRAFTERS = ("ngram", "eagle3", "hybrid:of=eagle3+ngram")
SCHEDULES = ("cached:budget=8", "pearl")
PLACES = ("thread",)


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
    parser.add_argument("--predict", action="store_true", help="simulate every way, too, and compare")
    parser.add_argument("--contexts", type=int, nargs="+", default=(64, 256), metavar="N", help="of the profiles")
    parser.add_argument("--depth", type=int, default=12, metavar="N", help="of the trace's trees")
    parser.add_argument("--nodes", type=int, default=64, metavar="N", help="most of a layer of the trace's trees")
    parser.add_argument("--beside-nodes", type=int, default=5, metavar="N", help="of the trees beside a drafter")
    parser.add_argument("--beside-rows", type=int, default=4, metavar="N", help="of the layers beside a target")
    parser.add_argument("--out", type=Path, default=None, help="write the figures to this JSON file")
    options = parser.parse_args()
    check_options(parser, options, "repetitions")
    threads = torch.get_num_threads()
    model, tokenizer = load_model(options.model, dequantize=options.layers_more > 0)
    if options.layers_more:
        slow_down(model, options.layers_more)
    sets = read_sets(options.prompts, options.limit)
    texts = [prompt.turns[0] for one in sets for prompt in one.prompts]
    figures: dict[str, Any] = {"drafters": {}}
    for drafter in options.drafters:
        torch.set_num_threads(threads)
        ways = ways_of(model, tokenizer, options.model, drafter, options.policy, options.schedules, options.places)
        found = measured(drafter, ways, texts, options.max_new_tokens, options.repetitions)
        figures["drafters"][drafter] = found
        if options.predict:
            predicted = Predictions(model, tokenizer, drafter, sets, options).of(ways)
            for name, one in found["ways"].items():
                one["predicted"] = predicted[name]
                one["predicted"]["over_measured"] = predicted[name]["decoding"] / one["decoding"]
    torch.set_num_threads(threads)
    target = next(iter(ways.values())).decoder.target
    figures["manifest"] = {
        "layers_more": options.layers_more,
        "policy": options.policy,
        **describe_environment(model, tokenizer, target),
        **describe_session(),
    }
    _show(figures)
    write_figures(options.out, figures)


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


def _show(figures: dict[str, Any]) -> None:
    console = Console()
    console.print(", ".join(f"{name} {value}" for name, value in figures["manifest"].items()))
    predicted = any("predicted" in one for own in figures["drafters"].values() for one in own["ways"].values())
    more = ("predicted", "predicted hits", "predicted / measured tokens/s") if predicted else ()
    heads = "over sync", "95%", "after the prompt", "95%", "hits", "target waits", "drafter waits"
    table = Table("drafter", "schedule", "tokens/s", *heads, *more)
    for drafter, own in figures["drafters"].items():
        for name, one in own["ways"].items():
            begun = one["hits"] + one["misses"]
            speed = f"{one['tokens_per_second']:.1f}", *_ratio(one["over_sync"]), *_ratio(one["decoding_over_sync"])
            waits = f"{one['target_waits']:.0%}", f"{one['drafter_waits']:.0%}"
            table.add_row(drafter, name, *speed, f"{one['hits'] / begun:.0%}" if begun else "", *waits, *_beside(one))
        for where in own["texts_differ"]:
            console.print(f"another text than sync's: {drafter}, {where}")
    console.print(table)


def _ratio(over: dict[str, Any]) -> tuple[str, str]:
    between = "" if over["low"] is None else f"{over['low']:.2f} to {over['high']:.2f}"
    return f"{over['median']:.2f}", between


def _beside(measured: dict[str, Any]) -> tuple[str, ...]:
    """What was predicted, for the table."""
    if "predicted" not in measured:
        return ()
    one = measured["predicted"]
    begun = one["hits"] + one["misses"]
    return f"{one['over_sync']:.2f}", f"{one['hits'] / begun:.0%}" if begun else "", f"{one['over_measured']:.2f}"


if __name__ == "__main__":
    main()
