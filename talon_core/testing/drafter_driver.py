"""Steps of sequences in slots, played: they become events, questions and answers, as the engine would make them."""

from collections.abc import Sequence

import attrs
import numpy as np

from talon_core.drafter import Frontier
from talon_core.testing.drafter_answers import Row
from talon_core.testing.drafter_events import (
    TREE_ROWS,
    Ask,
    Close,
    Commit,
    Event,
    Open,
    Pause,
    Player,
    Read,
    Resume,
    Spare,
    Subject,
    Tokens,
)
from talon_core.testing.drafter_steps import Step, Turn
from talon_core.tree import IntArray, TokenTree

NEW_TOKENS = 24
"""Tokens that may come after a prompt."""

MOST_NODES = TREE_ROWS - 10
"""Of a tree that grows; those that a drafter that takes paths is asked for at once may come to more."""


@attrs.frozen(eq=False)
class Asked:
    """One question and its answer.

    Attributes:
        event: index of the `Ask` among all events.
        slot: of the sequence.
        place: of the node in the frontier.
        text: its tokens, the root's last.
        path: tokens from the root to the node, without the root's.
        room: of the sequence.
        row: the answer.
        source: as in the frontier.
    """

    event: int
    slot: int
    place: int
    text: Tokens
    path: Tokens
    room: int
    row: Row
    source: int | None = None


class Driver:
    """Makes events of steps, and plays them.

    Args:
        subject: what is checked.
        player: in session.
        max_depth: the drafter's.
        takes_paths: likewise.
        sources: how many it has.

    Attributes:
        events: what has happened.
        asked: the questions and their answers.
    """

    def __init__(
        self, subject: Subject, player: Player, max_depth: int | None, takes_paths: bool, sources: int = 0
    ) -> None:
        self.events: list[Event] = []
        self.asked: list[Asked] = []
        self._subject = subject
        self._player = player
        self._max_depth = max_depth
        self._takes_paths = takes_paths
        self._sources = sources
        self._over: set[int] = set()

    def run(self, steps: Sequence[Step]) -> None:
        """Play all steps; the slots that are open at the end are closed one after the other."""
        for step in steps:
            if step.pause:
                self._play(Pause())
            self._step(dict(zip(self._subject.slots, step.turns, strict=False)), step.spare)  # slots may be left over
        for slot in [*self._player.texts]:
            self._play(Close(slot))

    def _play(self, event: Event) -> list[tuple[Row, ...]]:
        played, answers = self._player.play(event)
        self.events.append(played)
        return answers

    def _step(self, turns: dict[int, Turn], spare: bool) -> None:
        player = self._player
        for slot, turn in turns.items():
            self._come_and_go(slot, turn)
        going = [slot for slot, turn in turns.items() if turn.move == "go" and slot in player.texts]
        going = [slot for slot in going if slot not in self._over]
        counts = {slot: min(turns[slot].count, player.unread(slot)) for slot in going if player.unread(slot)}
        if counts:
            self._play(Read(counts))
        if spare:
            self._play(Spare())
        ready = {slot: turns[slot] for slot in going if not player.unread(slot) and self._left(slot) > 0}
        if ready:
            self._round(ready)

    def _left(self, slot: int) -> int:
        """Tokens that may come before the last one that there is room for."""
        return self._player.rooms[slot] - len(self._player.texts[slot]) - 1

    def _come_and_go(self, slot: int, turn: Turn) -> None:
        player, context = self._player, self._subject.target.context_length
        is_open = slot in player.texts
        if turn.move == "wait" or (turn.move == "go" and is_open and slot not in self._over):
            return
        if turn.move == "close":
            if is_open:
                self._play(Close(slot))
            self._over.discard(slot)
            return
        longest = NEW_TOKENS * 8 if context is None else context - 1
        source = None if turn.source is None else self._subject.slots[turn.source]
        prompt = turn.prompt[: max(1, longest - NEW_TOKENS)]
        if source in player.texts:
            known = player.texts[source][: player.read[source]]
            taken = known[: 1 + turn.length % len(known)] if known else []
            whole = (*taken, *prompt)
            length = _alike(whole[:-1], known)
            if length and len(whole) <= longest:
                self._over.discard(slot)
                self._play(Resume(slot, whole, self._room(whole), source, length))
                return
        if is_open and turn.move != "anew":
            self._play(Close(slot))
        self._over.discard(slot)
        self._play(Open(slot, prompt, self._room(prompt)))

    def _room(self, prompt: Tokens) -> int:
        context = self._subject.target.context_length
        room = len(prompt) + NEW_TOKENS
        return room if context is None else min(room, context)

    def _round(self, turns: dict[int, Turn]) -> None:
        player = self._player
        trees = {slot: _Tree(player.texts[slot][-1], self._deepest(slot)) for slot in turns}
        for depth in range(max(len(turn.layers) for turn in turns.values())):
            layers = {slot: turn.layers[depth] for slot, turn in turns.items() if depth < len(turn.layers)}
            vocab_size, frontiers = self._subject.target.vocab_size, dict[int, Frontier]()
            for slot, layer in layers.items():
                nodes = trees[slot].frontier(layer.nodes, layer.order)
                if layer.deeper and self._takes_paths:
                    nodes = trees[slot].with_children(nodes, vocab_size)
                if len(nodes):
                    width, source = min(layer.width, vocab_size), self._source(turns[slot])
                    frontiers[slot] = Frontier(slot, trees[slot].tree, nodes, width, source)
            if not frontiers:
                break
            answers = self._play(Ask(tuple(frontiers.values())))
            for (slot, frontier), rows in zip(frontiers.items(), answers, strict=True):
                self._note(frontier, rows)
                trees[slot].grow(frontier.nodes, rows, layers[slot].children)
        tokens = {slot: self._accepted(slot, turn, trees[slot].tree) for slot, turn in turns.items()}
        along = {slot: tuple(trees[slot].tree.follow(own[:-1]).tolist()) for slot, own in tokens.items()}
        ends = frozenset(slot for slot, turn in turns.items() if turn.ends)
        self._over |= ends
        self._play(Commit(tokens, along, ends))

    def _source(self, turn: Turn) -> int | None:
        """Who is asked in a round; None for all sources together."""
        source = turn.alone % (1 + self._sources) - 1
        return None if source < 0 else source

    def _deepest(self, slot: int) -> int:
        """The deepest token of a tree, counted from the root at 0."""
        left = self._left(slot)
        return left if self._max_depth is None else min(left, self._max_depth)

    def _accepted(self, slot: int, turn: Turn, tree: TokenTree) -> Tokens:
        node = turn.accepted % len(tree)
        path = tree.tokens[tree.path(node)[1:]].tolist()
        children = tree.tokens[tree.parents == node].tolist()
        last = children[0] if turn.last < 0 and children and not turn.behind else max(turn.last, 0)
        tokens = (*path, *turn.behind, last % self._subject.target.vocab_size)
        return tokens[: self._left(slot)]

    def _note(self, frontier: Frontier, rows: tuple[Row, ...]) -> None:
        slot, text = frontier.slot, tuple(self._player.texts[frontier.slot])
        for place, (node, row) in enumerate(zip(frontier.nodes.tolist(), rows, strict=True)):
            path = tuple(frontier.tree.tokens[frontier.tree.path(node)[1:]].tolist())
            room = self._player.rooms[slot]
            self.asked.append(Asked(len(self.events) - 1, slot, place, text, path, room, row, frontier.source))


