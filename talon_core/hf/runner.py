"""Runs a transformers causal LM over prompts and draft trees with a cache of our own; target and drafters share it."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor, nn

from talon_core.attention import Accelerator, AttentionBackend, TreeLayout
from talon_core.drafter import FINAL_STATE
from talon_core.hf.attention import ATTENTION_NAME, PASS_KEYWORD, Pass, PromptPass, TreePass
from talon_core.hf.cache import TreeCache
from talon_core.tree import IntArray, TokenTree

PREFILL_CHUNK = 1024
"""Tokens of a prompt that run in one pass; bounds the attention mask of long prompts with a sliding window."""

PREFILL_ROWS = {"cpu": 1}
"""Prompts that run in one pass, by kind of device: on a CPU padding costs more than a pass."""


class ModelRunner:
    """A causal LM, its tree cache, its attention backend, and, where there is one, its accelerator.

    Args:
        model: any `transformers` causal LM that routes its attention through `AttentionInterface`.
        attention: computes tree attention.
        accelerator: makes the model's own layers faster; None leaves them alone.
        features: which hidden states to keep: 0 is what enters the first layer, `i` what layer `i - 1` returns,
            `FINAL_STATE` what enters the LM head.

    Raises:
        ValueError: if the model cannot be run over trees; the sentence says why.
    """

    def __init__(
        self,
        model: Any,
        attention: AttentionBackend,
        accelerator: Accelerator | None = None,
        features: Sequence[int] = (),
    ) -> None:
        self.model = model
        self.attention = attention
        self.features = tuple(features)
        self.cache = TreeCache()
        self.device: torch.device = model.device
        self._captured: dict[int, Tensor] = {}
        self._prefill_sizes = (PREFILL_CHUNK, PREFILL_ROWS.get(self.device.type, 8))
        self.windows: list[int | None] = []  # the sliding window of each layer in the last pass
        self._accelerated = accelerator.prepare(model) if accelerator is not None else None
        layers = len(decoder_layers(model)) if self.features else 0
        for layer in self.features:
            if layer != FINAL_STATE and not 0 <= layer <= layers:
                raise ValueError(f"there is no hidden state {layer}; the model has 0 to {layers}")

    @contextmanager
    def session(self) -> Iterator[None]:
        """While entered, the model's attention is TALON's; outside, the model is as it was.

        Raises:
            RuntimeError: if the model is in a session already, of this runner or of another.
        """
        check_free(self.model)
        before = implementation(self.model)
        with ExitStack() as stack:
            stack.enter_context(evaluating(self.model))
            stack.callback(set_implementation, self.model, before)
            set_implementation(self.model, ATTENTION_NAME)
            self._captured = stack.enter_context(captured_states(self.model, self.features))
            stack.callback(self._captured.clear)
            if self._accelerated is not None:
                stack.enter_context(self._accelerated)
            yield

    def _kept(self) -> Tensor | None:
        if not self.features:
            return None
        return torch.cat([self._captured[layer] for layer in self.features], dim=-1)  # (rows, queries, features)

    @torch.inference_mode()
    def prefill(self, prompts: Sequence[IntArray], max_lengths: Sequence[int]) -> list[Tensor | None]:
        """Start new sequences and run all tokens of each prompt; returns as `Target.prefill` does."""
        self.cache.reset(len(prompts), max(max_lengths))
        parts: list[list[Tensor]] = [[] for _ in prompts]
        for start, group in prompt_passes([len(ids) for ids in prompts], *self._prefill_sizes):
            counts = [min(len(prompts[row]) - start, self._prefill_sizes[0]) for row in group]
            ids = np.zeros((len(group), max(counts)), dtype=np.int64)
            for at, (row, count) in enumerate(zip(group, counts, strict=True)):
                ids[at, :count] = prompts[row][start : start + count]
            with fed(self.cache, group, counts, self.attention) as (positions, this_pass):
                self._forward(torch.from_numpy(ids), positions, this_pass, logits_to_keep=1)
            states = self._kept()
            for at, (row, count) in enumerate(zip(group, counts, strict=True)):
                if states is not None:
                    parts[row].append(states[at, :count])
        if not self.features:
            return [None] * len(prompts)
        width = len(self.features) * self.model.config.get_text_config().hidden_size
        none = torch.empty((0, width), dtype=self.model.dtype, device=self.device)
        return [torch.cat(of_one) if of_one else none for of_one in parts]

    @torch.inference_mode()
    def run(self, trees: Sequence[TokenTree | None], first: Sequence[int]) -> "Ran":
        """Run the nodes of each tree from index `first[b]` on; those before are staged in the cache already.

        A sequence without a tree takes no part.
        """
        inputs = pass_inputs(trees, first, self.cache.lengths)
        self.cache.stage(inputs.counts)
        logits = self._forward(inputs.ids[None], inputs.positions[None], TreePass(inputs.layout, self.attention))
        self.cache.staged_now()
        features = self._kept()
        return Ran(logits[0], features[0] if features is not None else None, inputs.layout.starts)

    def _forward(self, ids: Tensor, positions: Tensor, this_pass: Pass, logits_to_keep: int = 0) -> Tensor:
        """Logits, shape `(rows, kept, vocab)`."""
        logits: Tensor = self.model(
            input_ids=ids.to(self.device),
            position_ids=positions.to(self.device),
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=logits_to_keep,
            **{PASS_KEYWORD: this_pass},
        ).logits
        self.windows = this_pass.windows
        return logits


@attrs.frozen(eq=False)
class Ran:
    """What a pass over trees gives at its nodes, those of all sequences one after another.

    Attributes:
        logits: shape `(queries, vocab)`.
        features: shape `(queries, features)`; None if none are kept.
        starts: where the nodes of each sequence start, and at last their number, shape `(batch + 1,)`, int64.
    """

    logits: Tensor
    features: Tensor | None
    starts: IntArray


def prompt_passes(lengths: Sequence[int], chunk: int, rows: int) -> Iterator[tuple[int, list[int]]]:
    """Which prompts run together: each pass takes up to `rows` of them from the same position on, `chunk` tokens each.

    Prompts of similar length come together, so that little of a pass is padding.

    Yields:
        The position, and the prompts' indices.
    """
    ordered = sorted(range(len(lengths)), key=lambda row: lengths[row])
    for begin in range(0, len(ordered), rows):
        group = ordered[begin : begin + rows]
        for start in range(0, lengths[group[-1]], chunk):
            yield start, [row for row in group if lengths[row] > start]


@contextmanager
def fed(
    cache: TreeCache, rows: Sequence[int], counts: Sequence[int], attention: AttentionBackend, prompt: bool = True
) -> Iterator[tuple[Tensor, Pass]]:
    """The next tokens of some sequences, a chain each, go through a model inside, and belong to their prefixes after.

    Args:
        cache: the model's.
        rows: which sequences; they have equally long prefixes.
        counts: how many tokens of each; the pass is as wide as the longest, and shorter ones are padded at the end.
        attention: computes attention where plain causal attention does not serve.
        prompt: the tokens are a prompt's; False for a single sequence whose tokens get the attention of trees.

    Yields:
        Their positions, shape `(len(rows), longest)`, int64, and the pass.
    """
    start, count = cache.lengths[rows[0]], max(counts)
    cache.stage_prompts(rows, count)
    this_pass: Pass = PromptPass(start, count, attention)
    if not prompt:
        this_pass = TreePass(TreeLayout.chain(start, count), attention)
    yield torch.arange(start, start + count).expand(len(rows), count), this_pass
    for row, own in zip(rows, counts, strict=True):
        cache.lengths[row] += own


@attrs.frozen(eq=False)
class PassInputs:
    """What a model reads in a pass over trees, those of all sequences one after another.

    Attributes:
        ids: token ids, shape `(queries,)`, int64.
        positions: shape `(queries,)`, int64.
        counts: queries of each sequence.
        layout: who may attend to whom.
    """

    ids: Tensor
    positions: Tensor
    counts: list[int]
    layout: TreeLayout


_NO_NODES: IntArray = np.empty(0, dtype=np.int64)


def pass_inputs(trees: Sequence[TokenTree | None], first: Sequence[int], prefix_lengths: Sequence[int]) -> PassInputs:
    """What a model reads in a pass over the nodes of each tree from index `first[b]` on.

    Args:
        trees: one for each sequence; None for one that takes no part.
        first: those before are staged in the cache already.
        prefix_lengths: committed tokens in the cache.
    """
    taking = [(tree, start, prefix) for tree, start, prefix in zip(trees, first, prefix_lengths, strict=True) if tree]
    ids = np.concatenate([_NO_NODES, *(tree.tokens[start:] for tree, start, _ in taking)])
    positions = np.concatenate([_NO_NODES, *(tree.depths[start:] + prefix for tree, start, prefix in taking)])
    layout = TreeLayout(
        np.array(prefix_lengths, dtype=np.int64),
        tuple(tree.parents if tree else _NO_NODES for tree in trees),
        np.array([start if tree else 0 for tree, start in zip(trees, first, strict=True)], dtype=np.int64),
    )
    counts = np.diff(layout.starts).tolist()
    return PassInputs(torch.from_numpy(ids), torch.from_numpy(positions), counts, layout)


@contextmanager
def captured_states(model: Any, features: Sequence[int]) -> Iterator[dict[int, Tensor]]:
    """While entered, each pass of the model leaves the hidden states that were asked for in the dictionary.

    Args:
        model: a transformers causal LM.
        features: as in `ModelRunner`.
    """
    captured: dict[int, Tensor] = {}

    def keep(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *out: Any, at: int) -> None:
        state = out[0] if out else (args[0] if args else kwargs["hidden_states"])
        if at == FINAL_STATE:
            state = state.last_hidden_state
        captured[at] = state[0] if isinstance(state, tuple) else state

    with ExitStack() as stack:
        layers = decoder_layers(model) if features else nn.ModuleList()
        for wanted in features:
            hook = partial(keep, at=wanted)
            if wanted == FINAL_STATE:
                handle = model.get_decoder().register_forward_hook(hook, with_kwargs=True)
            elif wanted == 0:
                handle = layers[0].register_forward_pre_hook(hook, with_kwargs=True)
            else:
                handle = layers[wanted - 1].register_forward_hook(hook, with_kwargs=True)
            stack.callback(handle.remove)
        yield captured


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """While entered, the model is in evaluation mode; then each of its modules is back in the mode it was in."""
    training = [module for module in model.modules() if module.training]
    try:
        model.eval()
        yield
    finally:
        for module in training:
            module.training = True


def check_free(model: Any) -> None:
    """Make sure that no session runs on the model: each switches its attention, and two would not know whose it is.

    Raises:
        RuntimeError: if one does.
    """
    if implementation(model) == ATTENTION_NAME:
        raise RuntimeError("this model is already being decoded; finish or close the running generation first")


def implementation(model: Any) -> Any:
    """The model's attention implementation, as `set_implementation` takes it."""
    return model.config._attn_implementation


def set_implementation(model: Any, name: str) -> None:
    """Switch the model's attention implementation.

    Raises:
        ValueError: if the model stays with another one.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.set_attn_implementation(name)
    if implementation(model) != name:
        raise ValueError(
            f"{type(model).__name__} does not take its attention from transformers' AttentionInterface "
            f"(it stays on '{implementation(model)}'), so it cannot verify a tree; choose another target"
        )


def decoder_layers(model: Any) -> nn.ModuleList:
    """The model's decoder layers, in order.

    Raises:
        ValueError: if no module list of the configured length is found.
    """
    count = model.config.get_text_config().num_hidden_layers
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise ValueError(f"no list of {count} decoder layers found in {type(model).__name__}")
