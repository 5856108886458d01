"""How far a drafter's laws agree with the target's: what `talon-sampled` assumes, and what is so.

    python tests/benchmarks/drawn_agreement.py --prompts FOLDER [--temperature 1] [--drafter eagle3]

For the nodes that decoding passes through, by the drafter's best probability: how likely the drafter's best token is
under the target, and how likely a token that is drawn from the drafter's law is accepted, alone and beside one, two
and three fixed ones. Then how often the first, second, ... of eight draws without replacement is the accepted one,
which is what `sequoia` calls acceptance.
"""

import argparse
import itertools
from pathlib import Path

import attrs
import numpy as np

from talon_core import Accepted
from talon_core.bench.measurement import acceptance_by_draw
from talon_core.bench.prompts import read_sets
from talon_core.choices import Choices
from talon_core.decoding.decoder import Decoder
from talon_core.decoding.loading import decoder_for_model
from talon_core.defaults import DEFAULT_MODEL
from talon_core.drawn import sharpened, without
from talon_core.laws import Laws
from talon_core.models.loading import load_model
from talon_core.plugins.parts import Parts
from talon_core.rounds import Round
from talon_core.rule import AcceptanceRule
from talon_core.tree import FloatArray, TokenTree
from talon_strategies import Match, Sequoia, Talon
from talon_strategies.talon_sampled import AGREEMENT

EDGES = (0.0, 0.1, 0.2, 0.4, 0.6, 0.8, 0.95, 1.0)
FIXED = 4
DRAWS = 8


@attrs.frozen
class Listening(Talon):
    """TALON, which keeps the drafter's law at each node of a round's tree that it drafts from."""

    laws: dict[int, FloatArray] = attrs.field(eq=False, factory=dict)  # shared by the policies of all texts

    def grow(self, tree, candidates, choices):
        if len(tree) == 1:
            self.laws.clear()
        self.laws.update({int(node): candidates.law(row) for row, node in enumerate(candidates.frontier)})
        return super().grow(tree, candidates, choices)


@attrs.frozen
class Comparing(AcceptanceRule):
    """Match, which compares both laws at each node that it passes through."""

    name = "comparing"
    exact_for = frozenset({"any"})
    policy: Listening
    temperature: float
    found: list[list[float]] = attrs.field(init=False, eq=False, factory=list)

    def walk(self, tree: TokenTree, laws: Laws, choices: Choices) -> Accepted:
        accepted = Match().walk(tree, laws, choices)
        for node in accepted.path.tolist():
            if node in self.policy.laws:
                p, q = laws.at(node), self.policy.laws[node]
                best = np.argsort(-q)[:FIXED]
                rest = sharpened(q, self.temperature)
                row = [q[best[0]], p[best[0]]]
                for token in best:
                    row.append(np.minimum(p, rest).sum())
                    rest = without(rest, token)
                self.found.append(row)
        return accepted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=3, help="prompts of each set")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--drafter", default="eagle3")
    parser.add_argument("--temperature", type=float, default=1.0, help="of the request")
    parser.add_argument("--drawn-at", type=float, default=1.0, help="temperature of the drafter's law")
    given = parser.parse_args()
    model, tokenizer = load_model(given.model)
    policy = Listening(budget=12, top_k=3, mu=0.15)
    rule = Comparing(policy, given.drawn_at)
    decoder = decoder_for_model(model, tokenizer, Parts(drafter=given.drafter, policy=policy, rule=rule))
    decode(decoder, given)
    found = np.array(rule.found)
    print(f"{'q(best)':>12} {'nodes':>6} {'mean':>6} {'p(best)':>8} {'assumed':>8}", end="")
    print(*(f"{f'drawn+{fixed}':>8}" for fixed in range(FIXED)))
    for low, high in itertools.pairwise(EDGES):
        rows = found[(found[:, 0] > low) & (found[:, 0] <= high)]
        if len(rows):
            mean = rows.mean(axis=0)
            assumed = AGREEMENT[0] + AGREEMENT[1] * mean[0]
            print(f"{low:5.2f}-{high:5.2f}  {len(rows):6} {mean[0]:6.3f} {mean[1]:8.3f} {assumed:8.3f}", end="")
            print(*(f"{share:8.3f}" for share in mean[2:]))
    draws = Sequoia(budget=1 + DRAWS, depth=1, acceptance=(1 / DRAWS,) * DRAWS, temperature=given.drawn_at)
    parts = Parts(drafter=given.drafter, policy=draws, rule="rrsw")
    rounds = decode(decoder_for_model(model, tokenizer, parts), given)
    print("accepted by draw:", ";".join(f"{share:.3f}" for share in acceptance_by_draw(rounds)))


def decode(decoder: Decoder, given: argparse.Namespace) -> list[Round]:
    """All rounds of all prompts."""
    rounds = []
    for prompts in read_sets(given.prompts, given.limit):
        for seed, prompt in enumerate(prompts.prompts):
            chat = [{"role": "user", "content": prompt.turns[0]}]
            rounds += decoder.generate(chat, max_new_tokens=64, temperature=given.temperature, seed=seed).rounds
    return rounds


if __name__ == "__main__":
    main()
