"""What a model computes without TALON, on a few tokens: what a target's trees are compared with before it is used."""

import logging
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import GenerationMixin, LogitsProcessorList

from talon_core.errors import PluginError, of_the_machine, one_line
from talon_core.hf.experts import experts
from talon_core.hf.frontend import sampling_options
from talon_core.hf.model import evaluating
from talon_core.runtime.cache_keyword import cache_keyword
from talon_core.runtime.modules import Modules
from talon_core.tree import IntArray, TokenTree

STEPS = 2
"""Tokens that `generate` decodes here: the first comes of the prompt's pass, the other of a pass of one token."""


def difference(ours: Tensor, plain: Tensor) -> tuple[float, float]:
    """The largest difference between two rows of logits, shape `(vocab,)`, and how much of it may be rounding.

    A model forbids tokens by minus infinity or the least number of its type: those are no measure of rounding.
    """
    off = torch.where(ours == plain, 0.0, (ours.float() - plain.float()).abs())
    sizes = torch.where(plain.isfinite() & (plain > torch.finfo(plain.dtype).min), plain.float().abs(), 0.0)
    return float(off.max()), (1e-3 if ours.dtype == torch.float32 else 5e-2) * float(sizes.max())


def unlike(ours: Sequence[Tensor], plain: Sequence[Tensor], routed: bool) -> tuple[int, float, float] | None:
    """Where rows of logits differ by more than rounding.

    In less than float32, a token of a mixture of experts may go to another expert where two of them nearly tie, and
    then its logits are off by more than rounding. So there the choices are compared, at all rows, and the logits at
    most of them: the logits of half of the rows, at least, must be within rounding, and at each row the plain model
    must like the token that is chosen as much as its own best, but for rounding.

    Args:
        ours: rows of shape `(vocab,)`.
        plain: what they should be.
        routed: whether they are of a mixture of experts.

    Returns:
        The first row that tells, how far it is off and how much of that may be rounding; None if they are alike.
    """
    found = [difference(*rows) for rows in zip(ours, plain, strict=True)]
    wrong = [at for at, (off, allowed) in enumerate(found) if not off <= allowed]
    if routed and ours[0].dtype != torch.float32:
        chosen = [at for at in wrong if not _chosen_alike(ours[at], plain[at], *found[at])]
        wrong = chosen or (wrong if 2 * len(wrong) > len(found) else [])
    return (wrong[0], *found[wrong[0]]) if wrong else None


def _chosen_alike(ours: Tensor, plain: Tensor, off: float, allowed: float) -> bool:
    """Whether the plain model likes our best token as much as its own, but for rounding."""
    return math.isfinite(off) and bool(plain.max().float() - plain[ours.argmax()].float() <= allowed)