class _Tree:
    """A tree that grows.

    Args:
        root: its token.
        deepest: depth of the deepest token that may be drafted.
    """

    def __init__(self, root: int, deepest: int) -> None:
        self.tree = TokenTree.root(root)
        self._waiting = [0]  # nodes that were not drafted from
        self._deepest = deepest

    def frontier(self, chosen: tuple[int, ...], order: int) -> IntArray:
        """The nodes to draft from, see `Layer`; takes note that they are."""
        possible = [node for node in self._waiting if self.tree.depths[node] < self._deepest]
        nodes = sorted({possible[number % len(possible)] for number in chosen}) if chosen and possible else possible
        self._waiting = [node for node in self._waiting if node not in nodes]
        return np.array(nodes if not order else np.roll(nodes[::-1], order - 1), dtype=np.int64)

    def with_children(self, nodes: IntArray, vocab_size: int) -> IntArray:
        """These nodes, and below each another one, of some token, that is drafted from as well."""
        above = np.array(
            [node for node in nodes.tolist() if self.tree.depths[node] + 1 < self._deepest], dtype=np.int64
        )
        first = len(self.tree)
        self.tree = self.tree.extend((self.tree.tokens[above] + 1) % vocab_size, above, self.tree.path_logp[above])
        return np.concatenate([nodes, np.arange(first, len(self.tree))])

    def grow(self, nodes: IntArray, rows: Sequence[Row], chosen: tuple[int, ...]) -> None:
        """Add some of what was offered, or of what else a law gives a probability."""
        options: list[tuple[int, int, float]] = []
        for node, row in zip(nodes.tolist(), rows, strict=True):
            options += [
                (token, node, prob) for token, prob in zip(row.tokens.tolist(), row.probs.tolist(), strict=True)
            ]
            if row.law is not None:
                others = [token for token in np.flatnonzero(row.law).tolist() if token not in row.tokens]
                options += [(token, node, float(row.law[token])) for token in others[-1:]]
        held = {*zip(self.tree.tokens.tolist(), self.tree.parents.tolist(), strict=True)}  # some by `with_children`
        options = [option for option in options if option[2] > 0 and option[:2] not in held]
        if not options:
            return
        left = max(MOST_NODES - len(self.tree), 0)
        new = [options[number] for number in sorted({number % len(options) for number in chosen})[:left]]
        first = len(self.tree)
        tokens, parents = (np.array([option[at] for option in new], dtype=np.int64) for at in (0, 1))
        logp = np.log(np.array([option[2] for option in new]))
        self.tree = self.tree.extend(tokens, parents, self.tree.path_logp[parents] + np.minimum(logp, 0.0))
        self._waiting += range(first, len(self.tree))


def _alike(one: Sequence[int], other: Sequence[int]) -> int:
    """In how many tokens two texts begin alike."""
    length = 0
    while length < min(len(one), len(other)) and one[length] == other[length]:
        length += 1
    return length
