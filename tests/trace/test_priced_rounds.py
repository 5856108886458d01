"""Prices of many rounds at once are those of each, to the bit."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from talon_core.costs import Costs
from talon_core.trace.priced_rounds import PRICED, Rounds, seconds_behind, spans_of
from talon_core.trace.prices import Untold, behind, priced


class Uneven(Costs):
    """Knows something of most passes, and nothing of some."""

    def verify(self, nodes: int, context: int, batch: int = 1) -> float | None:
        if nodes == 1:  # up to 23 are run together
            return 1 / 300 + context / 1100
        return None if nodes == 5 else 10 / 3 + nodes / 7 + context / 11

    def draft(self, rows: int, width: int) -> float | None:
        return None if rows == 3 else 1 / 3 + rows / 13 + width / 17

    def accept(self, nodes: int) -> float | None:
        return nodes / 19

    def commit(self, tokens: int) -> float | None:
        return None if tokens == 2 else tokens / 23

    def tell(self, tokens: int) -> float | None:
        return tokens / 29

    def catch_up(self, tokens: int) -> float | None:
        return None if tokens == 40 else tokens / 31

    def beside_layer(self) -> float | None:
        return 1 / 37

    def rest(self, rounds: int) -> float | None:
        return None if rounds == 4 else 1 / 41 + rounds / 43

    def chain(self, layers: int) -> float | None:
        return None if layers == 3 else 1 / 47 + layers / 53


LAYERS = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5)), max_size=4)
DRAFTED = st.tuples(LAYERS, st.integers(1, 6), st.integers(1, 30), st.booleans())
ROUNDS = st.lists(DRAFTED | st.just(([], 1, 1, False)), min_size=1, max_size=8)
TEXTS = st.lists(st.tuples(st.integers(1, 60), ROUNDS), min_size=1, max_size=3)


def run_together(alone: list[bool], contexts: list[int]) -> dict[int, int]:
    """By round, how many passes are run together with its own."""
    found: dict[int, int] = {}
    for number, (one, context) in enumerate(zip(alone, contexts, strict=True)):
        if one and number not in found:
            behind = alone[number:].index(False) if False in alone[number:] else len(alone) - number
            count = min(behind, int(0.1 / (1 / 300 + context / 1100))) or 1
            found |= dict.fromkeys(range(number, number + count), count)
    return found


@given(TEXTS, st.booleans(), st.booleans())
def test_each_round_has_the_price_that_it_has_alone_or_in_its_pause(texts: Any, timed: bool, rests: bool) -> None:
    expected, of, contexts, nodes, new, chained, layers = [], [], [], [], [], [], []
    for text, (prompt, rounds) in enumerate(texts):
        untold, context = Untold(prompt), prompt
        for drafted, size, tokens, chain in rounds:
            expected.append(priced(Uneven(), drafted, size, context, tokens, untold, timed, chain))
            layers += [(len(of), *layer) for layer in drafted]
            of.append(text)
            contexts.append(context)
            nodes.append(size)
            new.append(tokens)
            chained.append(chain)
            context += tokens
        if rests:
            first, costs = len(expected) - len(rounds), Uneven()
            alone = [not drafted and size == 1 for drafted, size, _, _ in rounds]
            for number, count in run_together(alone, contexts[first:]).items():
                seconds = costs.rest(count)
                if count > 1 and seconds is not None:
                    expected[first + number]["commit"] = seconds / count
    columns = (np.array(each) for each in (of, [prompt for prompt, _ in texts], contexts, nodes, new))
    rounds_of_all = Rounds(*columns, np.array(layers, dtype=np.int64).reshape(-1, 3).T, np.array(chained))
    found = rounds_of_all.priced(Uneven(), timed, rests)
    assert [
        {part: each for part, each in zip(PRICED, own, strict=True) if part in one}
        for own, one in zip(found.tolist(), expected, strict=True)
    ] == expected
    for own, one, seconds in zip(found, expected, seconds_behind(found).tolist(), strict=True):
        assert spans_of(own) == tuple(behind(one, 0.0))
        assert [span.seconds for span in behind(one, 0.0)] == seconds[: len(one)]
