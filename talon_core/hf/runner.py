"""Runs a transformers causal LM over prompts and draft trees with a cache of our own; target and drafters share it."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from talon_core.attention import Accelerator, AttentionBackend, TreeLayout
from talon_core.drafter import FINAL_STATE
from talon_core.hf.attention import ATTENTION_NAME, PASS_KEYWORD, Pass
from talon_core.hf.cache import TreeCache
from talon_core.tree import IntArray, TokenTree

PREFILL_CHUNK = 1024  # tokens; bounds the attention mask of long prompts with a sliding window


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
        return torch.cat([self._captured[layer] for layer in self.features], dim=-1)  # (batch, rows, features)

    @torch.inference_mode()
    def prefill(self, prompts: Sequence[IntArray], max_lengths: Sequence[int]) -> list[Tensor | None]:
        """Start new sequences and run all tokens of each prompt; returns as `Target.prefill` does."""
        self.cache.reset(len(prompts), max(max_lengths))
        kept: list[Tensor | None] = []
        for row, ids in enumerate(prompts):
            parts: list[Tensor] = []
            for start in range(0, len(ids), PREFILL_CHUNK):
                chunk = ids[start : start + PREFILL_CHUNK]
                with fed(self.cache, row, len(chunk), self.attention) as (positions, this_pass):
                    self._forward(torch.as_tensor(chunk)[None], positions, this_pass, logits_to_keep=1)
                state = self._kept()
                if state is not None:
                    parts.append(state[0])
            kept.append(torch.cat(parts) if parts else None)
        if self.features:
            width = len(self.features) * self.model.config.get_text_config().hidden_size
            none = torch.empty((0, width), dtype=self.model.dtype, device=self.device)
            kept = [none if state is None else state for state in kept]
        return kept

    @torch.inference_mode()
    def run(self, trees: Sequence[TokenTree], first: Sequence[int]) -> tuple[Tensor, Tensor | None]:
        """Run the nodes of each tree from index `first[b]` on; those before are staged in the cache already.

        Returns:
            Logits of shape `(batch, queries, vocab)`, sequences with fewer new nodes padded at the end, and the
            features of these nodes, or None.
        """
        counts = [len(tree) - start for tree, start in zip(trees, first, strict=True)]
        self.cache.stage(counts)
        ids, positions, layout = pass_inputs(trees, first, self.cache.lengths)
        out = self._forward(ids, positions, Pass(layout, self.attention))
        self.cache.staged_now()
        return out, self._kept()

    def _forward(self, ids: Tensor, positions: Tensor, this_pass: Pass, logits_to_keep: int = 0) -> Tensor:
        """Logits, shape `(batch, kept, vocab)`."""
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


@contextmanager
def fed(
    cache: TreeCache, row: int, count: int, attention: AttentionBackend, prompt: bool = True
) -> Iterator[tuple[Tensor, Pass]]:
    """One sequence's next `count` tokens, a chain, go through a model inside, and belong to its prefix afterwards.

    Args:
        cache: the model's.
        row: which sequence.
        count: how many tokens.
        attention: computes attention, but for a prompt.
        prompt: as in `Pass`.

    Yields:
        Their positions, shape `(1, count)`, int64, and the pass.
    """
    start = cache.lengths[row]
    counts = [0] * len(cache.lengths)
    counts[row] = count
    cache.stage(counts, row)
    yield torch.arange(start, start + count)[None], Pass(TreeLayout.chain(start, count), attention, prompt)
    cache.lengths[row] += count


def pass_inputs(
    trees: Sequence[TokenTree], first: Sequence[int], prefix_lengths: Sequence[int]
) -> tuple[Tensor, Tensor, TreeLayout]:
    """What a model reads in a pass over the nodes of each tree from index `first[b]` on.

    Args:
        trees: one for each sequence.
        first: those before are staged in the cache already.
        prefix_lengths: committed tokens in the cache.

    Returns:
        Token ids and positions, both of shape `(batch, queries)`, int64, sequences with fewer new nodes padded with 0
        at the end, and the layout.
    """
    counts = [len(tree) - start for tree, start in zip(trees, first, strict=True)]
    ids = np.zeros((len(trees), max(counts)), dtype=np.int64)
    positions = np.zeros_like(ids)
    for row, (tree, start, count) in enumerate(zip(trees, first, counts, strict=True)):
        ids[row, :count] = tree.tokens[start:]
        positions[row, :count] = tree.depths[start:] + prefix_lengths[row]
    layout = TreeLayout(
        np.array(prefix_lengths, dtype=np.int64), tuple(tree.parents for tree in trees), np.array(first, dtype=np.int64)
    )
    return torch.as_tensor(ids), torch.as_tensor(positions), layout


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
