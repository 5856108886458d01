"""`python -m talon_drafters.hybrid.fitting TRACE`: how well the constants of `hybrid` mix a model with a look-up."""

import argparse
import json
import sys
from collections.abc import Sequence
from itertools import pairwise
from math import log
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from talon_core.drafter import Committed, Frontier, Retriever
from talon_core.engine.checked_drafter import opened
from talon_core.errors import PluginError, one_line
from talon_core.plugins.parts import built
from talon_core.plugins.registry import load_registry
from talon_core.trace.columns import TextTrace
from talon_core.trace.folder import Trace, read_trace
from talon_core.tree import TokenTree
from talon_drafters.hybrid.calibration import FITTED, Constants, Trust

EACH = 5
"""One text of so many is held out."""

LEAST = 1e-4
"""A probability counts as this much at least: one that is next to nothing is never drafted."""

STEPS = {
    **{"slope": 0.2, "intercept": 0.2, "beside_intercept": 0.2, "beside_model": 0.1},
    **{"rate": 0.05, "kept": 0.02, "slope_rate": 0.01},
}
"""By how much each constant is moved first; then by halves."""

HALVED = 3

SHARES = (0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 1.0)
"""Bounds of the groups of guesses."""

ROOT = np.zeros(1, dtype=np.int64)


@attrs.frozen
class Before:
    """What is said before a token.

    Attributes:
        share: of the look-up's best token; 0 where it has found nothing.
        came: whether that token came.
        found: all shares together.
        own: that of the token that came.
        best: the greatest probability of the model; None in the prompt, where it is not asked.
        prob: what the model gives to the token that came.
    """

    share: float
    came: bool
    found: float
    own: float
    best: float | None = None
    prob: float = 0.0


@attrs.frozen
class Fit:
    """How well constants predict, in nats a token: the mixture the text, and the look-up whether it is right."""

    mixture: float
    look_up: float

    @property
    def total(self) -> float:
        """Both together, which the constants are to make the most of."""
        return self.mixture + self.look_up


def story(text: TextTrace, trace: Trace, retriever: Retriever) -> list[Before]:
    """What is said before each token of a text but the first."""
    assert text.rows is not None
    ids, vocab_size, found = text.ids, trace["target"]["vocab_size"], []
    retriever.open(0, ids[:1].copy(), len(ids))
    for place, token in enumerate(ids[1:].tolist(), start=1):
        before = Frontier(0, TokenTree.root(int(ids[place - 1])), ROOT, 1)
        (shares,) = retriever.look_up(before)
        best = max(shares, key=shares.__getitem__, default=None)
        row = text.rows.root(place - text.prompt_tokens) if place >= text.prompt_tokens else -1
        said: dict[str, float] = {}
        if row >= 0:
            tokens, logp = text.rows.offered([row], text.rows.width)
            probs = np.exp(logp[0])
            same = np.flatnonzero(tokens[0] == token)
            rest = max(1.0 - float(probs.sum()), 0.0) / vocab_size
            said = {"best": float(probs[0]), "prob": float(probs[same[0]]) if len(same) else rest}
        share = 0.0 if best is None else shares[best]
        found.append(Before(share, best == token, sum(shares.values()), shares.get(token, 0.0), **said))
        retriever.commit({0: Committed(ids[place : place + 1].copy(), ROOT)})
    retriever.close(0)
    roots = [row for position in range(text.positions) if (row := text.rows.root(position)) >= 0]
    text.rows.check(roots, text.rows.width, vocab_size)
    return found


def fit_of(stories: Sequence[Sequence[Before]], constants: Constants) -> Fit:
    """How well constants do on texts; new tokens count, and the prompts are what is learnt from before."""
    mixture, guesses = [], []
    for text in stories:
        trust = Trust(constants)
        for one in text:
            if one.best is not None:
                prob = one.prob
                if one.share:
                    weight = trust.beside({0: one.share}, one.best)
                    prob = weight * one.own / one.found + (1.0 - weight) * prob
                    comes = trust.comes(one.share)
                    guesses.append(log(max(comes if one.came else 1.0 - comes, LEAST)))
                mixture.append(log(max(prob, LEAST)))
            if one.share:
                trust.learn(one.share, one.came)
    return Fit(sum(mixture) / max(len(mixture), 1), sum(guesses) / max(len(mixture), 1))


