"""The right answers of a drafter, by one that was given the text alone, and what makes it answer otherwise."""

from collections.abc import Callable, Sequence
from functools import partial

import attrs
import numpy as np

from talon_core.drafter import Drafter, Frontier
from talon_core.errors import naming, written
from talon_core.testing.drafter_answers import Row, difference
from talon_core.testing.drafter_driver import Asked
from talon_core.testing.drafter_events import (
    Ask,
    Commit,
    Event,
    Open,
    Player,
    Read,
    Resume,
    Subject,
    Tokens,
    only,
    without,
)
from talon_core.testing.drafter_steps import LARGEST_WIDTH, WIDEST
from talon_core.tree import TokenTree

TIMES = 6
"""How often a question is asked before its answer is believed; what is tossed with a coin is told 31 times in 32."""

_ANEW = "when all was told and asked anew"
_RANDOM = f"{_ANEW}; nothing about a drafter may be random"
_FORMER = "in a slot that had held another text; open forgets whatever was known of that"


class Reference:
    """Answers by a drafter that is given each text as a prompt, read at once, and drafts from one path alone.

    Args:
        subject: what is checked.
        player: of a drafter that is used for nothing else; in session.
        width: most candidates that are asked for.
    """

    def __init__(self, subject: Subject, player: Player, width: int) -> None:
        self._subject = subject
        self._player = player
        self._width = min(width, subject.target.vocab_size)
        self._known: dict[tuple[Tokens, Tokens, int | None], Row] = {}

    def answer(self, asked: Asked) -> Row:
        """The right answer to a question, asked for as many candidates as ever are."""
        if (asked.text, asked.path, asked.source) not in self._known:
            self._ask_along(asked.text, asked.path, asked.room, asked.source)
        return self._known[asked.text, asked.path, asked.source]

    def _ask_along(self, text: Tokens, path: Tokens, room: int, source: int | None) -> None:
        slot = self._subject.slots[0]
        self._player.give(slot, text, room)
        tree = TokenTree.root(text[-1])
        for depth in range(len(path) + 1):
            frontier = Frontier(slot, tree, np.array([depth]), self._width, source)
            _, ((row,),) = self._player.play(Ask((frontier,)))
            self._known[text, path[:depth], source] = row
            if depth < len(path):
                tree = tree.extend(np.array([path[depth]]), np.array([depth]), tree.path_logp[[depth]] - 1.0)


def _given(slot: int, text: Tokens, room: int) -> list[Event]:
    """A text as a prompt, read at once."""
    return [Open(slot, text, room), *([Read({slot: len(text) - 1})] if len(text) > 1 else [])]


@attrs.frozen(eq=False)
class Trial:
    """A history that ends with the question, and what is to be said if the answer is wrong after it.

    Attributes:
        events: the last one is the `Ask`.
        where: under which circumstances, and what is right.
    """

    events: Sequence[Event]
    where: str


def fault(subject: Subject, make: Callable[[], Drafter], events: Sequence[Event], asked: Asked, wrong: str) -> str:
    """Why an answer was wrong, as a sentence: what made it so is found by adding one circumstance after the other.

    A circumstance is blamed only where the answer is the same each time that all is told and asked anew.

    Args:
        subject: what is checked.
        make: opens another drafter.
        events: everything that happened.
        asked: the question.
        wrong: how its answer differed from the right one.
    """
    fresh = partial(_fresh_answer, subject, make, asked)
    right = fresh()
    differs = _change(subject, right, fresh)
    if differs is not None:
        return _sentence(subject, asked, differs, _RANDOM)
    if difference(asked.row, right, subject.tolerance) is None:  # what was compared with it had read other texts
        return _sentence(subject, asked, wrong, _FORMER)
    for trial in _trials(events[: asked.event + 1], asked):
        anew = partial(_answer, subject, make, trial.events, asked)
        found = anew()
        differs = difference(found, right, subject.tolerance)
        if differs is not None:
            changes = _change(subject, found, anew)
            return _sentence(subject, asked, *((differs, trial.where) if changes is None else (changes, _RANDOM)))
    return _sentence(subject, asked, wrong, f"and otherwise {_RANDOM}")


def _change(subject: Subject, found: Row, ask: Callable[[], Row]) -> str | None:
    """How another answer to the same question differs from the one that was found; None if none does."""
    for _ in range(TIMES - 1):
        differs = difference(ask(), found, subject.tolerance)
        if differs is not None:
            return differs
    return None


def _fresh_answer(subject: Subject, make: Callable[[], Drafter], asked: Asked) -> Row:
    with Player(subject, make()) as player:
        return Reference(subject, player, WIDEST if asked.row.width <= WIDEST else LARGEST_WIDTH).answer(asked)


def _sentence(subject: Subject, asked: Asked, differs: str, where: str) -> str:
    at = f"after the text {written([*asked.text])}"
    if asked.path:
        at += f" and the drafted tokens {written([*asked.path])}"
    return f"{naming('drafter', subject.named)} proposed {differs} {at}, {where}"


def _answer(subject: Subject, make: Callable[[], Drafter], events: Sequence[Event], asked: Asked) -> Row:
    with Player(subject, make()) as player:
        for event in events[:-1]:
            player.play(event)
        played, answers = player.play(events[-1])
        assert isinstance(played, Ask)
        at = [one.slot for one in played.frontiers].index(asked.slot)
        return answers[at][asked.place]


def _trials(events: Sequence[Event], asked: Asked) -> list[Trial]:
    """Histories of the question, each with one circumstance more than the one before."""
    slot = asked.slot
    begins = max(i for i, event in enumerate(events) if isinstance(event, Open | Resume) and event.slot == slot)
    before, since = _opened(events[:begins]), _opened(events[begins:])
    life = [own for event in since if (own := only(event, slot)) is not None]
    commits = [i for i, event in enumerate(life) if isinstance(event, Commit)]
    this_round = [event for event in life[commits[-1] + 1 if commits else 0 :] if isinstance(event, Ask)]
    first = life[0]
    assert isinstance(first, Open)
    at_once = _given(slot, first.prompt, first.room)
    undrafted = [Commit(event.tokens, {slot: (0,)}) for event in life if isinstance(event, Commit)]
    drafted = [event for event in life if isinstance(event, Ask | Commit)]
    beside = [*(other for event in before if (other := without(event, slot)) is not None), *since]
    return [
        Trial(
            [*_given(slot, asked.text, asked.room), *this_round],
            "where other nodes were drafted from as well, or fewer candidates were wanted; those of a node follow from "
            "the text and its own path",
        ),
        Trial(
            [*at_once, *undrafted, *this_round],
            "which had come by commit; what is committed counts as if it had been in the prompt",
        ),
        Trial(
            [*at_once, *drafted],
            "of which a part had come by commit after drafting; a commit leaves nothing of what was drafted",
        ),
        Trial(life, "of which the prompt was read in parts; read may tell of parts of any size"),
        Trial(beside, "while other slots were in use; each slot is drafted for as if it were alone"),
        Trial([*before, *since], _FORMER),
        Trial(events, "where texts were taken over by resume; these count as if they had been read"),
    ]


def _opened(events: Sequence[Event]) -> list[Event]:
    """The events, and in the place of each text that is taken over one that is read."""
    plain: list[Event] = []
    for event in events:
        if isinstance(event, Resume):
            plain.append(Open(event.slot, event.prompt, event.room))
            plain += [Read({event.slot: event.told})] if event.told else []
        else:
            plain.append(event)
    return plain
