"""How much sooner a replay says what a method does than decoding, and whether it says the same.

    python tests/benchmarks/trace_speed.py [--prompts PATH] [--limit N] [--drafter eagle3] [--trace FOLDER] [--out FILE]
                                           [--profile NAME|FILE] [--other-machine] [--replays N] [--temperature T]
                                           [--laws] [--nodes N] [--depth N] [METHOD ...]

Records a trace, decodes its prompts with each method, replays the trace with the same, and prints the seconds of both,
in medians over repetitions. In each of them a trace is replayed seven times (`--replays`), once after each seventh of
the texts, so that a machine which is faster at one time than at another is so for both. Decoding has all cores as
threads, a replay all cores as processes. With a profile, policies that ask what passes take are told the same in both,
and a replay leaves out what they take themselves; without one, decoding measures it and a replay knows nothing, so that
their trees differ.

Ends with status 1 if a method's target passes are not the same in both, where the trace answers all that was asked.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import attrs
from figures_file import check_options, write_figures
from rich.console import Console
from rich.progress import track
from rich.table import Table

from talon_core.bench.environment import describe_environment, describe_session
from talon_core.bench.prompts import read_sets
from talon_core.bench.timed import busy_after
from talon_core.cli.costs import costs_for
from talon_core.decoding.decoder import Decoder
from talon_core.decoding.loading import decoder_for_model
from talon_core.defaults import DEFAULT_MODEL, NONE
from talon_core.models.loading import load_model
from talon_core.plugins.parts import Parts, built, choose_drafter
from talon_core.plugins.registry import load_registry
from talon_core.trace.columns import TextTrace
from talon_core.trace.folder import Trace
from talon_core.trace.record import Recorded, Recorder, TracePlan

REPLAYS = 7
"""Of each method in a repetition: one takes a fraction of a second, and what else the machine does shows."""

USUAL = attrs.fields(TracePlan)

METHODS = ("none", "chain:length=4", "talon:budget=16", "talon", "eagle2:budget=32", "eagle2")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("methods", nargs="*", default=METHODS, metavar="METHOD", help="a policy, as talon:budget=16")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--drafter", default=None)
    parser.add_argument("--prompts", type=Path, default=Path(__file__).parent.parent / "prompts.jsonl")
    parser.add_argument("--limit", type=int, default=None, help="only the first prompts of each set")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--laws", action="store_true", help="record whole laws, for policies and rules that need them")
    parser.add_argument("--nodes", type=int, default=USUAL.nodes.default, help="of each layer of the recorded trees")
    parser.add_argument("--depth", type=int, default=USUAL.depth.default, help="layers of the recorded trees")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--replays", type=int, default=REPLAYS, help="of each method in a repetition")
    parser.add_argument("--trace", type=Path, default=None, help="keep the trace here; one that is there is taken")
    parser.add_argument("--profile", default=None, metavar="NAME|FILE", help="what policies are told that passes take")
    parser.add_argument("--other-machine", action="store_true", help="the profile is meant, whatever it is of")
    parser.add_argument("--out", type=Path, default=None, help="write the figures to this JSON file")
    options = parser.parse_args()
    check_options(parser, options, "repetitions", "replays")
    registry = load_registry()
    model, tokenizer = load_model(options.model)
    drafter = options.drafter or choose_drafter(registry, model)
    sets = tuple(read_sets(options.prompts, options.limit))
    told = {name: getattr(options, name) for name in ("max_new_tokens", "temperature", "nodes", "depth", "laws")}
    recorder = Recorder(
        TracePlan(options.model, sets, **told), model, tokenizer, built(registry, "drafter", drafter), drafter
    )
    parts = {one: Parts(policy=one) if one == NONE else Parts(drafter, one) for one in options.methods}
    with tempfile.TemporaryDirectory() as folder:
        recorded = recorder.run(options.trace or Path(folder, "trace"))
        meant = options.profile, [recorded.trace], options.other_machine
        costs = None if options.profile is None else costs_for(*meant)
        decoders = {one: decoder_for_model(model, tokenizer, own, costs) for one, own in parts.items()}
        target = next(iter(decoders.values())).target
        figures = {
            "manifest": {"model": options.model, "drafter": drafter, **describe_environment(model, tokenizer, target)},
            "session": describe_session(),
            "recording": _recording(recorded),
            "methods": {
                one: _measured(one, decoder, recorded.trace, options.repetitions, options.profile, options.replays)
                for one, decoder in decoders.items()
            },
        }
        figures["together"] = _together(figures["methods"], recorded.trace, options.profile, options.replays)
    _show(figures)
    write_figures(options.out, figures)
    wrong = [name for name, one in figures["methods"].items() if not one["outside"] and one["same_passes"] is False]
    if wrong:
        sys.exit(f"decoding and replay differ with {', '.join(wrong)}")


def _recording(recorded: Recorded) -> dict[str, float]:
    """What recording took; nothing where everything was there."""
    if not recorded.texts:
        return {}
    return {
        "texts": recorded.texts,
        "positions": recorded.positions,
        "bytes_a_position": recorded.size / recorded.positions,
        "positions_a_second": recorded.positions / recorded.seconds,
    }


def _measured(
    method: str, decoder: Decoder, trace: Trace, repetitions: int, profile: str | None, replays: int
) -> dict[str, Any]:
    """One method in both ways, in turn."""
    seconds: dict[str, list[float]] = {"decoding": [], "replay": []}
    names = trace.texts()
    for _ in range(repetitions):
        passes, decoding, answers = 0, 0.0, []
        for part in track(range(replays), method, console=Console(stderr=True), transient=True):
            started = time.perf_counter()
            for text in (trace.text(*name) for name in names[part::replays]):
                prompt = text.ids[: text.prompt_tokens]
                decoder.engine.forget()  # a replay takes each text for the first
                passes += decoder.generate(prompt, **wanted(trace, text)).stats.target_passes
            decoding += time.perf_counter() - started
            answers.append(_replayed([method], trace, profile))
        seconds["decoding"].append(decoding)
        seconds["replay"].append(statistics.median(answer["seconds"] for answer in answers))
    (tried,) = answers[-1]["methods"]
    return {
        "decoding_seconds": statistics.median(seconds["decoding"]),
        "replay_seconds": statistics.median(seconds["replay"]),
        "ratio": statistics.median(a / b for a, b in zip(*seconds.values(), strict=True)),
        "mean_accepted_tokens": tried["mean_accepted_tokens"],
        "outside": tried["outside"],
        "same_passes": tried["target_passes"] == passes if follows(decoder, trace) else None,
    }


def _together(methods: dict[str, Any], trace: Trace, profile: str | None, replays: int) -> dict[str, Any]:
    """All methods by one command, as one tries them."""
    decoding = sum(one["decoding_seconds"] for one in methods.values())
    replay = statistics.median(_replayed([*methods], trace, profile)["seconds"] for _ in range(replays))
    return {"decoding_seconds": decoding, "replay_seconds": replay, "ratio": decoding / replay}


def _replayed(methods: list[str], trace: Trace, profile: str | None = None) -> dict[str, Any]:
    """What the command says, with the seconds that it took, but for the interpreter's start: torch is loaded here."""
    busy_after()  # this process has decoded, and its threads go on for a while, waiting for more
    command = [sys.executable, "-m", "talon_core", "trace", "replay", str(trace.folder), *methods, "--json"]
    command += [] if profile is None else ["--profile", profile, "--other-machine", "--untimed"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def follows(decoder: Decoder, trace: Trace) -> bool:
    """Whether decoding writes the recorded text: a policy that draws from laws leads to another one of the same law."""
    policy = decoder.policy
    return not trace["settings"]["temperature"] or policy is None or policy.children == "deterministic"


def wanted(trace: Trace, text: TextTrace) -> dict[str, Any]:
    """With what a text was recorded."""
    of = trace["settings"]
    return {**{name: of[name] for name in ("max_new_tokens", "temperature")}, "seed": of["seed"] + text.prompt}


def _show(figures: dict[str, Any]) -> None:
    console = Console()
    console.print(", ".join(f"{name} {value}" for name, value in figures["manifest"].items()))
    console.print(", ".join(f"{name} {value:.1f}" for name, value in figures["recording"].items()))
    table = Table("method", "MAT", "decoding, s", "replay, s", "ratio", "outside", "the same passes")
    for name, of in figures["methods"].items():
        times = f"{of['decoding_seconds']:.2f}", f"{of['replay_seconds']:.3f}", f"{of['ratio']:.0f}"
        said = str(of["outside"]), {True: "yes", False: "no", None: "another text"}[of["same_passes"]]
        table.add_row(name, f"{of['mean_accepted_tokens']:.3f}", *times, *said)
    of = figures["together"]
    times = f"{of['decoding_seconds']:.2f}", f"{of['replay_seconds']:.3f}", f"{of['ratio']:.0f}"
    table.add_row("all, by one replay", "", *times, "", "")
    console.print(table)


if __name__ == "__main__":
    main()
