"""One round over some slots: draft, verify, accept, emit, commit, record. What fails for one ends that one alone."""

from collections.abc import Callable, Iterable, Mapping
from time import perf_counter

import attrs
import torch

from talon_core.checked_drafter import checked_depth
from talon_core.costs import MeasuredCosts
from talon_core.drafter import Committed, Drafter, DrafterSpec
from talon_core.drafting import Drafted, Wanted, draft_trees
from talon_core.engine.faults import Faults
from talon_core.errors import blaming
from talon_core.rounds import Round
from talon_core.rule import AcceptanceRule, Accepted
from talon_core.sequence import Sequence
from talon_core.target import Target
from talon_core.tree import IntArray, read_only


@attrs.frozen(eq=False)
class Parts:
    """What decodes.

    Attributes:
        target: whose text it is.
        drafter: proposes tokens.
        rule: accepts them.
        spec: the drafter's options, which errors name; None for plain decoding.
    """

    target: Target
    drafter: Drafter
    rule: AcceptanceRule
    spec: DrafterSpec | None = None

    def blaming(self, method: str) -> blaming:
        """Whatever goes wrong inside is an error of this method of the drafter."""
        return blaming("drafter", self.spec if self.spec is not None else self.drafter, method)


class Stages:
    """The stages of one round. Each goes on with the slots for which the ones before have worked.

    Args:
        parts: what decodes.
        sequences: who takes part, by slot.
        faults: what fails.
        measured: is told what passes take.
        now: the clock, in seconds.
    """

    def __init__(
        self,
        parts: Parts,
        sequences: Mapping[int, Sequence],
        faults: Faults,
        measured: MeasuredCosts,
        now: Callable[[], float] = perf_counter,
    ) -> None:
        self._parts = parts
        self._sequences = sequences
        self._faults = faults
        self._measured = measured
        self._now = now
        self._last = now()

    def run(self) -> dict[int, Round]:
        """The round of each slot for which nothing has failed."""
        drafted = self._draft()
        self._lap()
        accepted, committed, verify_seconds, accept_seconds = self._verify(drafted)
        self._lap()
        emitted = self._emit(drafted, accepted)
        with self._faults.of([*emitted]):
            self._parts.target.commit({slot: accepted[slot].path for slot in emitted if slot not in committed})
        commit_seconds = self._lap()
        self._tell(drafted, accepted, emitted)
        draft_seconds = self._lap()
        rounds = {}
        for slot in self._left(emitted):
            one = drafted[slot]
            rounds[slot] = Round(
                tree=one.tree.without_laws(),
                path=read_only(accepted[slot].path),
                tokens=read_only(emitted[slot]),
                drafted_nodes=len(one.drafted),
                draft_passes=one.draft_passes,
                draft_seconds=one.draft_seconds + draft_seconds,
                policy_seconds=one.policy_seconds,
                verify_seconds=verify_seconds,
                accept_seconds=accept_seconds,
                commit_seconds=commit_seconds,
            )
        return rounds

    def _left(self, slots: Iterable[int]) -> list[int]:
        return [slot for slot in slots if slot not in self._faults]

    def _lap(self) -> float:
        """Seconds since the last one."""
        now = self._now()
        seconds, self._last = now - self._last, now
        return seconds

    def _draft(self) -> dict[int, Drafted]:
        parts = self._parts
        wanted: list[Wanted] = []
        with self._faults.of(self._sequences):
            max_depth = checked_depth(parts.spec, parts.drafter)
            for slot, one in self._sequences.items():
                limits = one.limits(parts.target.vocab_size, max_depth)
                wanted.append(Wanted(slot, one.policy, one.root, limits, one.policy_choices))
        return draft_trees(wanted, parts.drafter, self._faults, self._measured, self._now)

    def _verify(self, drafted: Mapping[int, Drafted]) -> tuple[dict[int, Accepted], set[int], float, float]:
        """What was accepted, by slot; the slots that are committed already; seconds of the target and of the rule."""
        parts = self._parts
        trees = {slot: drafted[slot].tree for slot in self._left(drafted)}
        accepted: dict[int, Accepted] = {}
        if not trees:
            return accepted, set(), 0.0, 0.0
        greedy = {slot: ends for slot in trees if (ends := self._sequences[slot].greedy_ends(parts.rule)) is not None}
        with self._faults.of(trees):
            verified = parts.target.verify(trees, greedy)
            verify_seconds = self._lap()
            nodes, context = sum(map(len, trees.values())), max(self._sequences[slot].length for slot in trees)
            self._measured.verified(nodes, context, len(trees), verify_seconds)
            accepted |= verified.accepted
            for slot, outputs in verified.outputs.items():
                with self._faults.of([slot]):
                    chosen = self._sequences[slot].accept(parts.rule, trees[slot], outputs.logits)
                    features = outputs.features
                    if features is not None:
                        features = features[torch.as_tensor(chosen.path)]
                    accepted[slot] = Accepted(chosen.path, chosen.token, features)
            return accepted, {*verified.accepted}, verify_seconds, self._lap()
        return accepted, set(), 0.0, 0.0

    def _emit(self, drafted: Mapping[int, Drafted], accepted: Mapping[int, Accepted]) -> dict[int, IntArray]:
        emitted = {}
        for slot in self._left(accepted):
            with self._faults.of([slot]):
                emitted[slot] = self._sequences[slot].emit(drafted[slot].tree, accepted[slot])
        return emitted

    def _tell(
        self, drafted: Mapping[int, Drafted], accepted: Mapping[int, Accepted], emitted: Mapping[int, IntArray]
    ) -> None:
        """Tell the drafter what was accepted, of the texts that go on."""
        told = {}
        for slot in self._left(emitted):
            if not self._sequences[slot].over:
                tokens = emitted[slot]
                nodes = drafted[slot].drafted.follow(tokens[:-1])
                told[slot] = Committed(tokens.copy(), nodes, accepted[slot].features)
        if told:
            with self._faults.of(told), self._parts.blaming("commit"):
                self._parts.drafter.commit(told)
