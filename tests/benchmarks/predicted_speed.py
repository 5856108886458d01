"""How near replay and a profile come to what decoding takes, by set and method; docs/profiles.md has the answer.

`PYTHONPATH=tests python tests/benchmarks/predicted_speed.py TRACE PROFILE METHOD... > predicted.json`

The profile must be of this machine, and of the trace's model and drafter; with `--other-machine` any is taken.

Policies that ask what passes take are told what the profile says, as in a replay; by default they would be told what is
measured while one decodes.

The texts of a trace are decoded again, all methods of one text after each other, all of it `--repetitions` times, and
the median of what each took is put beside what was predicted. Nothing else should run meanwhile.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

from talon_core.cli.costs import costs_for
from talon_core.decoding.decoder import Decoder
from talon_core.decoding.loading import decoder_for_model
from talon_core.models.loading import load_model
from talon_core.plugins.parts import Parts
from talon_core.plugins.registry import load_registry
from talon_core.trace.columns import TextTrace
from talon_core.trace.folder import Trace, read_trace
from talon_core.trace.methods import parse_methods
from talon_core.trace.replay import Replay

WARM_UP = 2


def seconds_of(decoder: Decoder, trace: Trace, text: TextTrace, limit: int | None = None) -> float:
    """What decoding a text of a trace takes; it must be the same text."""
    settings = trace["settings"]
    most = settings["max_new_tokens"]
    ids = text.ids[: text.prompt_tokens]
    decoder.engine.forget()  # a prompt that was read before would not be read again
    options = {"temperature": settings["temperature"], "seed": settings["seed"] + text.prompt}
    result = decoder.generate(ids, max_new_tokens=most if limit is None else limit, **options)
    assert limit is not None or result.token_ids == text.ids[text.prompt_tokens :].tolist()
    return result.stats.seconds


def compared(trace: Trace, profile: Any, specs: list[str], model: tuple[Any, Any], repetitions: int) -> dict[str, Any]:
    """For each method and set: new tokens, seconds as predicted and as measured, and by how much they differ."""
    replay, methods = Replay(trace, profile), parse_methods(specs, trace, load_registry())
    drafter = trace["drafter"]["spec"]
    decoders = {one.name: decoder_for_model(*model, Parts(drafter, one.policy, one.rule), profile) for one in methods}
    texts = [*trace]
    for decoder in decoders.values():
        for _ in range(WARM_UP):
            seconds_of(decoder, trace, texts[0], 32)
    measured: dict[tuple[int, str], list[float]] = defaultdict(list)
    for _ in range(repetitions):  # outermost, so that a busy minute is not all that is known of a text
        for number, text in enumerate(texts):
            for name, decoder in decoders.items():
                measured[number, name].append(seconds_of(decoder, trace, text))
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
    for number, text in enumerate(texts):
        for method in methods:
            found = replay.text(method, text)
            assert found.seconds is not None
            one = len(text.ids) - text.prompt_tokens, found.seconds, median(measured[number, method.name])
            for set_name in (text.set, "all"):
                sums[method.name, set_name] = [a + b for a, b in zip(sums[method.name, set_name], one, strict=True)]
    answer: dict[str, Any] = defaultdict(dict)
    for (method_name, set_name), (tokens, predicted, took) in sums.items():
        answer[method_name][set_name] = {
            "new_tokens": tokens,
            "predicted_tokens_per_second": tokens / predicted,
            "tokens_per_second": tokens / took,
            "error": took / predicted - 1,
        }
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("profile")
    parser.add_argument("methods", nargs="+")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--other-machine", action="store_true", help="the profile is meant, whatever it is of")
    given = parser.parse_args()
    from talon_core.models import MODELS, resolve

    model = load_model(resolve(given.model) if given.model in MODELS else given.model)
    trace = read_trace(given.trace)
    profile = costs_for(given.profile, [trace], given.other_machine)
    found = compared(trace, profile, given.methods, model, given.repetitions)
    print(json.dumps({"machine": profile.machine, "methods": found}, indent=2))


if __name__ == "__main__":
    main()
