"""Whether what a drafter must read of a text before it drafts is earned back, by what other texts have taught."""

import attrs

ENOUGH = 16
"""Rounds in texts that were drafted for before their gain is trusted."""

FIRST = (2.0, 0.05)
"""What a drafter is taken to save of each token before texts have told, and as firmly as how many of usual length. Few
texts tell little: those of which none was worth it are often followed by one that is, and trying a text costs less than
it may bring."""

MEMORY = 0.9
"""What a text still counts for after another one of usual length. What texts gain differs by far more than what it
costs to try them."""

LATEST = 0.99
"""What a round with a draft still counts for after the next one of any text."""

CREDIT = 32.0
"""What readings may lose in vain, in passes of plain decoding, before anything was gained."""

PAUSES = (1, 64)
"""Texts for which nothing is drafted before it is tried again, where drafting does not pay: at first, and at most."""


@attrs.define(eq=False)
class Alike:
    """What is known of texts whose drafter has about as much to read, and that are drafted for.

    Attributes:
        tokens: of the latest ones; the later a text was, the more it counts.
        passes: what these took, in passes of plain decoding, without readings.
        rounds: how many they had.
        pause: texts that are left out between two that are tried; 0 where drafting pays.
        left: those of them that are left.
    """

    tokens: float = 0.0
    passes: float = 0.0
    rounds: int = 0
    pause: int = 0
    left: int = 0

    def gain(self, usual: float, others: "Alike") -> float | None:
        """Passes of plain decoding that drafting saves a token; None before enough is known.

        Where texts of all lengths together save less than is taken for granted, that is not taken for granted.

        Args:
            usual: tokens of a text.
            others: the same of texts of all lengths.
        """
        texts, saved = FIRST
        first = texts * usual
        if others.rounds >= ENOUGH:
            saved = min(saved, 1.0 - (others.passes + first * (1.0 - saved)) / (others.tokens + first))
        if self.rounds < ENOUGH and saved == FIRST[1]:
            return None
        return 1.0 - (self.passes + first * (1.0 - saved)) / (self.tokens + first)

    def leave_out(self) -> bool:
        """Whether the next text is not tried, where drafting does not pay; ever more are not."""
        if self.left:
            self.left -= 1
            return True
        self.left = self.pause = min(max(2 * self.pause, PAUSES[0]), PAUSES[1])
        return False


@attrs.define(eq=False)
class EarnedBack:
    """What is known of drafting over all texts of a machine at about one temperature, and what readings are paid from.

    Long texts are told from short ones, by the power of two that their drafters have to read: more has to be earned
    back where more is read, and what is asked of a long text, a summary perhaps, is often of another kind.

    Attributes:
        credit: what readings may lose now, in passes of plain decoding.
        texts: how many have had a round.
        emitted: their tokens.
        by_length: what is known of texts that are alike, by the bit length of how many tokens are read first.
        all: the same of all texts that are drafted for.
        drafts: of the latest rounds with a draft their tokens, what they took with the guesses before them, in passes
            of plain decoding, and how many there were; the later a round was, the more it counts.
        branched: rounds whose trees had branches so that it becomes known what such a round takes.
    """

    credit: float = CREDIT
    texts: int = 0
    emitted: int = 0
    by_length: dict[int, Alike] = attrs.field(factory=dict)
    all: Alike = attrs.field(factory=Alike)
    drafts: tuple[float, float, float] = (0.0, 0.0, 0.0)
    branched: int = 0

    def drafted(self, tokens: int, passes: float) -> None:
        """A round with a draft is over; arguments as for `went`."""
        before = self.drafts
        self.drafts = LATEST * before[0] + tokens, LATEST * before[1] + passes, LATEST * before[2] + 1.0

    @property
    def gain_of_drafts(self) -> float | None:
        """Tokens of rounds with a draft by what they took, in passes of plain decoding; None before enough is known."""
        tokens, passes, rounds = self.drafts
        return tokens / passes if rounds >= ENOUGH else None

    def begun(self, debt: float, unread: int, most_new: int) -> Alike | None:
        """What is known of texts like one that is drafted for, which pays for it; None where nothing is drafted.

        Args:
            debt: what the drafter has to read first, in passes of plain decoding.
            unread: the same in tokens.
            most_new: tokens that the text may still have.
        """
        alike = self.by_length.setdefault(unread.bit_length(), Alike())
        if debt > 0.0:
            usual = self.emitted / max(self.texts, 1)
            gain = alike.gain(usual, self.all)
            if gain is not None:
                if min(most_new, usual) * gain >= debt:
                    alike.left = alike.pause = 0
                elif alike.leave_out():
                    return None
            if debt > self.credit:
                return None
            self.credit -= debt
        return alike

    def went(self, tokens: int, passes: float, alike: Alike | None, share: float) -> None:
        """A round is over; its text is among `texts`.

        Args:
            tokens: that it has emitted, at least 1.
            passes: that it took, in passes of plain decoding.
            alike: as `begun` has given it for its text.
            share: of the time of plain decoding that may be lost.
        """
        self.emitted += tokens
        self.credit += (1.0 + share) * tokens - passes
        if alike is not None:
            kept = MEMORY ** (tokens * self.texts / self.emitted)
            for one in (alike, self.all):
                one.tokens, one.passes = kept * one.tokens + tokens, kept * one.passes + passes
                one.rounds += 1