def fitted(stories: Sequence[Sequence[Before]]) -> Constants:
    """What is reached from the shipped constants, one at a time, by ever smaller steps that each make it better."""
    best, known = FITTED, fit_of(stories, FITTED).total
    for halved in range(1 + HALVED):
        for name, step in STEPS.items():
            for sign in (1.0, -1.0):
                while True:
                    moved = attrs.evolve(best, **{name: getattr(best, name) + sign * step / 2**halved})
                    if min(moved.rate, moved.slope_rate, moved.kept) < 0 or moved.kept >= 1:
                        break
                    total = fit_of(stories, moved).total
                    if total <= known:
                        break
                    best, known = moved, total
    return best


def told(trace: Trace, look_up: str) -> dict[str, Any]:
    """What the command prints, as plain data.

    Raises:
        ValueError: if the trace is of a drafter of texts, or `look_up` is no look-up.
    """
    if trace["drafter"]["reads_texts"]:
        raise ValueError(
            f"the trace in '{trace.folder}' is of '{trace['drafter']['spec']}', which reads texts alone; give one of a "
            "drafter with a model"
        )
    spec = built(load_registry(), "drafter", look_up)
    if not spec.reads_texts:
        raise ValueError(f"--look-up is '{look_up}', which needs a model; give one that reads texts alone, as ngram")
    retriever = opened(spec, trace.target)
    if not isinstance(retriever, Retriever):
        raise ValueError(  # noqa: TRY004 - the option is wrong
            f"--look-up is '{look_up}', which is no Retriever; give ngram, pld or datastore"
        )
    stories = [story(text, trace, retriever) for text in trace]
    if len(stories) < 2:
        raise ValueError(f"the trace in '{trace.folder}' has {len(stories)} texts; there must be at least 2")
    learnt_from = [one for place, one in enumerate(stories) if place % EACH]
    held_out = stories[::EACH]
    best = fitted(learnt_from)
    new = [one for text in held_out for one in text if one.best is not None]
    model = sum(log(max(one.prob, LEAST)) for one in new) / max(len(new), 1)
    return {
        "look_up": look_up,
        "texts": len(stories),
        "held_out": len(held_out),
        "tokens_held_out": len(new),
        "model_alone": model,
        "shipped": {"constants": attrs.asdict(FITTED), **attrs.asdict(fit_of(held_out, FITTED))},
        "fitted": {"constants": attrs.asdict(best), **attrs.asdict(fit_of(held_out, best))},
        "guesses": _guesses([one for text in stories for one in text if one.best is not None and one.share]),
    }


def _guesses(said: Sequence[Before]) -> list[dict[str, float]]:
    """How often guesses came true, by what the look-up gave them."""
    groups = []
    for least, most in pairwise(SHARES):
        own = [one for one in said if least < one.share <= most]
        if own:
            means = (sum(one.share for one in own) / len(own), sum(one.came for one in own) / len(own))
            groups.append({"from": least, "to": most, "guesses": len(own), "share": means[0], "came": means[1]})
    return groups


def _show(found: dict[str, Any]) -> None:
    held_out = f"{found['tokens_held_out']} new tokens of {found['held_out']} are held out"
    print(f"look-up {found['look_up']}, {found['texts']} texts, of which {held_out}")
    print(f"  the model alone: {found['model_alone']:.4f} nats a token")
    for name in ("shipped", "fitted"):
        one = found[name]
        constants = ", ".join(f"{field}={value:g}" for field, value in one["constants"].items())
        print(f"  {name}: mixture {one['mixture']:.4f}, look-up {one['look_up']:.4f} ({constants})")
    for one in found["guesses"]:
        print(
            f"  guesses of {one['from']:g} to {one['to']:g}: {one['guesses']:.0f}, {one['share']:.2f} in the mean, "
            f"{one['came']:.2f} came true"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with these arguments, by default the process's own, and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m talon_drafters.hybrid.fitting",
        description="Fit the constants of hybrid on a trace of talon trace record, of a drafter with a model. Every "
        "fifth text is held out, and it is said how well the shipped and the fitted constants predict those.",
    )
    parser.add_argument("trace", type=Path, metavar="TRACE", help="A folder of talon trace record.")
    parser.add_argument(
        "--look-up", default="ngram", metavar="DRAFTER", help="A drafter that reads texts alone; ngram."
    )
    parser.add_argument("--json", action="store_true", help="Print what is said as one object.")
    given = parser.parse_args(arguments)
    try:
        found = told(read_trace(given.trace), given.look_up)
    except (OSError, LookupError, ValueError, PluginError) as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    if given.json:
        print(json.dumps(found))
    else:
        _show(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
