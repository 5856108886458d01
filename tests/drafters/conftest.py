"""What the tests of drafters share: decoder layers written out in float64, and drafting along random trees."""

import copy
import json
from functools import cache

import attrs
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from talon_core import TokenTree
from talon_core.decoding.decoder import Decoder
from talon_core.decoding.loading import decoder_for_model
from talon_core.drafter import Committed, Drafter, Frontier, Part
from talon_core.hf.target import HFTarget
from talon_core.plugins.parts import Parts
from talon_core.testing.plain_device import PlainDevice
from talon_core.testing.tape import TapedBackend, TapeRecorder
from talon_tests.tiny_models import tiny_model


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
        k, v = (np.repeat(each, self.heads // each.shape[1], axis=1) for each in (k, v))  # heads that share one
        scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(self.head_dim)
        scores[:, np.triu(np.ones((rows, rows), dtype=bool), 1)] = -np.inf  # nothing is seen of what comes later
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        out = np.einsum("hij,jhd->ihd", weights / weights.sum(-1, keepdims=True), v)
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
    own = copy.deepcopy(model)  # transformers leaves hooks in a model that was asked for its states
    with torch.no_grad():
        out = own(input_ids=torch.as_tensor(np.asarray(ids))[None], output_hidden_states=True, use_cache=False)
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


def start(drafter, prompt, features=None, slot=0, at_once=None, more=50):
    """A sequence takes a slot, and its prompt is read, so many tokens at once; all of them by default.

    Args:
        drafter: where its session is needed, inside it.
        prompt: token ids.
        features: the target's at all of them but the last; None for a drafter that wants none.
        slot: of the sequence.
        at_once: tokens in a part.
        more: tokens that may come after the prompt.
    """
    prompt = np.array(prompt, dtype=np.int64)
    count = len(prompt) - 1
    drafter.open(slot, prompt, len(prompt) + more)
    for begin in range(0, max(count, 1), at_once or max(count, 1)):
        size = min(count - begin, at_once or count)
        own = features[begin : begin + size] if features is not None else None
        drafter.read({slot: Part(begin, size, own)})


def ask(drafter, tree, nodes=(0,), width=4, slot=0):
    """The candidates of one frontier."""
    return drafter.propose([Frontier(slot, tree, np.array(nodes, dtype=np.int64), width)]).candidates[0]


def tell(drafter, tokens, nodes=(0,), features=None, slot=0):
    """One sequence's text goes on."""
    drafter.commit({slot: Committed(np.array(tokens), np.array(nodes), features)})


def draft(drafter, sequences, states, vocab, widths=(4, 3, 5), slots=(2, 0, 5), steps=None, at_once=None, full=True):
    """Draft some sequences at once.

    A sequence takes its slot before its first round, and leaves it after drafting in its last one. Two may have the
    same slot, one after the other.

    Args:
        drafter: where its session is needed, inside it.
        sequences: the `Rounds`.
        states: for each its whole text's features, or None for a drafter that wants none.
        vocab: tokens of the target.
        widths: for each sequence how many candidates it wants.
        slots: for each sequence its slot.
        steps: for each sequence when its rounds are; at the others' steps between them it waits. All begin at once and
            none ever waits by default.
        at_once: tokens of a prompt that are read at once; all by default.
        full: whether it offers all that are wanted and possible.

    Returns:
        For each sequence, for each round, the law at each node, shape `(nodes, vocab)`; NaN where none was given.
    """
    steps = steps or [[*range(len(one.trees))] for one in sequences]
    laws = [[np.full((len(tree), vocab), np.nan) for tree in one.trees] for one in sequences]
    for step in range(max(map(max, steps)) + 1):
        taking = {row: own.index(step) for row, own in enumerate(steps) if step in own}  # the round of each
        for row, round_ in taking.items():
            if round_ == 0:
                start(drafter, sequences[row].prompt, states[row], slots[row], at_once)
        drafting = {row: round_ for row, round_ in taking.items() if sequences[row].drafts[round_]}
        deepest = max([int(sequences[row].trees[round_].depths.max()) for row, round_ in drafting.items()], default=-1)
        deepest = min(deepest, drafter.max_depth - 1) if drafter.max_depth is not None else deepest
        for depth in range(deepest + 1):
            parts = {row: part(sequences[row].trees[round_], depth) for row, round_ in drafting.items()}
            rows = [row for row, (_, nodes) in parts.items() if len(nodes)]
            frontiers = [Frontier(slots[row], *parts[row], widths[row]) for row in rows]
            for row, one, candidates in zip(rows, frontiers, drafter.propose(frontiers).candidates, strict=True):
                for place, node in enumerate(one.nodes):
                    if (candidates.tokens[place] < 0).all():
                        continue
                    law = laws[row][taking[row]][node] = candidates.law(place)
                    if full:
                        check_candidates(candidates, place, law, one.tree.path_logp[node], widths[row])
        ending = {row for row in taking if step == steps[row][-1]}
        committed = {slots[row]: _of_round(sequences[row], taking[row], states[row]) for row in taking.keys() - ending}
        if committed:
            drafter.commit(committed)
        for row in ending:
            drafter.close(slots[row])
    return laws


def check_turns(drafter, states_of, vocab, rtol=1e-4, atol=1e-6, full=True):
    """Sequences in slots of any number that join, wait, leave and follow each other get the laws that they get alone.

    Prompts are read in parts, and in one where a sequence is alone.

    Args:
        drafter: where its session is needed, inside it.
        states_of: from a whole text to its features, or None for a drafter that wants none.
        vocab: tokens of the target.
        rtol: of the laws.
        atol: likewise.
        full: as for `draft`.
    """
    prompts, sizes = (9, 1, 14, 3), ((9, 1, 6, 4), (3, 5, 0, 6), (2, 9, 7, 1), (5, 0, 4, 8))
    sequences = [Rounds.random(seed, vocab, *of) for seed, of in enumerate(zip(prompts, sizes, strict=True))]
    states = [states_of(one.ids) for one in sequences]
    widths, slots = (4, 3, 5, 2), (4, 0, 2, 4)  # the last one follows the first in its slot
    steps = [0, 1, 2, 3], [1, 2, 4, 5], [0, 2, 3, 5], [4, 5, 6, 7]
    together = draft(drafter, sequences, states, vocab, widths, slots, steps, 4, full)
    for one, its, width, laws in zip(sequences, states, widths, together, strict=True):
        (alone,) = draft(drafter, [one], [its], vocab, (width,), (0,), full=full)
        assert np.isfinite(alone[3]).any()
        for round_, own in zip(laws, alone, strict=True):
            np.testing.assert_allclose(round_, own, rtol=rtol, atol=atol)


def check_any_order(drafter, states_of, vocab):
    """A node has the law that it has in its layer, too, if the tree is drafted branch by branch."""
    one = Rounds.random(1, vocab, sizes=(12,))
    states, (tree,) = states_of(one.ids), one.trees
    ((laws,),) = draft(drafter, [one], [states], vocab)
    start(drafter, one.prompt, states[: len(one.prompt) - 1] if states is not None else None)
    for node in sorted(range(len(tree)), key=lambda node: tree.path(node).tolist()):
        np.testing.assert_allclose(ask(drafter, tree, [node]).law(0), laws[node], rtol=1e-4, atol=1e-6)


def _of_round(one, round_, states):
    path, tokens = one.accepted[round_]
    return Committed(tokens, path, states[slice(*_new(one, round_))] if states is not None else None)


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


def recorded_laws(decoder):
    """The same decoder with a drafter that notes every law it is asked for, and that drafter."""
    recording = Recording(decoder.drafter)
    return Decoder(decoder.target, decoder.rule, decoder.policy, recording, decoder.frontend), recording


class Recording(Drafter):
    """A drafter that notes every law it is asked for, with the text and the path it is for; for one sequence."""

    def __init__(self, drafter):
        self.drafter, self.max_depth, self.laws = drafter, drafter.max_depth, []

    def session(self):
        return self.drafter.session()

    def read(self, parts):
        self.drafter.read(parts)

    def close(self, slot):
        self.drafter.close(slot)

    def open(self, slot, prompt, room):
        self.ids = prompt.tolist()
        self.drafter.open(slot, prompt, room)

    def propose(self, frontiers):
        (one,) = frontiers
        proposed = self.drafter.propose(frontiers)
        (candidates,) = proposed.candidates
        if (candidates.tokens >= 0).any():
            for row, node in enumerate(one.nodes):
                path = one.tree.tokens[one.tree.path(int(node))[1:]].tolist()
                self.laws.append((list(self.ids), path, candidates.law(row)))
        return proposed

    def commit(self, committed):
        (one,) = committed.values()
        self.ids += one.tokens.tolist()
        self.drafter.commit(committed)


@cache
def model_and_truth(architecture):
    """A tiny model, and what plain decoding makes of a prompt of five tokens and of one."""
    model = tiny_model(architecture)
    plain = decoder_for_model(model, None, Parts(policy=None))
    prompts = np.array([5, 6, 7, 8, 9]), np.array([5])
    return model, [(prompt, plain.generate(prompt, max_new_tokens=15).token_ids) for prompt in prompts]


def recorded(spec, model):
    """The drafter that a spec opens for a model whose passes are recorded and repeated, as they are on a device."""
    layers = model.config.get_text_config().num_hidden_layers
    backend = TapedBackend(PlainDevice())
    return spec.open(HFTarget(model, backend, None, spec.features(layers), graphs=TapeRecorder))


class Shared:
    """All of this, for the tests: they cannot import it."""

    Written, Rounds = Written, Rounds
    recorded_laws = staticmethod(recorded_laws)
    random_layer = staticmethod(random_layer)
    save = staticmethod(save)
    states_of = staticmethod(states_of)
    random_tree = staticmethod(random_tree)
    part = staticmethod(part)
    start = staticmethod(start)
    ask = staticmethod(ask)
    tell = staticmethod(tell)
    draft = staticmethod(draft)
    check_turns = staticmethod(check_turns)
    check_any_order = staticmethod(check_any_order)
    model_and_truth = staticmethod(model_and_truth)
    recorded = staticmethod(recorded)


@pytest.fixture(scope="session")
def shared():
    """Helpers of the tests of drafters."""
    return Shared
