"""What a drafter has answered at a node: whether it is well formed, and how two answers differ."""

import attrs
import numpy as np

from talon_core.candidates import Candidates
from talon_core.drafter import Frontier
from talon_core.engine.checked_candidates import checked_candidates, rounding
from talon_core.errors import blaming
from talon_core.testing.claims import require
from talon_core.tree import FloatArray, IntArray

TINY = 1e-12
"""Probabilities that differ by no more are the same."""


@attrs.frozen(eq=False)
class Row:
    """The answer at one node.

    Attributes:
        width: how many candidates were asked for.
        tokens: those that were offered, without padding, shape `(offered,)`, int64.
        probs: their probabilities, same shape, float64.
        law: the whole law, shape `(vocab,)`, float64; None if the drafter has none here.
    """

    width: int
    tokens: IntArray
    probs: FloatArray
    law: FloatArray | None


def checked_rows(drafter: object, given: object, asked: Frontier, vocab_size: int) -> tuple[Row, ...]:
    """The answers at a frontier's nodes, if they are well formed.

    Args:
        drafter: whom errors name.
        given: what was proposed for the frontier.
        asked: the frontier.
        vocab_size: the target's.

    Raises:
        PluginError: if the decoder would refuse them.
        AssertionError: if they are wrong in a way that the decoder does not look for.
    """
    checked = checked_candidates(drafter, given, asked.tree, asked.nodes, vocab_size, asked.width)
    assert isinstance(given, Candidates)
    for what, dtype in (("tokens", np.int64), ("logp", np.float64), ("path_logp", np.float64)):
        found = getattr(given, what).dtype
        require(
            found == dtype,
            "drafter",
            drafter,
            f"returned {what} of type {found} from propose; it must be {np.dtype(dtype)}",
        )
    rows = []
    for place in range(len(asked.nodes)):
        real = checked.tokens[place] >= 0
        tokens, logp = checked.tokens[place][real], checked.logp[place][real]
        _check_sum(drafter, logp)
        law = _checked_law(drafter, given, checked, place)
        if law is not None:
            _check_fit(drafter, tokens, logp, law)
        rows.append(Row(asked.width, tokens, np.exp(logp), law))
    return tuple(rows)


def law_of(drafter: object, given: Candidates, row: int) -> FloatArray | None:
    """What the drafter's own handle gives; None where it says by a ValueError that there is no law.

    Args:
        drafter: whom errors name.
        given: what was proposed for a frontier.
        row: of the frontier.

    Raises:
        PluginError: if the handle fails in another way.
    """
    try:
        with blaming("drafter", drafter, "law", but=lambda error: isinstance(error, ValueError)):
            return given.law(row)
    except ValueError:
        return None


def _check_sum(drafter: object, logp: FloatArray) -> None:
    """Check that a row's probabilities are a part of a law, up to what rounding to bfloat16 may do."""
    probs = np.exp(logp)
    total, least = float(probs.sum()), float((probs * (1.0 - np.minimum(rounding(logp), 1.0))).sum())
    require(
        least <= 1.0 + TINY,
        "drafter",
        drafter,
        f"gave a row whose probabilities sum to {total:.6g}; they are parts of one law, and sum to at most 1",
    )


def _checked_law(drafter: object, given: Candidates, checked: Candidates, row: int) -> FloatArray | None:
    own = law_of(drafter, given, row)
    if own is None:
        return None
    law = checked.law(row)
    dtype = np.asarray(own).dtype
    require(dtype == np.float64, "drafter", drafter, f"gave a law of type {dtype}; it must be float64")
    return law


def _check_fit(drafter: object, tokens: IntArray, logp: FloatArray, law: FloatArray) -> None:
    """Check that a row holds the logarithms of a law's largest entries, up to what rounding to bfloat16 may do."""
    if not len(tokens):
        return
    slack = np.minimum(rounding(logp), 1.0)
    probs, own = np.exp(logp), law[tokens]
    off = np.abs(probs - own) > slack * np.maximum(probs, own) + TINY
    if off.any():
        at = int(off.argmax())
        require(
            False,
            "drafter",
            drafter,
            f"gave token {tokens[at]} the logp {logp[at]:.6g} in propose and the probability {own[at]:.6g} in the law "
            f"of the same row; logp is the logarithm, {np.log(max(own[at], TINY)):.6g}",
        )
    left = law.copy()
    left[tokens] = 0.0
    better = int(left.argmax())
    least = float(own[-1])
    require(
        left[better] <= least * (1.0 + slack[-1]) + TINY,
        "drafter",
        drafter,
        f"left token {better} of probability {left[better]:.6g} out of a row that offers token {tokens[-1]} of "
        f"probability {least:.6g}; propose offers a law's largest entries",
    )


def difference(mine: Row, right: Row, tolerance: float) -> str | None:
    """How an answer differs from the right one, as the object of "proposed"; None if it does not.

    Args:
        mine: the answer.
        right: the right one; it was asked for as many candidates, or for more.
        tolerance: by how much probabilities may differ. Tokens about as likely as each other may stand for each other;
            of equals the same ones stand in the same order wherever as many were asked for.
    """
    expected = min(mine.width, len(right.tokens))
    if len(mine.tokens) != expected:
        return f"{len(mine.tokens)} candidates of {mine.width} that were asked for instead of {expected}"
    probs = dict(zip(right.tokens.tolist(), right.probs.tolist(), strict=True))
    for token, prob in zip(mine.tokens.tolist(), mine.probs.tolist(), strict=True):
        if token in probs and abs(prob - probs[token]) > tolerance:
            return f"token {token} with probability {prob:.6g} instead of {probs[token]:.6g}"
        if token not in probs and prob > right.probs[-1] + tolerance:
            return f"token {token} with probability {prob:.6g}, which is not among the {len(right.tokens)} likeliest"
    for token in right.tokens[:expected].tolist():
        if token not in mine.tokens and probs[token] > mine.probs[-1] + tolerance:
            return f"no token {token}, which has probability {probs[token]:.6g}, but token {mine.tokens[-1]}"
    if mine.width == right.width and np.array_equal(mine.probs, right.probs):
        for token, other in zip(mine.tokens.tolist(), right.tokens.tolist(), strict=True):
            if token != other:
                return f"token {token} in the place of token {other}, which is exactly as likely,"
    return _law_difference(mine.law, right.law, tolerance)


def _law_difference(mine: FloatArray | None, right: FloatArray | None, tolerance: float) -> str | None:
    if mine is None or right is None:
        said = {True: "no law", False: "a law"}
        return None if mine is right else f"{said[mine is None]} instead of {said[right is None]}"
    apart = np.abs(mine - right)
    worst = int(apart.argmax())
    if apart[worst] <= tolerance:
        return None
    return f"a law that gives token {worst} probability {mine[worst]:.6g} instead of {right[worst]:.6g}"
