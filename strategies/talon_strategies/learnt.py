"""What `talon-cost` learns of a text."""

from collections.abc import Iterable
from math import ceil

import attrs
import numpy as np

from talon_core.chains import Chains
from talon_core.tree import FloatArray
from talon_strategies.calibration import Calibration
from talon_strategies.chain_plan import ChainNote, learn_chains
from talon_strategies.draws_learnt import Drawing
from talon_strategies.earned_back import Alike, EarnedBack
from talon_strategies.following import Following

WIDTH, WIDEST = 10, 32
"""Candidates of each node that are looked at while nothing is known, TALON's K (arXiv 2601.07353, section 5.2), and at
most: with more, the policy's own time is more than they bring."""

MEMORY = 0.97
"""What a round's tokens and seconds still count for after the next one."""

LIKE_OTHERS = 20.0
"""Rounds with a draft of other texts that count as much as those of a text itself, at its beginning."""

ENOUGH = 3
"""Rounds with a draft before it is decided by them whether drafting pays."""

LOOKS = 16
"""Guesses of the drafter that are left out before it is decided whether it is asked for as many others."""

PAUSES = (16, 64)
"""Rounds of plain decoding before drafting is tried again: at first, and from then on."""

SHARE = 1.0 / 0.98 - 1.0
"""What drafts may lose of the time of plain decoding, in whichever part of a text."""

CREDIT = (2.0, 32.0)
"""What drafts may lose besides, in passes of plain decoding: at the beginning of a text, and at most, where others have
gained as much."""


@attrs.define(eq=False)
class Learnt:
    """What is known of a text.

    Attributes:
        calibration: of the drafter's probabilities.
        scores: log-probabilities of the paths to this round's nodes, calibrated, the root's first.
        own: probabilities of these nodes once their parents are accepted, calibrated, likewise.
        above: log-probabilities of the paths to the nodes of the frontier, shape `(frontier, 1)`.
        offered: log-probabilities of the paths to the newest candidates, shape `(frontier, width)`.
        rate: what a second is worth in this round, in tokens.
        width: candidates of each node that are looked at.
        layers: of this round: what is to be learnt of each, see `Following.learn`.
        following: what has followed nodes.
        new: its tokens.
        tokens: expected of the latest rounds with a draft; the later a round was, the more it counts.
        emitted: what these have brought, likewise.
        passes: what these rounds took, and the guesses before them, in passes of plain decoding.
        drafted: how many there were.
        looks: guesses that were left out since the latest draft or pause.
        looking: what it took to ask for them, in passes of plain decoding.
        pause: rounds of plain decoding that were decided on last; 0 where drafting paid.
        left: those of them that are left, or rounds until a draft may be paid.
        credit: what drafts may lose now, in passes of plain decoding.
        asked: seconds of the round's first layer, where the drafter is asked.
        unread: tokens of the text that the drafter may have to read before it drafts.
        catching_up: seconds that this takes in this round, where they count as what is lost in this text.
        most_new: tokens that the text may have.
        rests_on: whether rounds that follow each other without a draft are priced as such.
        begun: whether the text is drafted for; None before that is decided.
        wanted: candidates of the root that are asked for in this round, where chains were asked about; otherwise None.
        chainable: whether passes of chains may be run ahead.
        branching: rounds to come, this one among them, whose trees may have branches though passes could be run ahead.
        chained: whether rounds are priced as those of chains are.
        chains: what trees of rounds to come are; None where they are no chains.
        spare: what is left of the credit of their account.
        notes: of the rounds with these that are over.
        layers_of_chain: log-probabilities of the candidates of each layer of this round, where its tree is one of them.
        alike: what is known of texts like it, where it is.
        drawing: what is known of draws, where tokens of chains may be drawn.
        others: what other texts of the machine have taught, at about the same temperature.
    """

    calibration: Calibration = attrs.field(factory=Calibration)
    scores: FloatArray = attrs.field(factory=lambda: np.zeros(1))
    own: FloatArray = attrs.field(factory=lambda: np.ones(1))
    above: FloatArray = attrs.field(factory=lambda: np.empty((0, 1)))
    offered: FloatArray = attrs.field(factory=lambda: np.empty((0, 0)))
    rate: float = 0.0
    width: int = WIDTH
    layers: list[tuple[FloatArray, FloatArray]] = attrs.field(factory=list)
    following: Following = attrs.field(factory=Following)
    new: int = 0
    tokens: float = 0.0
    emitted: float = 0.0
    passes: float = 0.0
    drafted: int = 0
    looks: int = 0
    looking: float = 0.0
    pause: int = 0
    left: int = 0
    credit: float = CREDIT[0]
    asked: float = 0.0
    unread: int = 0
    catching_up: float = 0.0
    most_new: int = 1
    rests_on: bool = False
    begun: bool | None = None
    wanted: int | None = None
    chainable: bool = False
    branching: int = 0
    chained: bool = False
    chains: Chains | None = None
    spare: float = 0.0
    notes: list[ChainNote] = attrs.field(factory=list)
    layers_of_chain: list[FloatArray] = attrs.field(factory=list)
    alike: Alike | None = None
    drawing: Drawing | None = None
    others: EarnedBack = attrs.field(factory=EarnedBack)

    def paid(self, tokens: int, passes: float) -> None:
        """A round is over.

        Args:
            tokens: that it has emitted.
            passes: that it took, in passes of plain decoding.
        """
        self.credit = min(self.credit + (1.0 + SHARE) * tokens - passes, CREDIT[1])
        self.others.texts += not self.new
        self.new += tokens
        self.others.went(tokens, passes, self.alike, SHARE)

    def save(self, lacking: float) -> None:
        """A draft costs more than may be lost: nothing is drafted until it may be, or prices have had time to change.

        Args:
            lacking: how much more, in passes of plain decoding, above 0.
        """
        self.left = min(ceil(lacking / SHARE), PAUSES[1])
        self.asked = self.catching_up = 0.0

    def expect(self) -> None:
        """The text begins: its first rounds with a draft are taken to be like those of others, as some of its own."""
        gain = self.others.gain_of_drafts
        if gain is not None:
            self.tokens = self.emitted = gain * LIKE_OTHERS
            self.passes = LIKE_OTHERS

    def went_on(self, note: ChainNote) -> None:
        """A round is over whose tree was one of `chains`."""
        self.notes.append(note)
        chains, account = self.chains, None if self.chains is None else self.chains.account
        if account is not None:
            self.spare = self.spare + account.of(len(note.logp), note.nodes, note.new)
        if chains is None or len(self.notes) >= chains.rounds or (account and self.spare < account.least):
            self.leave_chains()

    def leave_chains(self) -> None:
        """Trees are no such chains any more: learn from those that were."""
        notes, self.notes, chains, self.chains = self.notes, [], self.chains, None
        if notes:
            drawn = chains is not None and chains.drawn is not None
            told = learn_chains(notes, self.calibration, self.following, self.drawing, drawn)
            self.went(zip(told, [note.new for note in notes], [note.passes for note in notes], strict=True))

    def went(self, rounds: Iterable[tuple[float, int, float]]) -> None:
        """Rounds with a draft are over: decide whether others follow.

        Args:
            rounds: of each the tokens that were expected of it, those that it has emitted, and what it took, in passes
                of plain decoding; at least one.
        """
        for expected, new, passes in rounds:
            took = passes + self.looking
            self.looks, self.looking = 0, 0.0
            self.tokens, self.emitted = MEMORY * self.tokens + expected, MEMORY * self.emitted + new
            self.passes = MEMORY * self.passes + took
            self.drafted += 1
            self.others.drafted(new, took)
        if self.drafted >= ENOUGH:
            self.left = self.pause = 0 if self.pays else PAUSES[self.pause > 0]

    def looked(self, passes: float) -> None:
        """The drafter's best guess was left out, and to ask for it took so long: a part of what the next draft costs.

        Args:
            passes: in passes of plain decoding.
        """
        if self.left:  # it was asked for ahead of its round, before the pause
            return
        self.looks, self.looking = self.looks + 1, self.looking + passes
        if self.looks % LOOKS == 0 and not self.pays:
            self.left = self.pause = PAUSES[self.pause > 0]
            self.looks, self.looking = 0, 0.0

    @property
    def pays(self) -> bool:
        """Whether what was emitted in the latest rounds with a draft, or expected of them, pays for these.

        And for guesses that were left out since, as far as these cost more than drafts may lose besides.
        """
        return max(self.tokens, self.emitted) + SHARE * self.looks >= self.passes + self.looking