class PlainModel:
    """A model as it is.

    Args:
        model: a transformers causal LM.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._modules = Modules(model)
        self._routed = experts(model) is not None

    def along_paths(self, prefix: IntArray, tree: TokenTree) -> dict[int, Tensor]:
        """The logits at each node, `(vocab,)`: all paths to a leaf are read at once, one a row.

        Where a path is shorter than the longest, any token may follow: what comes later changes nothing before it.

        Raises:
            ValueError: if the model cannot compute them.
        """
        leaves = np.setdiff1d(np.arange(len(tree)), tree.parents)
        paths = [tree.path(leaf) for leaf in leaves]
        longest = max(map(len, paths))
        texts = [np.concatenate([prefix, np.resize(tree.tokens[path], longest)]) for path in paths]
        with torch.inference_mode(), evaluating(self._modules):
            rows = self._logits(texts)[:, -longest:]
        return {int(node): row[at] for path, row in zip(paths, rows, strict=True) for at, node in enumerate(path)}

    def _logits(self, texts: Sequence[IntArray]) -> Tensor:
        ids = self._ids(texts)
        try:
            logits: Tensor = self._model(input_ids=ids, use_cache=False).logits
        except Exception as error:  # of a kind that is the model's own
            if of_the_machine(error) or isinstance(error, ValueError | PluginError):
                raise
            raise ValueError(
                f"{type(self._model).__name__} fails at {ids.shape[1]} tokens, without TALON too "
                f"({type(error).__name__}: {one_line(error)}); look at its modules, and at the dtypes of its weights"
            ) from error
        return logits

    def check_paths(self, tree: TokenTree, expected: Mapping[int, Tensor], ours: Tensor) -> None:
        """Compare a tree's logits with those that `along_paths` gives.

        Args:
            tree: the tree.
            expected: the plain model's, by node.
            ours: what TALON gives at these nodes, shape `(nodes, vocab)`.

        Raises:
            ValueError: if they differ by more than rounding.
        """
        nodes = [*expected]
        found = unlike([ours[node] for node in nodes], [expected[node] for node in nodes], self._routed)
        if found is not None:
            at, off, allowed = found
            name = type(self._model).__name__
            plain = expected[nodes[at]].isnan().any()
            if plain or ours[nodes[at]].isnan().any():  # PyTorch's attention may hide queries that are NaN
                too = ", without TALON too" * bool(plain)
                raise ValueError(f"{name} computes logits that are NaN{too}; look at its weights and dtype")
            raise ValueError(
                f"{name} does not give a tree's nodes the logits of plain decoding "
                f"(off by {off:.2g} at a node of depth {tree.depths[nodes[at]]}, at most {allowed:.2g} is rounding), "
                "so it would be decoded wrongly; choose another target"
            )

    def check_steps(self, prefix: IntArray, tree: TokenTree, ours: Tensor) -> None:
        """Compare a tree's logits with those of `generate`, which feeds a prompt and then one token at a time.

        Args:
            prefix: the text before the tree.
            tree: its deepest path has at least `STEPS` nodes.
            ours: what TALON gives at all nodes, shape `(nodes, vocab)`.

        Raises:
            ValueError: if they differ by more than rounding; the sentence says what that comes from.
        """
        path = tree.path(int(np.argmax(tree.depths)))[:STEPS]
        text = np.append(prefix, tree.tokens[path[0]])
        name = type(self._model).__name__
        given = [ours[node] for node in path]
        steps = self._generated(text, tree.tokens[path[1:]])
        found = unlike(given[: len(steps)], steps, self._routed) if len(steps) else None  # it may end early
        if found is None:
            return
        at, off, allowed = found
        by = f"off by {off:.2g} at the token of depth {tree.depths[path[at]]}, at most {allowed:.2g} is rounding"
        if unlike(given, self._stepped(text, tree.tokens[path[1:]]), self._routed) is None:
            raise ValueError(
                f"{name}.generate does not feed the model a prompt and then token after token ({by}), as its "
                "prepare_inputs_for_generation changes them, and TALON does not; choose another target"
            )
        raise ValueError(
            f"{name} gives a token other logits where it is run alone than where it is run together with others "
            f"({by}), so a tree of tokens cannot be verified; choose another target"
        )

    def _generated(self, text: IntArray, tokens: IntArray) -> Sequence[Tensor]:
        """The logits of `generate` after a text, and after each of the tokens that it is made to choose behind it.

        Nothing where it does not run: then there is nothing to agree with.
        """
        model, ids = self._model, self._ids([text])
        if not issubclass(type(model), GenerationMixin):
            return ()
        options: dict[str, Any] = {
            "attention_mask": torch.ones_like(ids),
            "max_new_tokens": len(tokens) + 1,
            "num_beams": 1,
            "use_cache": True,
            "stop_strings": None,  # which would need the tokenizer
            "logits_processor": LogitsProcessorList([_Forced(len(text), tokens)]),
            "output_logits": True,  # those before any processor
            "return_dict_in_generate": True,
        }
        sampling_options(options, {})
        if model.generation_config.pad_token_id is None:
            options["pad_token_id"] = 0
        with evaluating(self._modules), _unheard():
            try:
                out: Any = model.generate(ids, **options)
            except torch.OutOfMemoryError:
                raise
            except Exception:  # of a kind that is the model's own
                return ()
        return [row[0] for row in out.logits]

    def _stepped(self, text: IntArray, tokens: IntArray) -> list[Tensor]:
        """The same without `generate`: a pass over the text, and one over each of the tokens."""
        cache, rows = None, []
        keyword = cache_keyword(self._model)
        with torch.inference_mode(), evaluating(self._modules):
            for ids in (text, *tokens[:, None]):
                out = self._model(input_ids=self._ids([ids]), use_cache=True, **{keyword: cache})
                cache = out[keyword]
                rows.append(out.logits[0, -1])
        return rows

    def _ids(self, texts: Sequence[IntArray]) -> Tensor:
        return torch.as_tensor(np.stack(texts), device=self._model.device)


class _Forced:
    """Leaves only one choice: behind a prompt these tokens, and then any."""

    def __init__(self, prompt: int, tokens: IntArray) -> None:
        self._prompt = prompt
        self._tokens = tokens

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        at = input_ids.shape[1] - self._prompt
        if at >= len(self._tokens):
            return scores
        forced = torch.full_like(scores, -torch.inf)
        forced[:, int(self._tokens[at])] = 0
        return forced


@contextmanager
def _unheard() -> Iterator[None]:
    """While entered, `generate` says nothing about options: nobody has given any."""
    loggers = [logging.getLogger(f"transformers.generation.{module}") for module in ("utils", "configuration_utils")]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled
