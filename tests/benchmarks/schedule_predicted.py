"""What ways of decoding would take by the simulation of schedules, from a trace and profiles of the very same run."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from schedule_ways import Way, on_cpu

from talon_core.bench.prompts import PromptSet
from talon_core.costs import Costs
from talon_core.plugins.parts import built
from talon_core.plugins.registry import load_registry
from talon_core.profiles.beside import BesidePlan, measured_beside
from talon_core.profiles.contention import Contention, Took, slowed
from talon_core.profiles.measure import Measuring, ProfilePlan
from talon_core.profiles.profile import Profile
from talon_core.rounds import Round
from talon_core.trace.machines import Machines
from talon_core.trace.methods import parse_methods
from talon_core.trace.record import Recorder, TracePlan
from talon_core.trace.schedules import Case, promises


class Predictions:
    """Simulates ways of decoding with a drafter, from a trace and profiles that it makes.

    Args:
        model: a transformers causal LM.
        tokenizer: its tokenizer.
        drafter: its spec.
        sets: the prompts.
        options: of the command.
    """

    def __init__(self, model: Any, tokenizer: Any, drafter: str, sets: Sequence[PromptSet], options: Any) -> None:
        self._model, self._tokenizer, self._drafter, self._options = model, tokenizer, drafter, options
        self._profiles: dict[int, Profile] = {}
        self._contentions: dict[str, Contention] = {}
        tokens = options.max_new_tokens
        self._plan = TracePlan(
            options.model, tuple(sets), max_new_tokens=tokens, depth=options.depth, nodes=options.nodes
        )

    def of(self, ways: dict[str, Way]) -> dict[str, dict[str, Any]]:
        """What each way would take, by its name."""
        registry = load_registry()
        with TemporaryDirectory() as folder:
            spec = built(registry, "drafter", self._drafter).for_model(self._model)
            recorder = Recorder(self._plan, self._model, self._tokenizer, spec, self._drafter)
            trace = recorder.run(Path(folder) / "trace").trace
            (method,) = parse_methods([self._options.policy], trace, registry)
            wanted = [Case(method, name, way.schedule, self._machines(way)) for name, way in ways.items()]
            found = promises(trace, wanted).found
        return {
            one.case.name: {
                "decoding": one.stats.new_tokens / (one.stats.seconds - one.stats.prefill_seconds),
                "over_sync": one.speedup,
                "hits": one.stats.hits,
                "misses": one.stats.misses,
                "outside": one.unanswered.drafted,
                "shared": one.case.machines.shared,
                "drafter_shared": one.case.machines.drafter_shared,
                "transfer": one.case.machines.transfer,
            }
            for one in found
        }

    def _machines(self, way: Way) -> Machines:
        if way.schedule is None:
            return Machines(self._profile(way.threads))
        target, drafter = self._profile(way.of_target), self._profile(way.of_drafter)
        transfer = 0.0 if way.place is None else message(way.warm)
        if not on_cpu(way.decoder):  # there neither is timed beside the other
            return Machines(target, drafter, transfer, slower(way.warm, target))
        both = self._contention(way)
        return Machines(target, drafter, transfer, both.target, both.drafter)

    def _contention(self, way: Way) -> Contention:
        """What both cost each other where a way drafts, with the threads that they have there."""
        if way.draft_on not in self._contentions:
            decoder, options = way.decoder, self._options
            assert decoder.drafter is not None
            decoder.engine.forget()  # the drafter knows no text, so that one of ours can take a slot
            way.begin()
            plan = BesidePlan(options.beside_nodes, options.beside_rows)
            self._contentions[way.draft_on] = measured_beside(
                decoder.target, decoder.rule, decoder.drafter, way.of_target, way.draft_on, plan
            )
        return self._contentions[way.draft_on]

    def _profile(self, threads: int) -> Profile:
        """Of passes with so many threads."""
        if threads not in self._profiles:
            torch.set_num_threads(threads)
            plan = ProfilePlan(contexts=tuple(self._options.contexts), batches=(1,), repetitions=3)
            measuring = Measuring(plan, self._model, self._tokenizer, self._drafter, self._options.model)
            self._profiles[threads] = measuring.run(f"threads-{threads}")
        return self._profiles[threads]


def slower(rounds: Sequence[Round], costs: Costs) -> float:
    """How many times as long the target takes while the drafter works, as `slowed` says; at least 1.

    Args:
        rounds: of a text.
        costs: of passes alone.
    """
    passes = [
        Took(span, costs.verify(one.rows, one.context) or 0.0)
        for one in rounds
        for span in one.spans
        if span.part == "verify"
    ]
    return slowed(passes, [span for one in rounds for span in one.spans if span.part == "prepare"])


def message(rounds: Sequence[Round]) -> float:
    """Seconds of a message of the process beside: the shortest wait for one, where all was prepared before."""
    return min((one.wait_seconds for one in rounds if one.wait_seconds > 0), default=0.0)
