"""A drafter of texts that drafts at once where nothing was prepared for what has come."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import inf

import numpy as np

from talon_core.candidates import Candidates
from talon_core.drafter import Committed, Drafter, DrafterSpec, Frontier
from talon_core.engine.ahead.asking import nodes_told
from talon_core.engine.ahead.prepared import Row
from talon_core.engine.checked_candidates import checked_candidates
from talon_core.engine.checked_drafter import checked_depth, checked_proposal, opened
from talon_core.errors import blaming, naming, written
from talon_core.inquiry import Inquirer
from talon_core.schedule import Schedule
from talon_core.target import Target
from talon_core.tree import IntArray

NOTHING = Row(np.empty(0, dtype=np.int64), np.empty(0), 0)
"""The answer at a node of which nothing is known, and nobody is asked."""


class NoInstant:
    """There is no instant source: it drafts nothing, and is told all the same."""

    drafts = False

    def session(self) -> AbstractContextManager[object]:
        """Entered while something is decoded."""
        return nullcontext()

    def open(self, slot: int, prompt: IntArray, room: int) -> None:
        """As `Drafter.open`."""

    def resume(self, slot: int, prompt: IntArray, room: int, source: int, length: int) -> None:
        """As `Drafter.resume`; it reads nothing but texts, so that nothing has to be told besides."""

    def commit(self, committed: Mapping[int, Committed]) -> None:
        """As `Drafter.commit`, whoever has drafted."""

    def close(self, slot: int) -> None:
        """As `Drafter.close`; of a slot that was never opened there is nothing to give up."""

    def propose(self, frontiers: Sequence[Frontier]) -> tuple[dict[int, Candidates], int]:
        """Its answers by slot, checked, and the draft passes that they took; below its deepest token nothing is known.

        Raises:
            PluginError: if it fails, or breaks its contract; the message names it.
        """
        return {}, 0


NO_INSTANT = NoInstant()


class Instant(NoInstant):
    """Drafts whole trees in the place of the real drafter, which is told of no node of them.

    It is told of every text, and asked by the thread that decodes, in its own process.

    Args:
        spec: its options, whom errors name.
        drafter: opened.
        vocab_size: the target's.
    """

    drafts = True

    def __init__(self, spec: DrafterSpec, drafter: Drafter, vocab_size: int) -> None:
        self._spec, self._drafter, self._vocab_size = spec, drafter, vocab_size
        deepest = checked_depth(spec, drafter)
        self._deepest = inf if deepest is None else deepest
        self._asked: dict[int, set[int]] = {}  # nodes of the current trees, by slot

    def session(self) -> AbstractContextManager[object]:
        return self._drafter.session()

    def open(self, slot: int, prompt: IntArray, room: int) -> None:
        with blaming("drafter", self._spec, "open"):
            self._drafter.open(slot, prompt.copy(), room)
        self._asked[slot] = set()

    def resume(self, slot: int, prompt: IntArray, room: int, source: int, length: int) -> None:
        with blaming("drafter", self._spec, "resume"):
            self._drafter.resume(slot, prompt.copy(), room, source, length)
        self._asked[slot] = set()

    def commit(self, committed: Mapping[int, Committed]) -> None:
        told = {}
        for slot, one in committed.items():
            told[slot] = Committed(one.tokens.copy(), nodes_told(one.nodes, self._asked[slot]).copy())
            self._asked[slot].clear()
        with blaming("drafter", self._spec, "commit"):
            self._drafter.commit(told)

    def close(self, slot: int) -> None:
        if self._asked.pop(slot, None) is not None:
            with blaming("drafter", self._spec, "close"):
                self._drafter.close(slot)

    def propose(self, frontiers: Sequence[Frontier]) -> tuple[dict[int, Candidates], int]:
        within = [one.above(self._deepest) for one in frontiers]
        asking = [one for one in within if len(one.nodes)]
        answers: dict[int, Candidates] = {}
        passes = 0
        if asking:
            with blaming("drafter", self._spec, "propose"):
                proposed = self._drafter.propose(asking)
            given = checked_proposal(self._spec, proposed, len(asking))
            passes = given.draft_passes
            for one, answer in zip(asking, given.candidates, strict=True):
                self._asked[one.slot].update(one.nodes.tolist())
                answers[one.slot] = checked_candidates(
                    self._spec, answer, one.tree, one.nodes, self._vocab_size, one.width
                )
        known = {one.slot: answers.get(one.slot, Candidates.unknown(one.nodes)) for one in frontiers}
        return {one.slot: known[one.slot].among(one.nodes) for one in frontiers}, passes


def opened_instant(schedule: Schedule, target: Target) -> NoInstant:
    """The instant source of a schedule, opened, or what stands for it where there is none.

    Raises:
        ValueError: if it is no drafter that reads texts alone, or it does not fit the target.
        PluginError: if the schedule fails at saying it.
    """
    with blaming("schedule", schedule, "instant"):
        spec: object = schedule.instant
    if spec is None:
        return NO_INSTANT
    if not isinstance(spec, DrafterSpec):
        raise ValueError(  # noqa: TRY004 - callers expect a ValueError for every bad part
            f"{naming('schedule', schedule)} has the instant source {written(spec)}; it must be the options of a "
            "drafter, or None"
        )
    drafter = opened(spec, target) if spec.reads_texts else None
    if drafter is None or drafter.uses_target or isinstance(drafter, Inquirer):
        raise ValueError(
            f"{naming('schedule', schedule)} has {naming('drafter', spec)} as its instant source, and that needs more "
            "than the text; take one that reads texts alone, such as ngram"
        )
    return Instant(spec, drafter, target.vocab_size)
