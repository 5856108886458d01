"""The law at a node: what look-ups have found, mixed into a model's law."""

from collections.abc import Callable, Sequence
from functools import partial
from heapq import nlargest
from operator import itemgetter

import attrs
import numpy as np

from talon_core.candidates import Candidates
from talon_core.drafter import Frontier
from talon_core.tree import FloatArray

Shares = dict[int, float]


@attrs.frozen(eq=False)
class Row:
    """What models say at a node.

    Attributes:
        probs: of the likeliest tokens, best first; each as likely as any other at least.
        law: the whole law, shape `(vocab,)`, float64; computed on demand. Raises ValueError where there is none.
    """

    probs: Shares
    law: Callable[[], FloatArray]

    @classmethod
    def of(cls, candidates: Candidates, row: int) -> "Row | None":
        """A row of a model's answer; None if it knows nothing there."""
        probs = np.exp(candidates.logp[row]).tolist()
        known = {token: prob for token, prob in zip(candidates.tokens[row].tolist(), probs, strict=True) if token >= 0}
        return cls(known, partial(candidates.law, row)) if known else None

    @classmethod
    def mean(cls, rows: Sequence["Row"], width: int, vocab_size: int) -> "Row | None":
        """The mean of several models' laws, with its `width` likeliest tokens; None if there is none."""
        if len(rows) < 2:
            return rows[0] if rows else None
        mean = np.mean([row.whole(vocab_size) for row in rows], axis=0)
        width = min(width, int((mean > 0).sum()))
        best = np.argpartition(-mean, width - 1)[:width]
        best = best[np.argsort(-mean[best], kind="stable")]
        probs = dict(zip(best.tolist(), mean[best].tolist(), strict=True))
        return cls(probs, lambda: np.mean([row.law() for row in rows], axis=0))

    def whole(self, vocab_size: int) -> FloatArray:
        """The law, or where there is none, what was offered, and 0 for other tokens."""
        try:
            return self.law()
        except ValueError:
            law = np.zeros(vocab_size)
            law[list(self.probs)] = list(self.probs.values())
            return law

    @property
    def best(self) -> float:
        """The greatest probability."""
        return next(iter(self.probs.values()))


@attrs.frozen(eq=False)
class Mixture:
    """The law at a node.

    Attributes:
        found: what look-ups put on tokens.
        rest: what is left for the models' law, or where there is none, for a uniform one; with `found` it sums to 1.
        row: what the models say; None if nothing.
        vocab_size: the target's.
    """

    found: Shares
    rest: float
    row: Row | None
    vocab_size: int

    def law(self) -> FloatArray:
        """The whole law, shape `(vocab,)`, float64."""
        base = self.row.law() if self.row is not None else np.full(self.vocab_size, 1.0 / self.vocab_size)
        law = self.rest * base
        law[list(self.found)] += list(self.found.values())
        return law

    def best(self, width: int, least: float) -> list[tuple[int, float]]:
        """The likeliest tokens with their probabilities, best first.

        Args:
            width: how many at most.
            least: the smallest probability where the models say nothing.
        """
        if self.row is None:
            floor = self.rest / self.vocab_size
            probs = {token: prob + floor for token, prob in self.found.items() if prob + floor >= least}
        else:
            probs = {token: self.rest * prob for token, prob in self.row.probs.items()}
            self._add_found(probs, width)
        return nlargest(width, ((token, prob) for token, prob in probs.items() if prob > 0), key=itemgetter(1))

    def _add_found(self, probs: Shares, width: int) -> None:
        """Add what was found to the models' likeliest tokens; of others, the law says what the models give to them."""
        others: Shares = {}
        for token, prob in self.found.items():
            if token in probs:
                probs[token] += prob
            else:
                others[token] = prob
        assert self.row is not None
        if len(self.row.probs) >= width:  # a token that could not be among the best need not be looked at
            most = self.rest * min(self.row.probs.values())
            bar = nlargest(width, probs.values())[-1]
            others = {token: prob for token, prob in others.items() if prob + most >= bar}
        if others:
            law = self.row.whole(self.vocab_size)
            probs.update({token: prob + self.rest * float(law[token]) for token, prob in others.items()})


def candidates_of(mixtures: Sequence[Mixture], frontier: Frontier, least: float) -> Candidates:
    """The candidates of a frontier, a mixture for each of its nodes; `least` as in `Mixture.best`."""
    ranked = [mixture.best(frontier.width, least) for mixture in mixtures]
    return Candidates.from_rows(frontier.tree, frontier.nodes, ranked, lambda row: mixtures[row].law())
