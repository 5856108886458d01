"""Random lives of sequences in slots, side by side and one after another, as the engine lets them live."""

from collections.abc import Sequence

import attrs
import numpy as np
from hypothesis import strategies as st

from talon_core.drafter import Frontier
from talon_core.testing.drafter_answers import Row
from talon_core.testing.drafter_events import (
    Ask,
    Close,
    Commit,
    Event,
    Open,
    Pause,
    Player,
    Read,
    Resume,
    Subject,
    Tokens,
)
from talon_core.tree import IntArray, TokenTree

WIDEST = 8
"""Most candidates of a node that are asked for."""

NEW_TOKENS = 24
"""Tokens that may come after a prompt."""


@attrs.frozen
class Layer:
    """One layer of a tree. Numbers that choose are counted around what there is.

    Attributes:
        width: candidates that are asked for.
        nodes: which of the nodes that were not drafted from yet are drafted from; none for all.
        children: which of what was offered, or has probability in a law, joins the tree.
    """

    width: int
    nodes: tuple[int, ...]
    children: tuple[int, ...]


@attrs.frozen
class Turn:
    """What happens in one slot in one step.

    Attributes:
        move: "go", or "wait", which does nothing, or "close", or "anew", which opens the slot without closing it.
        prompt: of the sequence, if one begins; or what comes after what is taken over.
        source: the slot, counted around, whose text the prompt begins with; None for none.
        length: in how many tokens, counted around.
        count: tokens of a prompt that are read at once.
        layers: of the tree, if the prompt is read.
        accepted: the last accepted node, counted around.
        behind: accepted tokens that were not drafted.
        last: the token after these, counted around; below 0 it is one that was drafted, where there is one.
        ends: the text ends with this round, so that the drafter is not told of it.
    """

    move: str
    prompt: Tokens
    source: int | None
    length: int
    count: int
    layers: tuple[Layer, ...]
    accepted: int
    behind: Tokens
    last: int
    ends: bool


@attrs.frozen
class Step:
    """A turn for each slot, and whether the session is left before."""

    turns: tuple[Turn, ...]
    pause: bool


_NUMBERS = st.integers(0, 60)
_LAYERS = st.builds(
    Layer,
    width=st.sampled_from([3, 1, 2, 5, WIDEST]),
    nodes=st.just(()) | st.lists(_NUMBERS, min_size=1, max_size=2).map(tuple),
    children=st.lists(_NUMBERS, min_size=1, max_size=3).map(tuple),
)


def steps(texts: Sequence[Tokens], vocab_size: int, slots: int) -> st.SearchStrategy[tuple[Step, ...]]:
    """Steps of sequences in so many slots.

    Args:
        texts: the prompts begin like one of these; none for random ones of a few tokens, which repeat themselves.
        vocab_size: the target's.
        slots: how many.
    """
    # few of them, so that texts repeat themselves
    some = st.sampled_from([*dict.fromkeys(int(token) for token in np.linspace(0, vocab_size - 1, 4))])
    prompts = st.lists(some, min_size=1, max_size=14).map(tuple)
    if texts:
        whole = st.sampled_from([*texts])
        prompts = whole | st.tuples(whole, _NUMBERS).map(lambda both: both[0][: 1 + both[1] % len(both[0])])
    turn = st.builds(
        Turn,
        move=st.sampled_from(["go"] * 8 + ["wait", "close", "anew"]),
        prompt=prompts,
        source=st.none() | st.integers(0, slots - 1),
        length=_NUMBERS,
        count=st.sampled_from([60, 1, 2, 5]),
        layers=st.lists(_LAYERS, max_size=5).map(tuple),
        accepted=_NUMBERS,
        behind=st.just(()) | st.lists(some, max_size=2).map(tuple),
        last=st.integers(-1, 60),
        ends=st.sampled_from([False] * 7 + [True]),
    )
    step = st.builds(Step, st.tuples(*[turn] * slots), st.booleans())
    return st.lists(step, min_size=3, max_size=7).map(tuple)


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
    """

    event: int
    slot: int
    place: int
    text: Tokens
    path: Tokens
    room: int
    row: Row


class Schedule:
    """Makes events of steps, and plays them.

    Args:
        subject: what is checked.
        player: in session.
        max_depth: the drafter's.

    Attributes:
        events: what has happened.
        asked: the questions and their answers.
    """

    def __init__(self, subject: Subject, player: Player, max_depth: int | None) -> None:
        self.events: list[Event] = []
        self.asked: list[Asked] = []
        self._subject = subject
        self._player = player
        self._max_depth = max_depth
        self._over: set[int] = set()

    def run(self, steps: Sequence[Step]) -> None:
        """Play all steps; the slots that are open at the end are closed one after the other."""
        for step in steps:
            if step.pause:
                self._play(Pause())
            self._step(dict(zip(self._subject.slots, step.turns, strict=True)))
        for slot in [*self._player.texts]:
            self._play(Close(slot))

    def _play(self, event: Event) -> list[tuple[Row, ...]]:
        played, answers = self._player.play(event)
        self.events.append(played)
        return answers

    def _step(self, turns: dict[int, Turn]) -> None:
        player = self._player
        for slot, turn in turns.items():
            self._come_and_go(slot, turn)
        going = [slot for slot, turn in turns.items() if turn.move == "go" and slot in player.texts]
        going = [slot for slot in going if slot not in self._over]
        counts = {slot: min(turns[slot].count, player.unread(slot)) for slot in going if player.unread(slot)}
        if counts:
            self._play(Read(counts))
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
            frontiers = {
                slot: Frontier(slot, trees[slot].tree, nodes, min(layer.width, self._subject.target.vocab_size))
                for slot, layer in layers.items()
                if len(nodes := trees[slot].frontier(layer.nodes))
            }
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
            self.asked.append(Asked(len(self.events) - 1, slot, place, text, path, room, row))


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

    def frontier(self, chosen: tuple[int, ...]) -> IntArray:
        """The nodes to draft from; takes note that they are."""
        possible = [node for node in self._waiting if self.tree.depths[node] < self._deepest]
        nodes = sorted({possible[number % len(possible)] for number in chosen}) if chosen and possible else possible
        self._waiting = [node for node in self._waiting if node not in nodes]
        return np.array(nodes, dtype=np.int64)

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
        options = [option for option in options if option[2] > 0]
        if not options:
            return
        new = [options[number] for number in sorted({number % len(options) for number in chosen})]
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
