"""`HFTarget`: any unforked transformers causal LM as a target, checked before the first token."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor, nn

from talon_core.attention import Accelerator, AttentionBackend, DeviceBackend
from talon_core.errors import one_line
from talon_core.hf.bits import weight_bits
from talon_core.hf.checks import check_autocast, check_windows, checked_model, devices_of, why_not_together
from talon_core.hf.model import check_free
from talon_core.hf.probe import PlainModel
from talon_core.hf.runner import ModelRunner, Ran
from talon_core.runtime.blocks import forget_widened, layers_in_blocks
from talon_core.runtime.chain_rounds import ChainRounds
from talon_core.runtime.device import executor_for
from talon_core.runtime.embeddings import vocabulary_size
from talon_core.runtime.executor import Executor
from talon_core.runtime.network import NetworkTarget
from talon_core.runtime.recording import Recorder
from talon_core.runtime.row_sizes import most_rows
from talon_core.runtime.watching import WatchedModules
from talon_core.sampling import Processor
from talon_core.sessions import RepeatableSession
from talon_core.target import ALL_WALKED, NOT_GREEDY, NOTHING_DRAWN, Further, NodeDraws, NodeOutputs, Verified
from talon_core.tree import IntArray, TokenTree

ATTENTION_KINDS = {"full_attention", "sliding_attention"}

MOST_PROBED = 128
"""Nodes of the largest tree that is probed: kernels cut larger ones into tiles, which have no more rows than that."""


class BackendError(ValueError):
    """A model cannot be run with this attention backend; perhaps it can with another."""


class HFTarget(NetworkTarget):
    """A transformers causal LM that verifies draft trees in one forward pass.

    The model is not changed: its attention is switched to TALON's for the time of a generation, through
    transformers' public `AttentionInterface`, and the cache is TALON's own.

    Args:
        model: the model, on its device, in its dtype.
        attention: computes tree attention.
        accelerator: makes the model's own layers faster; None leaves them alone.
        features: which hidden states `verify` and `read` return, concatenated: 0 is what enters the first layer,
            `i` what layer `i - 1` returns, `FINAL_STATE` what enters the LM head.
        tokenizer: the model's tokenizer, which drafters compare theirs with; None if there is none.
        graphs: makes what records passes over trees, so that they are repeated without Python, the drafters' too; None
            runs them as they are.
        probe: check on a few tokens that a tree's logits are those of the plain model, before anything is decoded.
        nodes: of the largest tree that will be verified. On a device the probe verifies one of as many, up to
            `MOST_PROBED`: kernels cut large trees otherwise than small ones. What a drafter adds to trees is not known
            yet, and is not probed, nor is a drafter's own attention.

    Raises:
        ValueError: if the model cannot verify trees exactly; the sentence says why.
        BackendError: if that is the attention backend's fault.
        RuntimeError: if the model is being decoded at the moment.
    """

    def __init__(
        self,
        model: Any,
        attention: AttentionBackend,
        accelerator: Accelerator | None = None,
        features: Sequence[int] = (),
        tokenizer: Any = None,
        graphs: Callable[[], Recorder] | None = None,
        probe: bool = True,
        nodes: int = 1,
    ) -> None:
        model = checked_model(model)
        config = model.config.get_text_config()
        if getattr(model.config, "is_encoder_decoder", False):
            raise ValueError(f"{type(model).__name__} is an encoder-decoder; a target must be a causal LM")
        _check_layer_kinds(model, config)
        check_free(model)
        check_autocast(model.device)
        apart = why_not_together(model, attention)
        if apart is not None:
            raise BackendError(apart)
        self.model = model
        self.vocab_size = vocabulary_size(model)
        self.context_length, self.context_reason = _context(config)
        self.weight_bits = weight_bits(model)
        self.device = model.device
        self.attention = attention
        self.accelerator = accelerator
        self.tokenizer = tokenizer
        self.states = tuple(features)
        self.graphs = graphs
        self._executors: WeakSet[Executor] = WeakSet()  # whose recorded passes may read weights of the model
        others = [device for device in devices_of(model) if device != self.device]
        self.runner = ModelRunner(model, self._executor(others), accelerator, features, self._forget, verifies=True)
        self.runner.others = self._executors
        self.can_walk, self.can_draw = self.runner.executor.can_walk, self.runner.executor.can_draw
        self.runs_on = self.runner.executor.runs_on
        self._best = self.runner.executor.best_numbers if self.device.type == "cpu" else None
        if probe:
            self._probe(nodes)
        forget_widened(model)  # passes in a session may need no weights but the blocks

    def draws(self, warpers: tuple[Processor, ...]) -> bool:
        return self.model.dtype is torch.float32 and self.runner.executor.draws(warpers)

    def executor(self) -> Executor:
        made = self._executor()
        made.set_up.append(self.runner.put_off.set_up)  # the drafter's passes may run layers of the model
        return made

    def _executor(self, others: Sequence[torch.device] = ()) -> Executor:
        recorder = self.graphs() if self.graphs is not None and not others else None
        made = executor_for(self.attention, self.device, recorder, others)
        self._executors.add(made)
        return made

    @property
    def given_executors(self) -> list[Executor]:
        """Those that `executor` has given, as long as a drafter keeps them."""
        return [one for one in self._executors if one is not self.runner.executor]

    def own_executor(self) -> Executor:
        return self.runner.executor

    def chained(self, executor: Executor) -> ChainRounds | None:
        return self.runner.chained(executor)

    def _forget(self) -> None:
        """Give up what is recorded, the drafters' passes too: they may share the model's embedding and LM head."""
        for executor in self._executors:
            executor.forget()

    def faster(self, *modules: nn.Module) -> AbstractContextManager[object]:
        own = nn.ModuleList(module for module in modules if module is not self.model.get_output_embeddings())
        inside = self.accelerator.prepare(own) if self.accelerator is not None else nullcontext()
        return WatchedModules(own, inside, self._forget)

    def session(self) -> RepeatableSession:
        return self.runner.session()

    def open(self, slot: int, room: int) -> None:
        self.runner.open(slot, room)

    def resume(self, slot: int, room: int, source: int, length: int) -> int:
        self.runner.cache.check_open([source])
        return self.runner.resume(slot, room, source, length)

    def rows(self, rooms: Mapping[int, int]) -> int:
        return self.runner.cache.rows_for(rooms)

    @property
    def most_rows(self) -> int | None:
        return most_rows(devices_of(self.model), self.runner.cache.row_bytes)

    def close(self, slot: int) -> None:
        self.runner.cache.check_open([slot])
        self.runner.close(slot)

    def read(self, parts: Mapping[int, IntArray]) -> Mapping[int, Tensor | None]:
        self.runner.cache.check_open(parts)
        return self.runner.read(parts)

    def prepare(
        self,
        slots: Collection[int],
        nodes: int,
        greedy: Mapping[int, frozenset[int]] = NOT_GREEDY,
        drawn: Mapping[int, NodeDraws] = NOTHING_DRAWN,
    ) -> None:
        self.runner.cache.check_open(slots)
        _, ends, taken = _walked(greedy, drawn)
        self.runner.prepare(slots, nodes, ends, taken)

    def verify(
        self,
        trees: Mapping[int, TokenTree],
        greedy: Mapping[int, frozenset[int]] = NOT_GREEDY,
        unwalked: Mapping[int, int] = ALL_WALKED,
        drawn: Mapping[int, NodeDraws] = NOTHING_DRAWN,
        further: Further | None = None,
    ) -> Verified:
        slots, ends, taken = _walked(greedy, drawn)
        if ends is None:
            return self._left_to_rules(trees)
        before = self.runner.executor.preparations
        looked_at = bool(unwalked) or len(slots) < len(trees)
        roots = None if looked_at else self.runner.walk_roots(trees, ends, further, taken)
        if roots is not None:
            return Verified(accepted=roots[0], passes=roots[1])
        ready = None if looked_at else self.runner.walk_ready(trees, ends, taken)
        if ready is not None:
            return Verified(accepted=ready[0], passes=0, seconds=ready[1])
        tested = [] if self.can_draw else [slot for slot, one in taken.items() if one.tests is not None]
        left = [slot for slot in tested if trees[slot].drawn]
        if left:  # the rule makes these tests
            slots, looked_at = [slot for slot in slots if slot not in left], True
            taken = {slot: one for slot, one in taken.items() if slot not in left}
            if not slots:
                return self._left_to_rules(trees)
        ran, accepted = self.runner.walk(trees, slots, ends, unwalked, taken, logits=looked_at)
        prepared = self.runner.executor.preparations > before
        return Verified(self._split(ran, (trees.keys() - accepted.keys()) | unwalked.keys()), accepted, prepared)

    def _left_to_rules(self, trees: Mapping[int, TokenTree]) -> Verified:
        """What a pass says of every node, where it walks through no tree."""
        before = self.runner.executor.preparations
        ran = self.runner.run({slot: (tree, 0) for slot, tree in trees.items()})
        return Verified(self._split(ran, trees), prepared=self.runner.executor.preparations > before)

    def _split(self, ran: Ran, slots: Iterable[int]) -> dict[int, NodeOutputs]:
        """Each slot's own of what a pass gave."""
        found = {}
        for slot in sorted(slots):
            start, end = int(ran.starts[slot]), int(ran.starts[slot + 1])
            features = ran.features[start:end] if ran.features is not None else None
            found[slot] = NodeOutputs(ran.logits[start:end], features, self._best)
        return found

    def commit(self, paths: Mapping[int, IntArray]) -> None:
        if paths:
            self.runner.commit(paths)

    def _reading_blocks(self) -> AbstractContextManager[object]:
        """While entered, what is in blocks is read as it is: the plain model would widen all of it and keep that."""
        layers = [layer for _, layer in layers_in_blocks(self.model)]
        return self.accelerator.prepare(nn.ModuleList(layers)) if self.accelerator and layers else nullcontext()

    def _probe(self, nodes: int) -> None:
        """Compare a small tree's logits with those of the plain model: path by path, and as `generate` feeds it."""
        rng = np.random.default_rng(0)
        prefix = rng.integers(0, self.vocab_size, 6)
        parents = np.array([-1, 0, 0, 1, 1, 2, 3])
        tree = TokenTree(rng.integers(0, self.vocab_size, len(parents)), parents, np.zeros(len(parents)))
        plain = PlainModel(self.model)
        with self._reading_blocks():
            expected = plain.along_paths(prefix, tree)
        with self.session():
            given = self._verified(prefix, tree)
            nodes = min(nodes, MOST_PROBED) if isinstance(self.attention, DeviceBackend) else 0
            larger = self._verified(prefix, _grown(tree, nodes)) if nodes > len(tree) else None
        check_windows(self.model, self.runner.windows)
        plain.check_paths(tree, expected, given)
        if larger is not None:
            plain.check_paths(tree, expected, larger)
        with self._reading_blocks():
            plain.check_steps(prefix, tree, given)

    def _verified(self, prefix: IntArray, tree: TokenTree) -> Tensor:
        """The logits of a tree behind a prompt, shape `(nodes, vocab)`, in memory of their own; in a session."""
        try:
            self.open(0, len(prefix) + len(tree))
            self.read({0: prefix})
            found = self.verify({0: tree}).outputs[0].logits
            assert isinstance(found, Tensor)
            logits = found.clone()
            self.close(0)
        except torch.OutOfMemoryError:
            raise  # nothing is wrong with the model
        except Exception as error:  # Triton has errors of its own, for a kernel that a GPU has no room for
            raise BackendError(
                f"{type(self.model).__name__} cannot verify a tree of {len(tree)} nodes with attention backend "
                f"'{self.attention.name}' ({one_line(error)}); choose another target, or another backend"
            ) from error
        return logits


