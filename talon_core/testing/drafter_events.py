"""What a drafter is told and asked, one call after another, with a target beside it as in the decoder."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING

import attrs
import numpy as np

from talon_core.candidates import Candidates
from talon_core.drafter import Committed, Drafter, DrafterSpec, Frontier, Part
from talon_core.engine.checked_drafter import checked_guessable, checked_likeliest, checked_proposal, checked_resume
from talon_core.engine.in_session import Sessions
from talon_core.engine.inquiries import inquired, most_added
from talon_core.errors import blaming
from talon_core.inquiry import Inquirer
from talon_core.target import Target
from talon_core.testing.claims import require
from talon_core.testing.drafter_answers import TINY, Row, checked_rows, law_of
from talon_core.tree import FloatArray, TokenTree, read_only

if TYPE_CHECKING:
    from torch import Tensor

TREE_ROWS = 64
"""Rows that the target is asked to make room for beside the text."""

Tokens = tuple[int, ...]

ROUNDED = 1e-6
"""By how much a log-probability may differ that is worked out twice."""


@attrs.frozen
class Open:
    """A prompt takes a slot; `room` as in `Drafter.open`."""

    slot: int
    prompt: Tokens
    room: int


@attrs.frozen
class Resume:
    """As `Open`, with the first `length` tokens of the text in another slot, of which `told` need not be told again."""

    slot: int
    prompt: Tokens
    room: int
    source: int
    length: int
    told: int = 0


@attrs.frozen
class Read:
    """So many more tokens of prompts are read, by slot."""

    counts: Mapping[int, int]


@attrs.frozen(eq=False)
class Ask:
    """One call of `propose`."""

    frontiers: tuple[Frontier, ...]


@attrs.frozen
class Commit:
    """Tokens are accepted, by slot, along nodes of the drafted trees; slots that end are not told of it."""

    tokens: Mapping[int, Tokens]
    nodes: Mapping[int, Tokens]
    ends: frozenset[int] = frozenset()


@attrs.frozen
class Close:
    """A slot is given back."""

    slot: int


@attrs.frozen
class Pause:
    """The session is left, and entered again."""


@attrs.frozen
class Spare:
    """There is time to spare: the drafter may catch up once."""


Event = Open | Resume | Read | Ask | Commit | Close | Pause | Spare


def only(event: Event, slot: int) -> Event | None:
    """What of an event is about a slot; None if nothing is."""
    match event:
        case Read(counts):
            return Read({slot: counts[slot]}) if slot in counts else None
        case Ask(frontiers):
            own = tuple(one for one in frontiers if one.slot == slot)
            return Ask(own) if own else None
        case Commit(tokens, nodes, ends):
            return Commit({slot: tokens[slot]}, {slot: nodes[slot]}, ends & {slot}) if slot in tokens else None
        case Pause() | Spare():
            return event
        case _:
            return event if event.slot == slot else None


def without(event: Event, slot: int) -> Event | None:
    """What of an event is about other slots; None if nothing is."""
    match event:
        case Read(counts):
            rest = {one: count for one, count in counts.items() if one != slot}
            return Read(rest) if rest else None
        case Ask(frontiers):
            others = tuple(one for one in frontiers if one.slot != slot)
            return Ask(others) if others else None
        case Commit(tokens, nodes, ends):
            kept = {one: own for one, own in tokens.items() if one != slot}
            return Commit(kept, nodes, ends - {slot}) if kept else None
        case Pause() | Spare():
            return event
        case _:
            return event if event.slot != slot else None


@attrs.frozen(eq=False)
class Subject:
    """What is checked.

    Attributes:
        named: whom errors name: the drafter's options, or an opened one.
        target: what it drafts for.
        hears: whether the target's hidden states are handed on to it.
        slots: the slots of the target that may be used.
        tolerance: by how much two probabilities may differ that should be the same.
    """

    named: object
    target: Target
    hears: bool
    slots: Sequence[int]
    tolerance: float


class Player:
    """Tells a drafter and a target of events; entered, both are in session, and left, all slots are closed.

    Args:
        subject: what is checked.
        drafter: opened for this player alone.

    Attributes:
        texts: the tokens of prompt and output, by slot, of those that are open.
        read: how many of them the target has read, or been told of.
        rooms: most of them.
    """

    def __init__(self, subject: Subject, drafter: Drafter) -> None:
        self.texts: dict[int, list[int]] = {}
        self.read: dict[int, int] = {}
        self.rooms: dict[int, int] = {}
        self._subject = subject
        self._target = subject.target
        self._drafter = drafter
        self._sessions = Sessions(subject.target, drafter, subject.named)
        self._session = ExitStack()
        self._round: list[tuple[Frontier, Candidates, tuple[Row, ...]]] = []
        self._features: Tensor | None = None  # of the text that was given last

    def __enter__(self) -> "Player":
        self._session.enter_context(self._sessions.entered())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            for slot in [*self.texts]:
                self._target.close(slot)
            self.texts.clear()
        finally:
            self._session.__exit__(kind, error, traceback)

    def play(self, event: Event) -> tuple[Event, list[tuple[Row, ...]]]:
        """Let an event happen; returns it as it was, and the answers at each frontier's nodes where it is an `Ask`.

        Raises:
            PluginError: if the drafter fails, or answers what the decoder would refuse.
            AssertionError: if what it answers is wrong in another way.
        """
        if not isinstance(event, Ask):
            self._check_laws_again()
        match event:
            case Open(slot, prompt, room):
                self._target.open(slot, room + TREE_ROWS)
                self._note(slot, prompt, room, 0)
                with self._blaming("open"):
                    self._drafter.open(slot, _ids(prompt), room)
            case Resume():
                return self._resume(event), []
            case Read(counts):
                self._read(counts)
            case Ask(frontiers):
                return event, self._ask(frontiers)
            case Commit():
                self._commit(event)
            case Close(slot):
                self._target.close(slot)
                del self.texts[slot]
                with self._blaming("close"):
                    self._drafter.close(slot)
            case Pause():
                self._session.close()
                self._session.enter_context(self._sessions.entered(again=True))
            case Spare():
                with self._blaming("catch_up"):
                    read = self._drafter.catch_up()
                named = self._subject.named
                if isinstance(named, DrafterSpec):
                    told = "reads in catch_up, and its options say catches_up is False; they must agree"
                    require(named.catches_up or not read, "drafter", named, told)
        return event, []

    def give(self, slot: int, text: Tokens, room: int) -> None:
        """Open a slot with a text, read at once, and with nothing that the drafter has drafted or was told before.

        The target reads nothing where the text that was given before begins with this one.
        """
        self._check_laws_again()
        count, before = len(text) - 1, tuple(self.texts.get(slot, ()))
        if slot in self.texts:
            with self._blaming("close"):
                self._drafter.close(slot)
        known = 0 < count < len(before) and before[:count] == text[:-1]
        taken = self._target.resume(slot, room + TREE_ROWS, slot, count) if known else 0
        if taken < count or not count:
            self._target.open(slot, room + TREE_ROWS)
            features = self._target.read({slot: _ids(text[:-1])})[slot] if count else None
            self._features = features.clone() if self._subject.hears and features is not None else None
        self._note(slot, text, room, count)
        with self._blaming("open"):
            self._drafter.open(slot, _ids(text), room)
        if count:
            features = self._features[:count].clone() if self._features is not None else None
            with self._blaming("read"):
                self._drafter.read({slot: Part(0, count, features)})

    def unread(self, slot: int) -> int:
        """Tokens of a slot's prompt that are still to be read."""
        return len(self.texts[slot]) - 1 - self.read[slot]

    def _blaming(self, method: str) -> blaming:
        return blaming("drafter", self._subject.named, method)

    def _note(self, slot: int, prompt: Tokens, room: int, read: int) -> None:
        self.texts[slot], self.rooms[slot], self.read[slot] = [*prompt], room, read

    def _resume(self, event: Resume) -> Resume:
        slot, room = event.slot, event.room + TREE_ROWS
        taken = self._target.resume(slot, room, event.source, event.length)
        self._note(slot, event.prompt, event.room, 0)
        with self._blaming("resume"):
            answer = self._drafter.resume(slot, _ids(event.prompt), event.room, event.source, taken)
        told = checked_resume(self._subject.named, answer, taken)
        if told < taken:
            self._target.resume(slot, room, slot, told)
        self.read[slot] = told
        return attrs.evolve(event, told=told)

    def _read(self, counts: Mapping[int, int]) -> None:
        starts = {slot: self.read[slot] for slot in counts}
        ids = {slot: _ids(self.texts[slot][starts[slot] :][:count]) for slot, count in counts.items()}
        features = self._target.read(ids)
        hears = self._subject.hears
        parts = {slot: Part(starts[slot], count, features[slot] if hears else None) for slot, count in counts.items()}
        with self._blaming("read"):
            self._drafter.read(parts)
        for slot, count in counts.items():
            self.read[slot] += count

    def _ask(self, frontiers: Sequence[Frontier]) -> list[tuple[Row, ...]]:
        asked = [attrs.evolve(one, tree=one.tree.copied(), nodes=read_only(one.nodes)) for one in frontiers]
        with self._blaming("propose"):
            proposed = self._drafter.propose([*asked])
        offered = checked_proposal(self._subject.named, proposed, len(asked)).candidates
        answers = []
        for one, candidates in zip(asked, offered, strict=True):
            rows = checked_rows(self._subject.named, candidates, one, self._target.vocab_size)
            answers.append(rows)
            self._round.append((one, candidates, rows))
            self._check_likeliest(one, candidates)
        return answers

    def _check_likeliest(self, frontier: Frontier, candidates: Candidates) -> None:
        """What is said of a node without a pass is what is proposed there."""
        if frontier.source is not None:
            return
        for row, node in enumerate(frontier.nodes.tolist()):
            path = frontier.tree.tokens[frontier.tree.path(node)].tolist()
            with self._blaming("likeliest"):
                given = self._drafter.likeliest(frontier.slot, [*path])
            told, best = checked_likeliest(self._subject.named, given), candidates.logp.item(row, 0)
            require(
                told is None or told == best or abs(told - best) <= ROUNDED,
                "drafter",
                self._subject.named,
                f"gave the log-probability {told} in likeliest, and {best:.6g} to its first candidate there",
            )
            if told is not None and told > -np.inf and len(path) > 1:
                self._check_guessable(frontier.slot, told, *path[-2:])

    def _check_guessable(self, slot: int, told: float, before: int, token: int) -> None:
        """Where a guess is as likely as it is, one may be, and so may a less likely one."""
        for least in (told, told - 1.0):
            with self._blaming("guessable"):
                given = self._drafter.guessable(slot, least)
            behind = checked_guessable(self._subject.named, given)
            if behind is None:
                continue
            require(
                bool((behind.pairs[1:] > behind.pairs[:-1]).all()),
                "drafter",
                self._subject.named,
                "returned a Behind from guessable whose pairs do not rise",
            )
            require(
                token in behind.tokens or (before << 32) + token in behind.pairs,
                "drafter",
                self._subject.named,
                f"gave the log-probability {told:.6g} in likeliest behind the tokens {before} and {token}, and left "
                f"these out in guessable, asked for at least {least:.6g}",
            )

    def _check_laws_again(self) -> None:
        """Policies may ask for a law again until the tree is finished."""
        for frontier, candidates, rows in self._round:
            for place, row in enumerate(rows):
                law = law_of(self._subject.named, candidates, place)
                same = law is row.law if law is None or row.law is None else _alike(law, row.law)
                require(
                    same,
                    "drafter",
                    self._subject.named,
                    f"gave another law at node {frontier.nodes[place]} when it was asked for again at the end of the "
                    "round; a law stays what it is until the round is committed",
                )
        self._round.clear()

    def _inquire(self, slot: int, tree: TokenTree) -> None:
        """Let a drafter ask beside a tree, and give it no answers, without which nothing may change for it."""
        if isinstance(self._drafter, Inquirer):
            deepest = self.rooms[slot] - len(self.texts[slot]) - 1
            asking = self._drafter, self._subject.named, most_added(self._drafter, self._subject.named)
            inquired(*asking, slot, tree, deepest, self._target.vocab_size)

    def _commit(self, event: Commit) -> None:
        trees = {slot: _chain([self.texts[slot][-1], *own[:-1]]) for slot, own in event.tokens.items()}
        outputs = self._target.verify(trees).outputs
        self._target.commit({slot: np.arange(len(tree)) for slot, tree in trees.items()})
        told = {}
        for slot in event.tokens.keys() - event.ends:
            self._inquire(slot, trees[slot])
        for slot, own in event.tokens.items():
            self.texts[slot] += own
            self.read[slot] += len(own)
            if slot not in event.ends:
                features = outputs[slot].features if self._subject.hears else None
                if features is not None:
                    features = features.clone()  # as in the decoder, where the next pass must not overwrite them
                told[slot] = Committed(_ids(own), _ids(event.nodes[slot]), features)
        if told:
            with self._blaming("commit"):
                self._drafter.commit(told)


def _alike(law: FloatArray, before: FloatArray) -> bool:
    if np.shape(law) != before.shape:
        return False
    return bool((law == before).all()) or np.allclose(law, before, 0, TINY)  # which takes ten times as long


def _ids(tokens: Sequence[int]) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    return np.array(tokens, dtype=np.int64)


def _chain(tokens: Sequence[int]) -> TokenTree:
    return TokenTree(tokens=tokens, parents=range(-1, len(tokens) - 1), path_logp=np.zeros(len(tokens)))
