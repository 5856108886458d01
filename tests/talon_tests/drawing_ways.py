"""The two ways to draw and to test along a path of a verified tree, for benchmarks: on the host, and on the device."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from talon_core.choices import SeededChoices
from talon_core.drawn import Drawn
from talon_core.engine.acceptors import Acceptors, Offered
from talon_core.engine.sequence_laws import Warping
from talon_core.engine.token_buffer import TokenBuffer
from talon_core.engine.warping import WarpedLaws
from talon_core.request import Request
from talon_core.rule import AcceptanceRule, Accepted
from talon_core.runtime.next_tokens import next_tokens
from talon_core.table import TableTarget
from talon_core.tree import TokenTree
from talon_strategies import Match


class OnDevice(TableTarget):
    """Says that it takes tokens by itself."""

    can_walk = can_draw = True


def ways_to_draw(logits: Tensor, request: Request, visited: int) -> dict[str, Callable[[], list[int]]]:
    """What draws, by name: "host" the law of one node after the other, "device" the tokens after all nodes at once.

    Both give the same tokens, those after the first nodes of a tree that is half a path and half children of its root.

    Args:
        logits: raw scores, shape `(nodes, vocab)`, at least twice as many nodes as are visited.
        request: says how scores are warped, by processors that look at the scores alone.
        visited: nodes of the path that a walk comes to.

    Raises:
        ValueError: if the tree has too few nodes, or a processor looks at more than the scores.
    """
    nodes = len(logits)
    if nodes < 2 * visited:
        raise ValueError(f"the tree has {nodes} nodes, and {visited} are visited; it must have twice as many")
    parents = np.array([*range(-1, nodes // 2 - 1), *[0] * (nodes - nodes // 2)])
    tree = TokenTree(np.arange(nodes), parents, np.zeros(nodes))
    prefix = TokenBuffer(request.ids, len(request.ids) + nodes, logits.device)
    starts = np.array([0, nodes])

    def host() -> list[int]:
        laws, choices = WarpedLaws(tree, logits, Warping(request.sampling, prefix)), SeededChoices(0)
        return [laws.draw(node, choices) for node in range(visited)]

    def device() -> list[int]:
        acceptor, offered = Acceptors(Match(), OnDevice(np.zeros((1, 1)))).of(request, SeededChoices(0)), Offered()
        acceptor.offer(0, tree, offered)
        draws = offered.drawn.get(0)
        if draws is None or draws.numbers is None:
            raise ValueError(
                f"the device does not draw: {acceptor.on_host}; take sampling by processors of scores alone"
            )
        numbers = torch.from_numpy(draws.numbers).to(logits.device)
        tokens = next_tokens(logits, numbers, starts, [0], {0: draws}).tokens
        found: list[int] = tokens[:visited].tolist()
        return found

    return {"host": host, "device": device}


def ways_to_test(
    logits: Tensor, request: Request, rule: AcceptanceRule, children: int
) -> dict[str, Callable[[], Accepted]]:
    """What tests drawn children, by name: "host" the rule, law after law, "device" what is done in its place.

    The tree has so many children under each of its first nodes, drawn without replacement from other laws than the
    target's. Both come to the same.

    Args:
        logits: raw scores, shape `(nodes, vocab)`.
        request: says how scores are warped, by processors that look at the scores alone.
        rule: one that says how it tests.
        children: of a node.
    """
    nodes, vocab_size = logits.shape
    tree, rng = TokenTree.root(0), np.random.default_rng(0)
    for node in range((nodes - 1) // children):
        law = np.exp(rng.normal(size=vocab_size) * 3)
        draws = Drawn(rng.choice(vocab_size, children, replace=False, p=law / law.sum()), law / law.sum())
        tree = tree.extend(draws.tokens, np.full(children, node), tree.path_logp[node] + draws.logp, {node: draws})
    scores = logits[: len(tree)]
    prefix = TokenBuffer(request.ids, len(request.ids) + nodes, logits.device)
    starts, none = np.array([0, len(tree)]), torch.zeros(len(tree), dtype=torch.float64, device=logits.device)

    def host() -> Accepted:
        return rule.walk(tree, WarpedLaws(tree, scores, Warping(request.sampling, prefix)), SeededChoices(1))

    def device() -> Accepted:
        acceptor, offered = Acceptors(rule, OnDevice(np.zeros((1, 1)))).of(request, SeededChoices(1)), Offered()
        acceptor.offer(0, tree, offered)
        found = next_tokens(scores, none, starts, [0], offered.drawn)
        assert found.within is not None
        tokens, within = torch.stack([found.tokens, found.within.long()]).tolist()
        path = [0]
        while (child := tree.child(path[-1], tokens[path[-1]])) is not None and within[child]:
            path.append(child)
        return Accepted(np.array(path), tokens[path[-1]])

    return {"host": host, "device": device}