def _grown(tree: TokenTree, nodes: int) -> TokenTree:
    """A tree with further children of the root, up to so many nodes: the laws at its own nodes are the same."""
    more = nodes - len(tree)
    return TokenTree(
        np.concatenate([tree.tokens, np.resize(tree.tokens, more)]),
        np.concatenate([tree.parents, np.zeros(more, dtype=np.int64)]),
        np.zeros(nodes),
    )


def _walked(
    greedy: Mapping[int, frozenset[int]], drawn: Mapping[int, NodeDraws]
) -> tuple[list[int], frozenset[int] | None, Mapping[int, NodeDraws]]:
    """Which slots are walked on the device, the ends of their texts, and how those are drawn that are drawn.

    One walk knows one set of ends: those that most slots have. None if nothing is walked.
    """
    wanted = {**greedy, **{slot: one.ends for slot, one in drawn.items()}} if drawn else greedy
    if not wanted:
        return [], None, drawn
    every = wanted.values()
    ends = next(iter(every)) if len(every) == 1 else Counter(every).most_common(1)[0][0]
    slots = [slot for slot, own in wanted.items() if own == ends]
    return slots, ends, {slot: drawn[slot] for slot in slots if slot in drawn} if drawn else drawn


def _context(config: Any) -> tuple[int | None, str | None]:
    """The longest text that a model decodes with one set of position embeddings, and why it is no longer.

    RoPE of the types "longrope" and "dynamic" has other frequencies for every position once the text grows past a
    length: keys in the cache would be turned by the old ones, and the nodes of a tree by those of its deepest node.
    """
    longest: int | None = getattr(config, "max_position_embeddings", None)
    reason = None
    for kind, parameters in _rope_parameters(config):
        given = parameters.get("original_max_position_embeddings")
        if given is None and kind == "longrope":
            given = getattr(config, "original_max_position_embeddings", None)
        if given is not None and (longest is None or given < longest):
            longest, reason = int(given), f"beyond it the model's RoPE of type '{kind}' changes for the whole text"
    return longest, reason


def _rope_parameters(config: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Type and parameters of each RoPE whose frequencies depend on the length of the text."""
    given = getattr(config, "rope_parameters", None) or {}
    nested = [inner for inner in given.values() if isinstance(inner, Mapping)]  # by kind of layer
    for parameters in nested or [given]:
        kind = str(parameters.get("rope_type", "default"))
        if kind == "longrope" or "dynamic" in kind:
            yield kind, parameters


def _check_layer_kinds(model: Any, config: Any) -> None:
    kinds = set(getattr(config, "layer_types", None) or ()) - ATTENTION_KINDS
    if kinds:
        raise ValueError(
            f"{type(model).__name__} has layers of kind {', '.join(sorted(kinds))}; "
            "only full and sliding-window attention can verify a tree"
        )
    if getattr(config, "attention_chunk_size", None):
        raise ValueError(
            f"{type(model).__name__} attends in chunks, which its layers do not pass on; choose another target"
        )
