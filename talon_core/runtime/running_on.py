"""Passes without a draft that a host has run ahead of their rounds, while nobody else wanted anything of it."""

from collections.abc import Callable, Hashable, Mapping
from sys import maxsize
from typing import Any

import attrs

from talon_core.runtime.cache import TreeCache
from talon_core.runtime.host_draws import DrawnAhead
from talon_core.runtime.inputs import pass_inputs
from talon_core.runtime.recording import Asking, FurtherPasses
from talon_core.runtime.repeating import RepeatedPasses
from talon_core.target import NOTHING_DRAWN, Behind, NodeDraws, StillWanted
from talon_core.tree import TokenTree


@attrs.frozen(eq=False)
class OfRoots:
    """What the pass of a round has found whose trees are roots alone.

    Attributes:
        tokens: the most likely one after each root, by slot.
        rest: what else was kept of it, as `RecordedPass.run_on` has it.
        passes: how many were run for it: none where it was run before, several with those of rounds to come.
    """

    tokens: dict[int, int]
    rest: tuple[Any, ...]
    passes: int


@attrs.define(eq=False)
class _Ran:
    """Passes that were run behind one another, and what is the same in a round for which one of them was run.

    Attributes:
        found: what they have found.
        kind: of the passes.
        ends: tokens that end the texts.
        slots: whose roots were in them, in this order.
        draws: how the tokens were drawn; None where they are the most likely ones.
        state: of the cache in the round of the first.
        taken: how many rounds have come.
    """

    found: FurtherPasses
    kind: Hashable
    ends: frozenset[int]
    slots: list[int]
    draws: DrawnAhead | None
    state: tuple[Any, ...]
    taken: int = 0


class RunningOn:
    """Runs passes over roots alone behind one another, and has each ready when its round comes.

    What stands behind the committed rows of a cache is nobody's: passes write theirs there, and if the text goes on in
    another way, or not at all, others take their places. A pass that was run ahead is the one that its round asks for
    where everything that it reads is the same: the tokens, the numbers that others are drawn with, the committed rows,
    and the model, which is looked at whenever a session is entered. Whoever begins another pass on the cache, or enters
    a session, calls `forget` first.

    Args:
        passes: what is written down.
        cache: the keys and values that it works on.
    """

    def __init__(self, passes: RepeatedPasses, cache: TreeCache) -> None:
        self._passes = passes
        self._cache = cache
        self._ran: _Ran | None = None
        self._most = maxsize  # passes that are run together, as so many have been of use before

    def forget(self) -> None:
        """Nothing is ready any more. Where rounds to come were others than was said, fewer are run next time."""
        ran, self._ran = self._ran, None
        if ran is not None:
            of_use = ran.taken == len(ran.found.tokens)
            self._most = min(2 * self._most, maxsize) if of_use else 2 * ran.taken

    def take(
        self,
        trees: Mapping[int, TokenTree],
        kind: Hashable,
        ends: frozenset[int],
        drawn: Mapping[int, NodeDraws] = NOTHING_DRAWN,
    ) -> OfRoots | None:
        """What the pass of a round has found, if it was run ahead; otherwise None, and nothing is ready any more.

        Args:
            trees: of the round, by slot.
            kind: as for `Executor.walk`; passes that are drawn from have another than those that are not.
            ends: likewise.
            drawn: likewise, of no slot or of all.
        """
        ran, slots = self._ran, sorted(trees)
        if ran is None:
            return None
        place = ran.taken
        if place < len(ran.found.tokens) and (ran.kind, ran.ends, ran.slots) == (kind, ends, slots):
            roots = [trees[slot].tokens.item(0) for slot in slots if len(trees[slot]) == 1]
            same = roots == ran.found.tokens[place - 1] and ran.state == self._state(slots, place)
            if same and (ran.draws is None or ran.draws.are(drawn, slots, place)):
                return self._next(ran, 0)
        self.forget()
        return None

    def run(
        self,
        trees: Mapping[int, TokenTree],
        kind: Hashable,
        ends: frozenset[int],
        passes: int,
        chosen: Callable[[Any], Any],
        drawn: Mapping[int, NodeDraws] = NOTHING_DRAWN,
        wanted: StillWanted | None = None,
        behind: Behind | None = None,
    ) -> OfRoots | None:
        """The pass of a round and those behind it.

        Args:
            trees: of the round, by slot.
            kind: as for `take`.
            ends: likewise.
            passes: how many at most; what the cache has no room for is not run.
            chosen: as for `RecordedPass.run_on`.
            drawn: as for `take`.
            wanted: as that of `Further`.
            behind: as that of `Further` says it.

        Returns:
            Of the first; None where it has to be run by itself.

        Raises:
            ValueError: if a slot is not open.
        """
        cache, slots = self._cache, sorted(trees)
        cache.check_open(slots)
        passes = min(passes, self._most)
        if passes < 2 or any(len(tree) > 1 for tree in trees.values()):
            return None
        inputs = pass_inputs({slot: (tree, 0) for slot, tree in trees.items()}, cache.lengths)
        cache.make_room_for(inputs.counts)  # for the first, as where it is run by itself
        passes = min(passes, cache.capacity - max(cache.lengths[slot] for slot in slots))
        draws = DrawnAhead.of(drawn, slots, passes) if drawn else None
        if passes < 2 or (drawn and draws is None):
            return None
        asking = Asking(wanted)
        found = self._passes.run_on(inputs, kind, passes, ends, chosen, draws, asking.asked, behind)
        asking.check()
        if found is None:
            return None
        return self._next(_Ran(found, kind, ends, slots, draws, self._state(slots, 0)), len(found.tokens))

    def _next(self, ran: _Ran, passes: int) -> OfRoots:
        """What was found for the next round, which has come."""
        self._ran, place = ran, ran.taken
        ran.taken += 1
        return OfRoots(dict(zip(ran.slots, ran.found.tokens[place], strict=True)), ran.found.rest(place), passes)

    def _state(self, slots: list[int], rounds: int) -> tuple[Any, ...]:
        """That of the cache so many rounds earlier, if each of them has committed a row of these slots alone."""
        cache, lengths = self._cache, self._cache.lengths.copy()
        for slot in slots:
            lengths[slot] -= rounds
        return lengths, cache.reallocations, cache.turns
