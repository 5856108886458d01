"""Above temperature 0, SmolLM2's texts have the law that its own plain passes give them, to four digits.

That the rules keep a law is proved on small tables elsewhere. Here are the real things around them: a trained drafter,
a model's tree passes and cache, warped laws of 49,152 tokens, and rounds that follow each other. Whole texts of three
tokens are decoded, one for every way in which the draws of the policy and the rule can come out, so that each text has
an exact probability. For that to be few, the drafter's law is cut to its two likeliest tokens, of which in some places
the model can say both, in others one. `test_sampled_laws.py` draws from the whole law.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import attrs
import numpy as np
import pytest

from talon_core import build
from talon_core.choices import Choices, Foreseen
from talon_core.decoding.decoder import Decoder
from talon_core.drafter import Committed, Drafter, Frontier, Part, Proposed
from talon_core.engine.sequence import Sequence as Decoded
from talon_core.hf.target import HFTarget
from talon_core.laws import Laws
from talon_core.plugins.parts import Parts
from talon_core.request import Request
from talon_core.rule import AcceptanceRule, Accepted, descend
from talon_core.testing.plain_device import PlainDevice
from talon_core.tree import FloatArray, IntArray, TokenTree
from talon_tests.plain_law import OPTIONS, Texts, firsts
from talon_tests.wrong import NoLeftover

pytestmark = [pytest.mark.models, pytest.mark.slow]

TOLERANCE = 1e-4
"""Of a probability. Scores of two ways to compute a model in float32 differ by about 1e-5."""

LIKELIEST, BATCH = 2, 48
PAIRS = [
    ("talon-sampled:budget=4,top_k=2", "hybrid"),
    ("sequoia:budget=4,depth=2", "traversal"),
    ("sequoia:budget=4,depth=2", "rrsw"),
    ("sampled-chain:length=2", "block"),
    ("specinfer:widths=2;1", "rrs"),
    ("talon:budget=4,top_k=2", "match"),
]


class Scripted(Choices):
    """Takes the outcomes of a script, by their places among those that are possible, and the first ones after it."""

    def __init__(self, script: Sequence[int]) -> None:
        self._begun = len(script)
        self._taken = [*script]
        self._laws: list[FloatArray] = []

    def pick(self, law: FloatArray) -> int:
        possible = np.flatnonzero(law)
        if len(self._laws) == len(self._taken):
            self._taken.append(0)
        taken = self._taken[len(self._laws)]
        self._laws.append(law[possible])
        return int(possible[taken])

    @property
    def prob(self) -> float:
        """Of what was taken."""
        return float(np.prod([law[taken] for law, taken in zip(self._laws, self._taken, strict=True)]))

    def others(self) -> Iterator[list[int]]:
        """The scripts that leave what was taken after this one's end."""
        for step in range(self._begun, len(self._taken)):
            for other in range(1, len(self._laws[step])):
                yield [*self._taken[:step], other]


