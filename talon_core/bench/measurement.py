"""One line of results: one method on one prompt."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from talon_core.basics import records
from talon_core.bench.schedule import Unit
from talon_core.errors import is_whole, written
from talon_core.rounds import Round
from talon_core.rule import CLAIMED, MEASURED, Lossless

COUNTS = ("offered", "parent_accepted", "tested", "accepted")
"""What `acceptance_by_depth` counts; lines from before the second and the third were counted have the others."""

RATES = {"rate": "offered", "rate_after_parent": "parent_accepted", "rate_where_tested": "tested"}
"""Shares of accepted rounds by depth, and of what they are shares."""


@attrs.frozen
class Measurement:
    """What one method did with one prompt.

    Attributes:
        set: the prompt set's name.
        prompt: the prompt's index in its set.
        turn: the turn's index in its conversation.
        question_id: what the prompt's file calls it.
        method: the method's name.
        repetition: how often it was measured before.
        order: how many methods decoded this prompt before it in this repetition.
        seed: of drawing; None at temperature 0.
        prompt_tokens: tokens of the prompt, the chat template's included.
        token_ids: the new tokens, cut at the end of the text and at the length limit.
        finish_reason: as in `Result`.
        identical: whether plain decoding gave the same tokens; None where they are drawn.
        first_difference: index of the first token at which they differ.
        logit_gap: by how much the model preferred one of the two tokens there: the difference of their logits.
        stats: the fields of `talon_core.Stats`; those that a peer or transformers' own `generate` does not tell are
            None.
        acceptance_by_depth: see `acceptance_by_depth`; None for peers and transformers' own `generate`.
        lossless: whether the method is, "claimed", or "measured" for a peer; lines from before there were lossy rules
            do not say it.
    """

    set: str
    prompt: int
    turn: int
    question_id: int | str | None
    method: str
    repetition: int
    order: int
    seed: int | None
    prompt_tokens: int
    token_ids: Sequence[int]
    finish_reason: str
    identical: bool | None
    first_difference: int | None
    logit_gap: float | None
    stats: Mapping[str, Any]
    acceptance_by_depth: Sequence[Mapping[str, int]] | None
    lossless: Lossless = True

    @property
    def unit(self) -> Unit:
        """What was decoded."""
        return Unit(self.set, self.prompt, self.turn, self.repetition)

    def line(self) -> str:
        """It as one line of JSON, with its end."""
        return json.dumps(records.fields_as_plain(self), ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def parse(cls, line: str, where: str) -> "Measurement":
        """Read a line.

        Raises:
            ValueError: if it is none; the sentence begins with `where`.
        """
        try:
            found: Measurement = records.make(cls, records.parsed(line), READERS)
        except ValueError as error:
            why = str(error).removeprefix("no Measurement: ")
            raise ValueError(f"{where} is no measurement of this version: {why}") from error
        return found


def _stats(value: Any) -> Mapping[str, float | None]:
    records.table(records.maybe(records.amount))(value)
    found: Mapping[str, float | None] = value  # as it is: a line that is written again stays as it was
    for name in ("new_tokens", "seconds"):
        if not found.get(name):
            raise ValueError(f"has {name} {written(found.get(name))}; it must be a number above 0")
    return found


def _counts(value: Any) -> dict[str, int]:
    try:
        counts: dict[str, int] = records.table(records.whole)(value)
    except ValueError:
        counts = {}
    if not {"depth", "offered", "accepted"} <= set(counts):
        raise ValueError(f"{written(value)}; it must be a depth and counts of rounds")
    return counts


def _name(value: Any) -> int | str | None:
    if value is not None and not is_whole(value) and not isinstance(value, str):
        raise ValueError(f"is {written(value)}; it must be a whole number, text or null")
    return value


MOST_TOKENS = 2**31
"""Above all tokens of any vocabulary: tokenizers cannot be asked for others."""


def _tokens(value: Any) -> list[int]:
    found = records.wholes(value)
    for place, each in enumerate(found):
        if each >= MOST_TOKENS:
            raise ValueError(f"has {each} at {place}; it must hold tokens, below {MOST_TOKENS}")
    return found


READERS: Mapping[str, records.Reader] = {
    "set": records.words,
    "prompt": records.whole,
    "turn": records.whole,
    "question_id": _name,
    "method": records.words,
    "repetition": records.whole,
    "order": records.whole,
    "seed": records.maybe(records.whole),
    "prompt_tokens": records.whole,
    "token_ids": _tokens,
    "finish_reason": records.words,
    "identical": records.maybe(records.flag),
    "first_difference": records.maybe(records.whole),
    "logit_gap": records.maybe(records.number),
    "stats": _stats,
    "acceptance_by_depth": records.maybe(records.several(_counts)),
    "lossless": records.one_of(True, False, CLAIMED, MEASURED),
}


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Index of the first token at which two outputs differ, the shorter one's end included; None if they are equal."""
    if list(one) == list(other):
        return None
    pairs = zip(one, other, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def acceptance_by_depth(rounds: Sequence[Round]) -> list[dict[str, int]]:
    """For each depth from 1 on, in how many rounds something could be accepted there, and in how many it was.

    Returns:
        For each depth a dictionary of `depth` and numbers of rounds:

        - `offered`: the verified tree reached it anywhere. A policy that drafts deeper where the drafter is surer has
          chosen these rounds.
        - `parent_accepted`: the accepted path reached the depth before; at depth 1, all rounds.
        - `tested`: of those, the last accepted node had children. Nothing else can be accepted at this depth.
        - `accepted`: the accepted path reached it.
    """
    reached = [int(one.tree.depths.max()) for one in rounds]
    tested = [one.accepted + int(one.path[-1] in one.tree.parents) for one in rounds]
    return [
        {
            "depth": depth,
            "offered": sum(most >= depth for most in reached),
            "parent_accepted": sum(one.accepted >= depth - 1 for one in rounds),
            "tested": sum(most >= depth for most in tested),
            "accepted": sum(one.accepted >= depth for one in rounds),
        }
        for depth in range(1, max(reached, default=0) + 1)
    ]


def shares_by_depth(of: Sequence[Measurement]) -> list[dict[str, Any]] | None:
    """`acceptance_by_depth` of all measurements together, with the shares `RATES`; what a line does not count is None.

    A measurement has no row for depths that none of its trees reached. The accepted paths that came to the depth before
    are counted there nevertheless.
    """
    if any(each.acceptance_by_depth is None for each in of):
        return None
    rows: dict[int, list[Mapping[str, int]]] = defaultdict(list)
    for each in of:
        for row in each.acceptance_by_depth or ():
            rows[row["depth"]].append(row)
    came_so_far = _sum(each.stats.get("rounds") for each in of)
    found: list[dict[str, Any]] = []
    for depth in sorted(rows):
        counts = {name: _sum(row.get(name) for row in rows[depth]) for name in COUNTS}
        counts["parent_accepted"] = came_so_far
        accepted = came_so_far = counts["accepted"] or 0
        shares = {rate: accepted / below if (below := counts[of]) else None for rate, of in RATES.items()}
        found.append({"depth": depth, **counts, **shares})
    return found


def _sum(values: Iterable[int | None]) -> int | None:
    """None if one of them is not known."""
    known = [*values]
    return None if None in known else sum(value for value in known if value is not None)


def acceptance_by_draw(rounds: Sequence[Round]) -> list[float]:
    """How often the first, second, ... drawn child of a node is the accepted one, of the nodes that had so many.

    With the rule `rrsw` or `match` these are the acceptance rates from which the policy `sequoia` shapes its trees.
    Nodes count where the walk went through them. Where a policy decides by the drafter's laws how often it draws under
    a node, the later draws are counted at nodes that it has chosen.
    """
    tested: Counter[int] = Counter()
    accepted: Counter[int] = Counter()
    for one in rounds:
        for place, node in enumerate(one.path.tolist()):
            drawn = one.tree.drawn.get(node)
            if drawn is None:
                continue
            tested.update(range(len(drawn.tokens)))
            if place + 1 < len(one.path):
                token = one.tree.tokens[one.path[place + 1]]
                accepted.update(np.flatnonzero(drawn.tokens == token)[:1].tolist())  # a fixed child is none of them
    return [accepted[draw] / tested[draw] for draw in sorted(tested)]
