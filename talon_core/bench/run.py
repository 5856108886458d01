"""The run itself: every method on every prompt, in turn."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import torch

from talon_core.basics.paths import LOCK, alone
from talon_core.bench.engines import (
    Decoded,
    Engine,
    engine_from_outside,
    engine_of,
    engine_of_transformers,
    logit_gap,
)
from talon_core.bench.environment import describe_environment, describe_session
from talon_core.bench.measurement import Measurement, first_difference
from talon_core.bench.methods import PLAIN, Method
from talon_core.bench.peer_process import PeerFailure, PeerProcess, wanted
from talon_core.bench.peers import check_peers
from talon_core.bench.prompts import Prompt
from talon_core.bench.results import Results, append, open_folder, read_manifest
from talon_core.bench.rounds import KeptRounds, append_rounds, forget_rounds
from talon_core.bench.schedule import Plan, Unit
from talon_core.decoding.decoder import Decoder
from talon_core.decoding.loading import decoder_for_model
from talon_core.decoding.source import Source
from talon_core.defaults import AUTO
from talon_core.engine.bounds import Bounds
from talon_core.errors import PluginError
from talon_core.plugins.parts import Resolved, choose_drafter
from talon_core.rule import Lossless
from talon_core.tree import IntArray

WARM_UP_TOKENS = 32
"""Most tokens of a decoding that only warms up."""
BETWEEN_TURNS = 64
"""Tokens that there may be more of a turn and its answer where they stand in a conversation."""

FAILURES = 3
"""Prompts one after the other at which peers fail, before a run ends."""


class Bench:
    """A loaded model with everything that a plan compares.

    `open` makes or takes up a folder, `warm_up` and then `decode` and `measurements` for each remaining unit do the
    rest; `run` calls them in this order. `close` ends the processes of peers.

    Args:
        plan: what is measured.
        model: a transformers causal LM, shared by all methods. Peers load it themselves, as `plan.model`.
        tokenizer: its tokenizer.
        trust_remote_code: let peers, and processes beside, run the model's own code when they load it.

    Raises:
        ValueError: if a method or a peer cannot decode with this model, or a prompt does not fit its context.
        PluginError: if a peer cannot be opened.
    """

    def __init__(self, plan: Plan, model: Any, tokenizer: Any, trust_remote_code: bool = False) -> None:
        self.plan = plan
        self._trusted = trust_remote_code
        self.model = model
        self.tokenizer = tokenizer
        from talon_core.hf.frontend import HFFrontend

        self._frontend = HFFrontend(model, tokenizer)
        self._prompts: Mapping[str, Sequence[Prompt]] = {each.name: each.prompts for each in plan.sets}
        made_of = {method.name: method.resolved for method in plan.methods if method.resolved is not None}
        self._plain = self._decoder(made_of[PLAIN])
        self._lossless: dict[str, Lossless] = {method.name: method.lossless for method in plan.methods}
        self._answers: dict[tuple[str, int, int], str] = {}
        for unit in plan.units():
            if unit.turn == unit.repetition == 0:
                self.ids(unit)
        check_peers(plan.peers, plan.temperature)
        self._peers: dict[str, PeerProcess] = {}
        self._engines: dict[str, Engine] = {}
        try:
            self._engines = {method.name: self._engine(method) for method in plan.methods}
        except BaseException:
            self.close()
            raise

    def _decoder(self, resolved: Resolved) -> Decoder:
        source = Source(self.plan.model, {"trust_remote_code": self._trusted})
        each_time = Bounds(keep=False)  # prompts begin alike and come again, and peers read them each time
        return decoder_for_model(self.model, self.tokenizer, resolved, source=source, bounds=each_time)

    def _engine(self, method: Method) -> Engine:
        if method.peer is not None:
            opening = wanted(method.name, method.peer, self.model, **self._setting)
            opened = self._peers[method.name] = PeerProcess(method.peer, opening)
            return engine_from_outside(opened.decode, self._plain)
        if method.resolved is None:
            return engine_of_transformers(self.model, self._plain)
        return engine_of(self._plain if method.name == PLAIN else self._decoder(method.resolved))

    @cached_property
    def _setting(self) -> dict[str, Any]:
        """What all peers are opened for."""
        request = self._plain.frontend.request(np.zeros(1, dtype=np.int64), self.plan.options(0))
        return {
            "source": self.plan.model,
            "trust_remote_code": self._trusted,
            "eos": request.eos,
            "room": self._room(),
            "threads": torch.get_num_threads(),
            "vocab_size": self._plain.target.vocab_size,
        }

    def _room(self) -> int:
        """Most tokens of a prompt and its answer; of conversations an estimate, as their later turns follow answers."""
        between = BETWEEN_TURNS if self.plan.all_turns else 0
        most = max(
            sum(
                len(self._frontend.encode(turn, raw=self.plan.raw)) + self.plan.max_new_tokens + between
                for turn in self._decoded_turns(prompt)
            )
            for each in self.plan.sets
            for prompt in each.prompts
        )
        context = self._plain.target.context_length
        return most if context is None else min(most, context)

    def _decoded_turns(self, prompt: Prompt) -> Sequence[str]:
        return prompt.turns if self.plan.all_turns else prompt.turns[:1]

    @cached_property
    def chosen(self) -> str | None:
        """The drafter that `auto` stands for with this model; None where no method asks for it."""
        waiting = [one.resolved for one in self.plan.methods if one.resolved is not None and one.resolved.waits]
        return choose_drafter(waiting[0].registry, self.model) if waiting else None

    def close(self) -> None:
        """Close the peers, and end their processes, and those that draft."""
        self._engines = {}
        with ExitStack() as closing:  # each, whatever goes wrong with the others
            for opened in reversed(self._peers.values()):
                closing.callback(opened.close)
            self._peers = {}

    def open(self, folder: Path) -> Results:
        """Make the folder, or check that it can be gone on with."""
        environment = describe_environment(self.model, self.tokenizer, self._plain.target)
        made_of = [method.resolved for method in self.plan.methods if method.resolved is not None]
        if self.chosen is not None:
            environment[AUTO] = self.chosen
        if self._peers:
            environment["peers"] = {name: opened.described for name, opened in self._peers.items()}
        results = open_folder(folder, self.plan.settings(), environment, describe_session())
        kept = len(made_of) if self.plan.rounds else 0
        forget_rounds(folder, {measurement.unit for measurement in results.measurements}, kept)
        for measurement in results.measurements:
            self._remember(measurement)
        return results

    def run(self, folder: Path, report: Callable[[int, int], None] = lambda done, all_: None) -> Results:
        """Measure whatever is not in the folder yet.

        A unit at which a peer fails is left out, for all methods: what is compared is about the same prompts. The
        others go on, unless peers fail at `FAILURES` units one after the other.

        Args:
            folder: where the results go; what it must be is in `open_folder`.
            report: called with the number of units that are done and of all, once at the start and after each.

        Raises:
            PluginError: at the end, if units were left out; the sentence names them and the peer.
        """
        read_manifest(folder)  # refuses a folder of something else, before anything is put there
        folder.mkdir(parents=True, exist_ok=True)
        # both would measure each other
        with alone(folder / LOCK, f"another run is writing into '{folder}'; wait for it, or give another folder"):
            results = self.open(folder)
            measurements = list(results.measurements)
            done = {measurement.unit for measurement in measurements}
            units = self.plan.units()
            report(len(done), len(units))
            if len(done) < len(units):
                self.warm_up()
            failed: list[tuple[Unit, PeerFailure]] = []
            in_a_row = 0
            for number, unit in enumerate(units):
                if unit not in done and self._follows(unit):
                    try:
                        decoded = self.decode(number, unit)
                    except PeerFailure as error:
                        failed.append((unit, error))
                        in_a_row += 1
                        if in_a_row == FAILURES:
                            break
                        continue
                    in_a_row = 0
                    measured = self.measurements(unit, decoded)
                    if self.plan.rounds:  # before the measurements, so that there is none without its rounds
                        append_rounds(folder, self._kept(unit, decoded))
                    append(folder, measured)
                    measurements += measured
                    done.add(unit)
                    report(len(done), len(units))
        if failed:
            raise PluginError(_left_out(failed)) from failed[0][1]
        return attrs.evolve(results, measurements=measurements, unfinished=0)

    def _follows(self, unit: Unit) -> bool:
        """Whether the answers are known that a unit's turn follows: no peer has failed at them."""
        return all((unit.set, unit.prompt, turn) in self._answers for turn in range(unit.turn))

    def warm_up(self) -> None:
        """Let each method decode the first prompt.

        Raises:
            PluginError: if a peer fails at it.
        """
        options = self.plan.options(0)
        options["max_new_tokens"] = min(self.plan.max_new_tokens, WARM_UP_TOKENS)
        unit = self.plan.units()[0]
        ids = self.ids(unit)
        try:
            for _ in range(self.plan.warmup):
                for engine in self._engines.values():
                    engine(ids, options)
        except PeerFailure as error:
            raise PluginError(f"{error} ({_place(unit)}, which warms up)") from error

    def decode(self, number: int, unit: Unit) -> dict[str, Decoded]:
        """Decode a prompt with every method; `number` is the unit's place in the plan and decides who begins.

        Returns:
            What each gave, by its name, in the order in which they decoded.
        """
        ids = self.ids(unit)
        options = self.plan.options(unit.repetition)
        return {
            method.name: self._engines[method.name](ids, options) for method in self.plan.order(number, unit.repetition)
        }

    def measurements(self, unit: Unit, decoded: Mapping[str, Decoded]) -> list[Measurement]:
        """A line for each method, in the order in which they decoded."""
        ids = self.ids(unit)
        measured = [
            Measurement(
                set=unit.set,
                prompt=unit.prompt,
                turn=unit.turn,
                question_id=self._prompts[unit.set][unit.prompt].question_id,
                method=name,
                repetition=unit.repetition,
                order=place,
                seed=self.plan.options(unit.repetition).get("seed"),
                prompt_tokens=len(ids),
                token_ids=one.token_ids,
                finish_reason=one.finish_reason,
                stats=one.stats,
                acceptance_by_depth=one.acceptance_by_depth,
                lossless=self._lossless[name],
                **self._compared(ids, one, decoded[PLAIN]),
            )
            for place, (name, one) in enumerate(decoded.items())
        ]
        for measurement in measured:
            self._remember(measurement)
        return measured

    def _kept(self, unit: Unit, decoded: Mapping[str, Decoded]) -> list[KeptRounds]:
        return [
            KeptRounds(unit.set, unit.prompt, unit.turn, unit.repetition, name, one.rounds)
            for name, one in decoded.items()
            if one.rounds is not None
        ]

    def _compared(self, ids: IntArray, decoded: Decoded, plain: Decoded) -> dict[str, Any]:
        """Whether an output is plain decoding's; drawn tokens are not expected to be."""
        if self.plan.temperature:
            return {"identical": None, "first_difference": None, "logit_gap": None}
        where = first_difference(decoded.token_ids, plain.token_ids)
        gap = None
        if where is not None and where < min(len(decoded.token_ids), len(plain.token_ids)):
            before = [*ids.tolist(), *plain.token_ids[:where]]
            gap = logit_gap(self.model, before, decoded.token_ids[where], plain.token_ids[where])
        return {"identical": where is None, "first_difference": where, "logit_gap": gap}

    def _remember(self, measurement: Measurement) -> None:
        """Keep plain decoding's first answers: the turns after them follow them, whatever the method."""
        if measurement.method == PLAIN and measurement.repetition == 0 and self.plan.all_turns:
            text = self._frontend.text(measurement.token_ids) or ""
            self._answers[measurement.set, measurement.prompt, measurement.turn] = text

    def ids(self, unit: Unit) -> IntArray:
        """The prompt's tokens, the same for every method, shape `(prompt,)`, int64.

        Raises:
            ValueError: if they leave no room in the model's context.
        """
        turns = self._prompts[unit.set][unit.prompt].turns[: unit.turn + 1]
        answers = [self._answers[unit.set, unit.prompt, turn] for turn in range(unit.turn)]
        frontend = self._frontend
        if unit.turn == 0:
            ids = frontend.encode(turns[0], raw=self.plan.raw)
        elif self.plan.raw or not getattr(self.tokenizer, "chat_template", None):
            said = [text for pair in zip(turns[:-1], answers, strict=True) for text in pair]
            ids = frontend.encode("\n".join([*said, turns[-1]]), raw=True)
        else:
            messages = []
            for turn, answer in zip(turns[:-1], answers, strict=True):
                messages += [{"role": "user", "content": turn}, {"role": "assistant", "content": answer}]
            ids = frontend.encode([*messages, {"role": "user", "content": turns[-1]}])
        context = self._plain.target.context_length
        if not len(ids) or (context is not None and len(ids) >= context):
            raise ValueError(
                f"prompt {unit.prompt} of the set '{unit.set}' has {len(ids)} tokens in turn {unit.turn}; it must have "
                f"at least one and fewer than the model's context, {context}; take it out or use --limit"
            )
        return ids


def _left_out(failed: Sequence[tuple[Unit, PeerFailure]]) -> str:
    """The sentence about units at which peers have failed: how the first of them did, and how many others there are."""
    (unit, error), *others = failed
    more = f", and {len(others)} more" if others else ""
    return (
        f"{error} ({_place(unit)}{more}); where a peer fails the prompt is left "
        "out for all methods, and the same run tries it again when it goes on"
    )


def _place(unit: Unit) -> str:
    turn = f", turn {unit.turn}" if unit.turn else ""
    return f"prompt {unit.prompt} of the set '{unit.set}'{turn}"