class Likeliest(Drafter):
    """A drafter whose laws are cut to their likeliest tokens."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.max_depth = drafter.max_depth

    def session(self) -> AbstractContextManager[object]:
        return self._drafter.session()

    def open(self, slot: int, prompt: IntArray, room: int) -> None:
        self._drafter.open(slot, prompt, room)

    def resume(self, slot: int, prompt: IntArray, room: int, source: int, length: int) -> int:
        return self._drafter.resume(slot, prompt, room, source, length)

    def read(self, parts: Mapping[int, Part]) -> None:
        self._drafter.read(parts)

    def propose(self, frontiers: Sequence[Frontier]) -> Proposed:
        proposed = self._drafter.propose(frontiers)
        return attrs.evolve(proposed, candidates=[attrs.evolve(one, law=cut(one.law)) for one in proposed.candidates])

    def commit(self, committed: Mapping[int, Committed]) -> None:
        self._drafter.commit(committed)

    def close(self, slot: int) -> None:
        self._drafter.close(slot)


def cut(law: Callable[[int], FloatArray]) -> Callable[[int], FloatArray]:
    """The same laws with their likeliest tokens alone."""

    def of(row: int) -> FloatArray:
        whole = law(row)
        best = np.argpartition(-whole, LIKELIEST)[:LIKELIEST]
        few = np.zeros_like(whole)
        few[best] = whole[best] / whole[best].sum()
        return few

    return of


@pytest.fixture(scope="module")
def decoder_of(smollm: tuple[Any, Any], shared_target: Any) -> Callable[..., Decoder]:
    """Makes a decoder that drafts few tokens, and verifies all that is drafted."""

    def make(policy: str, rule: str | AcceptanceRule) -> Decoder:
        usual = shared_target(*smollm, Parts("eagle3", policy, rule, graphs=False))
        decoder = Decoder(usual.target, usual.rule, usual.policy, Likeliest(usual.drafter), usual.frontend)
        decoder.engine.allocator = None
        return decoder

    return make


def requested(decoder: Decoder, ids: list[int]) -> Request:
    """The request of all texts; its prompt is read, and kept for them."""
    request = decoder.frontend.request(np.array(ids), OPTIONS)
    decoder.run_all([attrs.evolve(request, max_new_tokens=1)])
    return request


def decoded(decoder: Decoder, request: Request, choices: Sequence[Choices]) -> list[Decoded]:
    """A text for each of some choices."""
    batch = decoder.batch([attrs.evolve(request) for _ in choices], BATCH, choices)
    batch.finish()
    return batch.sequences


def enumerated(decoder: Decoder, ids: list[int]) -> list[tuple[float, Decoded]]:
    """A text for each way in which its draws can come out, with its probability."""
    found: list[tuple[float, Decoded]] = []
    request = requested(decoder, ids)
    scripts: list[list[int]] = [[]]
    while scripts:
        choices = [Scripted(script) for script in scripts]
        texts = decoded(decoder, request, choices)
        found += [(one.prob, text) for one, text in zip(choices, texts, strict=True)]
        scripts = [script for one in choices for script in one.others()]
    return found


def law_of(found: Sequence[tuple[float, Decoded]]) -> Texts:
    """The law of what was enumerated."""
    law: dict[tuple[int, ...], float] = defaultdict(float)
    for prob, text in found:
        law[tuple(text.token_ids)] += prob
    return law


@pytest.mark.parametrize(("policy", "rule"), PAIRS)
def test_texts_have_the_models_law(
    decoder_of: Callable[..., Decoder], ids: list[int], law: Texts, policy: str, rule: str
) -> None:
    found = enumerated(decoder_of(policy, rule), ids)
    assert law_of(found) == pytest.approx(law, abs=TOLERANCE)
    accepted = sum(prob * sum(round_.accepted for round_ in text.rounds) for prob, text in found)
    assert accepted >= 0.4  # or little of it would be about drafting
    taken = {int(node) for _, text in found for node in text.rounds[0].path[1:2]}
    assert taken == ({1} if rule == "block" else {1, 2})  # of siblings each is accepted at times


@attrs.frozen
class Gullible(AcceptanceRule):
    """Accepts every drawn child that is possible at all."""

    name = "gullible"
    exact_for = frozenset({"sampled-chain"})  # it is not

    def walk(self, tree: TokenTree, laws: Laws, choices: Choices) -> Accepted:
        def draw(node: int) -> int:
            child = int(tree.drawn[node].tokens[0]) if node in tree.drawn else None
            return child if child is not None and laws.at(node)[child] > 0 else laws.draw(node, choices)

        return descend(tree, laws, draw)


@pytest.mark.parametrize("rule", [Gullible(), NoLeftover()], ids=lambda rule: rule.name)
def test_a_wrong_rule_is_found(
    decoder_of: Callable[..., Decoder], ids: list[int], law: Texts, rule: AcceptanceRule
) -> None:
    emitted = law_of(enumerated(decoder_of("sampled-chain:length=1", rule), ids))
    assert sum(emitted.values()) == pytest.approx(1.0)
    assert set(emitted) <= set(law)  # so it is the probabilities that tell
    assert emitted != pytest.approx(law, abs=100 * TOLERANCE)


class Numbers(Foreseen):
    """Tells given numbers, with which a target draws by itself; nobody else may draw."""

    def __init__(self, numbers: Sequence[float]) -> None:
        self._left = np.array(numbers)

    def ahead(self, count: int) -> FloatArray:
        return self._left[:count].copy()

    def used(self, count: int) -> None:
        self._left = self._left[count:]

    def pick(self, law: FloatArray) -> int:
        raise AssertionError("the rule is asked")


def ends(law: Texts, text: tuple[int, ...]) -> list[tuple[float, float]]:
    """For each token of a text the share of the numbers from 0 to 1 with which it is drawn after those before it."""
    shares = []
    for place, token in enumerate(text):
        before = firsts(law, place)[text[:place]]
        after = {tokens[-1]: p / before for tokens, p in firsts(law, place + 1).items() if tokens[:-1] == text[:place]}
        start = sum(p for other, p in after.items() if other < token)
        shares.append((start, start + after[token]))
    return shares


def test_a_target_draws_by_itself_each_token_with_the_numbers_of_its_share(
    smollm: tuple[Any, Any], shared_target: Any, ids: list[int], law: Texts
) -> None:
    """Numbers from 0 to 1 are tried at both ends of each token's share: between them they are the token's, too."""
    usual = shared_target(*smollm, Parts("eagle3", "talon:budget=4,top_k=2", "match", graphs=False))
    target = HFTarget(smollm[0], PlainDevice(), usual.target.accelerator, usual.target.states, probe=False)
    decoder = Decoder(target, usual.rule, usual.policy, build("drafter", "eagle3"), usual.frontend)
    decoder.engine.allocator = None
    shares = [(text, ends(law, text)) for text in law]
    wanted, numbers = [text for text in law for _ in range(2)], []
    for _, share in shares:
        numbers += [[start + TOLERANCE for start, _ in share], [end - TOLERANCE for _, end in share]]
    texts = decoded(decoder, requested(decoder, ids), [Numbers(one) for one in numbers])
    assert [tuple(text.token_ids) for text in texts] == wanted
    assert sum(round_.accepted for text in texts for round_ in text.rounds) >= 0.4 * len(texts)
