"""What the tests of drafters share: decoder layers written out in float64, and drafting along random trees."""

import json

import attrs
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from talon_core import SeededChoices, TokenTree
from talon_core.drafter import Committed, Prompt

CHOICES = SeededChoices(0)


@attrs.frozen(eq=False)
class Written:
    """Decoder layers of Llama and Qwen3 for one row of tokens, from the formulae; nothing is cached.

    Attributes:
        weights: float64 arrays by the name that the authors' files have for them.
        heads: attention heads.
        head_dim: size of each.
        theta: RoPE's base.
        scaling: RoPE's scaling, as in `config.json`; None for none.
        eps: of RMSNorm.
    """

    weights: dict
    heads: int
    head_dim: int
    theta: float = 10000.0
    scaling: dict | None = None
    eps: float = 1e-6

    def norm(self, x, name):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + self.eps) * self.weights[name]

    def linear(self, x, name):
        return x @ self.weights[f"{name}.weight"].T + self.weights.get(f"{name}.bias", 0.0)

    def frequencies(self):
        """Angle by which each pair of numbers turns from one position to the next, shape `(head_dim / 2,)`."""
        angles = self.theta ** (-2.0 * np.arange(self.head_dim // 2) / self.head_dim)
        scaling = self.scaling or {"rope_type": "default"}
        kind = scaling.get("rope_type", scaling.get("type"))
        if kind == "linear":
            return angles / scaling["factor"]
        if kind == "llama3":
            low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
            turns = scaling["original_max_position_embeddings"] * angles / (2 * np.pi)
            kept = np.clip((turns - low) / (high - low), 0, 1)  # how much of a fast angle stays as it is
            return kept * angles + (1 - kept) * angles / scaling["factor"]
        assert kind == "default"
        return angles

    def turned(self, x):
        """RoPE: shape `(rows, heads, head_dim)`; row `i` is at position `i`, number `j` pairs with `j + half`."""
        angle = np.arange(len(x))[:, None, None] * self.frequencies()
        one, other = np.split(x, 2, axis=-1)
        return np.concatenate(
            [one * np.cos(angle) - other * np.sin(angle), other * np.cos(angle) + one * np.sin(angle)], axis=-1
        )

    def attention(self, x, layer):
        rows = len(x)
        q, k, v = (self.linear(x, f"{layer}.self_attn.{part}_proj").reshape(rows, -1, self.head_dim) for part in "qkv")
        if f"{layer}.self_attn.q_norm.weight" in self.weights:
            q, k = self.norm(q, f"{layer}.self_attn.q_norm.weight"), self.norm(k, f"{layer}.self_attn.k_norm.weight")
        q, k = self.turned(q), self.turned(k)
        out = np.zeros((rows, self.heads, self.head_dim))
        for head in range(self.heads):
            kv_head = head * k.shape[1] // self.heads
            for row in range(rows):
                scores = k[: row + 1, kv_head] @ q[row, head] / np.sqrt(self.head_dim)
                weights = np.exp(scores - scores.max())
                out[row, head] = weights / weights.sum() @ v[: row + 1, kv_head]
        return self.linear(out.reshape(rows, -1), f"{layer}.self_attn.o_proj")

    def mlp(self, x, layer):
        gate = self.linear(x, f"{layer}.mlp.gate_proj")
        return self.linear(
            gate / (1 + np.exp(-gate)) * self.linear(x, f"{layer}.mlp.up_proj"), f"{layer}.mlp.down_proj"
        )

    def layer(self, x, layer):
        """An ordinary layer; without a norm at its input where there is no weight for it."""
        name = f"{layer}.input_layernorm.weight"
        x = x + self.attention(self.norm(x, name) if name in self.weights else x, layer)
        return x + self.mlp(self.norm(x, f"{layer}.post_attention_layernorm.weight"), layer)


def random_layer(rng, layer, inputs, hidden, inner, heads, kv_heads, head_dim, biased=(), head_norms=False):
    """Random tensors of a decoder layer, all but its input norms, by name; `biased` are projections with a bias."""

    def matrix(rows, columns):
        return rng.normal(size=(rows, columns)) * columns**-0.5

    shapes = {
        "self_attn.q_proj": (heads * head_dim, inputs),
        "self_attn.k_proj": (kv_heads * head_dim, inputs),
        "self_attn.v_proj": (kv_heads * head_dim, inputs),
        "self_attn.o_proj": (hidden, heads * head_dim),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    made = {f"{layer}.{name}.weight": matrix(*shape) for name, shape in shapes.items()}
    made |= {f"{layer}.{name}.bias": rng.normal(size=shapes[name][0]) for name in biased}
    made[f"{layer}.post_attention_layernorm.weight"] = rng.uniform(0.5, 1.5, hidden)
    if head_norms:
        made |= {f"{layer}.self_attn.{name}.weight": rng.uniform(0.5, 1.5, head_dim) for name in ("q_norm", "k_norm")}
    return made


def save(folder, tensors, config, file="model.safetensors"):
    """The folder, as text, with a checkpoint in it; arrays of floating-point numbers are saved in float32."""
    as_tensors = {
        name: tensor
        if isinstance(tensor, torch.Tensor)
        else torch.tensor(np.ascontiguousarray(tensor), dtype=torch.float32)
        for name, tensor in tensors.items()
    }
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if file.endswith(".safetensors"):
        save_file(as_tensors, folder / file)
    else:
        torch.save(as_tensors, folder / file)
    return str(folder)


def states_of(model, ids, states):
    """States of the plain model at each token, side by side, shape `(tokens, states * hidden)`; -1 is the final one."""
    with torch.no_grad():
        out = model(input_ids=torch.as_tensor(np.asarray(ids))[None], output_hidden_states=True, use_cache=False)
    return torch.cat([out.hidden_states[state][0] for state in states], dim=-1)


def random_tree(rng, root, nodes, vocab):
    """A random tree, sorted by depth, so that it can be drafted layer by layer."""
    parents = [-1, *(int(rng.integers(0, node)) for node in range(1, nodes))]
    depths = [0]
    for parent in parents[1:]:
        depths.append(depths[parent] + 1)
    order = np.argsort(depths, kind="stable")
    place = np.argsort(order)
    sorted_parents = [-1, *(int(place[parents[node]]) for node in order[1:])]
    tokens = rng.integers(0, vocab, nodes)
    return TokenTree(tokens=[root, *tokens[1:]], parents=sorted_parents, path_logp=-rng.random(nodes))


def part(tree, depth):
    """The tree down to a depth, and its nodes at that depth."""
    nodes = np.flatnonzero(tree.depths <= depth)
    return tree.keep(nodes), np.flatnonzero(tree.depths[nodes] == depth)


@attrs.frozen(eq=False)
class Rounds:
    """Some rounds of one sequence, made up beforehand: its prompt, and for each round a tree and a path through it.

    Attributes:
        prompt: token ids.
        trees: one for each round.
        accepted: for each round the nodes that are accepted, and the tokens that are committed.
        drafts: for each round whether anything is drafted.
    """

    prompt: np.ndarray
    trees: list
    accepted: list
    drafts: list

    @classmethod
    def random(cls, seed, vocab, prompt=9, sizes=(9, 1, 6, 0, 0, 12, 4)):
        """Random trees of these sizes; in a round of size 0 nothing is drafted."""
        rng = np.random.default_rng(seed)
        ids = rng.integers(0, vocab, prompt)
        root, trees, accepted = int(ids[-1]), [], []
        for nodes in sizes:
            tree = random_tree(rng, root, max(nodes, 1), vocab)
            path = tree.path(int(rng.integers(len(tree) // 2, len(tree))))
            tokens = np.append(tree.tokens[path[1:]], rng.integers(0, vocab))
            trees.append(tree)
            accepted.append((path, tokens))
            root = int(tokens[-1])
        return cls(ids, trees, accepted, [nodes > 0 for nodes in sizes])

    @property
    def ids(self):
        """The whole text."""
        return np.concatenate([self.prompt, *(tokens for _, tokens in self.accepted)])

    def committed(self, round_):
        """The text as a round begins."""
        return np.concatenate([self.prompt, *(tokens for _, tokens in self.accepted[:round_])])


def draft(drafter, sequences, states, vocab, widths=(4, 3, 5)):
    """Draft some sequences at once, all of the same number of rounds.

    Args:
        drafter: where its session is needed, inside it.
        sequences: the `Rounds`.
        states: for each its whole text's features.
        vocab: tokens of the target.
        widths: for each sequence how many candidates it wants.

    Returns:
        For each sequence, for each round, the law at each node, shape `(nodes, vocab)`; NaN where none was given.
    """
    widths = widths[: len(sequences)]
    drafter.begin([Prompt(one.prompt, its[: len(one.prompt) - 1]) for one, its in zip(sequences, states, strict=True)])
    laws = [[np.full((len(tree), vocab), np.nan) for tree in one.trees] for one in sequences]
    for round_ in range(len(sequences[0].trees)):
        trees = [one.trees[round_] for one in sequences]
        drafts = [one.drafts[round_] for one in sequences]
        deepest = max([int(tree.depths.max()) for tree, does in zip(trees, drafts, strict=True) if does], default=-1)
        for depth in range(deepest + 1):
            grown, frontiers = map(list, zip(*(part(tree, depth) for tree in trees), strict=True))
            frontiers = [frontier if does else frontier[:0] for frontier, does in zip(frontiers, drafts, strict=True)]
            proposed = drafter.propose(grown, frontiers, widths, [CHOICES] * len(trees))
            for row, (frontier, candidates, width) in enumerate(zip(frontiers, proposed, widths, strict=True)):
                for place, node in enumerate(frontier):
                    if (candidates.tokens[place] < 0).all():
                        continue
                    law = laws[row][round_][node] = candidates.law(place)
                    check_candidates(candidates, place, law, trees[row].path_logp[node], width)
        drafter.commit(
            [
                Committed(one.accepted[round_][1], one.accepted[round_][0], its[slice(*_new(one, round_))])
                for one, its in zip(sequences, states, strict=True)
            ]
        )
    return laws


def _new(one, round_):
    """Where the states of a round's accepted nodes are: from the old root on."""
    start = len(one.committed(round_)) - 1
    return start, start + len(one.accepted[round_][1])


def check_candidates(candidates, place, law, path_logp, width):
    """They are the law's best tokens with their log-probabilities."""
    possible = min(width, int((law > 0).sum()))
    assert candidates.tokens.shape[1] == possible
    tokens = candidates.tokens[place]
    assert len(set(tokens.tolist())) == possible
    np.testing.assert_allclose(np.sort(law[tokens])[::-1], np.sort(law)[::-1][:possible], rtol=1e-5)
    assert (np.diff(candidates.logp[place]) <= 0).all()
    np.testing.assert_allclose(candidates.logp[place], np.log(law[tokens]), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(candidates.path_logp[place], path_logp + candidates.logp[place], rtol=1e-12)
    assert law.sum() == pytest.approx(1)


class Recording:
    """A drafter that notes every law it is asked for, with the text and the path it is for."""

    def __init__(self, drafter):
        self.drafter, self.max_depth, self.laws = drafter, drafter.max_depth, []

    def __getattr__(self, name):
        return getattr(self.drafter, name)

    def begin(self, prompts):
        self.ids = prompts[0].ids.tolist()
        self.drafter.begin(prompts)

    def propose(self, trees, frontiers, widths, choices):
        (proposed,) = self.drafter.propose(trees, frontiers, widths, choices)
        if (proposed.tokens >= 0).any():
            for row, node in enumerate(frontiers[0]):
                path = trees[0].tokens[trees[0].path(int(node))[1:]].tolist()
                self.laws.append((list(self.ids), path, proposed.law(row)))
        return [proposed]

    def commit(self, committed):
        self.ids += committed[0].tokens.tolist()
        self.drafter.commit(committed)


class Shared:
    """All of this, for the tests: they cannot import it."""

    Written, Rounds, Recording = Written, Rounds, Recording
    random_layer = staticmethod(random_layer)
    save = staticmethod(save)
    states_of = staticmethod(states_of)
    random_tree = staticmethod(random_tree)
    part = staticmethod(part)
    draft = staticmethod(draft)


@pytest.fixture(scope="session")
def shared():
    """Helpers of the tests of drafters."""
    return Shared
