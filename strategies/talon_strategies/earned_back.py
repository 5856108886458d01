"""Whether what a drafter must read of a text before it drafts is earned back, by what other texts have taught."""

import attrs

ENOUGH = 16
"""Rounds with a draft, of all texts, before their gain is trusted."""

MEMORY = 0.99
"""What a round's tokens and seconds still count for after the next one."""

CREDIT = 32.0
"""What readings may lose in vain, in passes of plain decoding, before anything was gained."""

PAUSES = (1, 64)
"""Texts for which nothing is drafted before it is tried again, where drafting does not pay: at first, and at most."""


@attrs.define(eq=False)
class EarnedBack:
    """What is known of drafting over all texts of a machine, and the account that readings are paid from.

    Attributes:
        tokens: of the latest rounds in texts that are drafted for; the later a round was, the more it counts.
        passes: what these rounds took, in passes of plain decoding, without readings.
        rounds: how many there were.
        credit: what readings may lose now, in passes of plain decoding.
        texts: how many were begun.
        emitted: their tokens.
        pause: texts that are left out between two that are tried; 0 where drafting pays.
        left: those of them that are left.
    """

    tokens: float = 0.0
    passes: float = 0.0
    rounds: int = 0
    credit: float = CREDIT
    texts: int = 0
    emitted: int = 0
    pause: int = 0
    left: int = 0

    def begins(self, debt: float, most_new: int) -> bool:
        """Whether a text is drafted for; what that takes before is paid if it is.

        Args:
            debt: what the drafter has to read first, in passes of plain decoding.
            most_new: tokens that the text may still have.
        """
        if debt <= 0.0:
            return True
        if self.rounds >= ENOUGH:
            new = min(most_new, self.emitted / self.texts)
            if new * (1.0 - self.passes / self.tokens) >= debt:
                self.left = self.pause = 0
            elif self.left:
                self.left -= 1
                return False
            else:
                self.left = self.pause = min(max(2 * self.pause, PAUSES[0]), PAUSES[1])
        if debt > self.credit:
            return False
        self.credit -= debt
        return True

    def went(self, tokens: int, passes: float, drafted_for: bool, share: float) -> None:
        """A round is over.

        Args:
            tokens: that it has emitted.
            passes: that it took, in passes of plain decoding.
            drafted_for: whether drafts are made in its text.
            share: of the time of plain decoding that may be lost.
        """
        self.emitted += tokens
        self.credit += (1.0 + share) * tokens - passes
        if drafted_for:
            self.tokens, self.passes = MEMORY * self.tokens + tokens, MEMORY * self.passes + passes
            self.rounds += 1
