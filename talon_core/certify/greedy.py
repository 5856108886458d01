"""Whether a decoder's greedy output is the model's own on given prompts, and whether rounding excuses what is not.

In float32 the output must be that of `model.generate(do_sample=False)`, token for token. In bfloat16 and float16 the
rounding of a sum depends on how it is computed, and that decides near ties. So the scores at the first place where two
outputs part are held against how far transformers' own scores move when the same text is computed in other ways. What
TALON computed is not among these: if it were wrong, it would be its own excuse.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import attrs

from talon_core.bench.measurement import first_difference
from talon_core.plugins.specs import spelled
from talon_core.tree import IntArray

if TYPE_CHECKING:
    from torch import Tensor

    from talon_core.decoding.decoder import Decoder
    from talon_core.request import Request

ROUNDED = ("bfloat16", "float16")
"""Formats in which outputs may part at near ties."""

BOTH_MOVE = 2.0
"""A gap may be so many rounding levels: each of the two scores can be off by one, in opposite directions."""

NUDGES = 4
"""Random ways of rounding that a rounding level is taken from; each costs a pass over the text, where outputs part."""


@attrs.frozen
class Divergence:
    """The first place where two outputs part.

    Attributes:
        at: index among the new tokens.
        expected: the model's token there; None if its output was over.
        emitted: the decoder's token there; None if its output was over.
        gap: how much higher the model's score of `expected` is than that of `emitted`, after its processors; None if
            no score can explain it: an output was over, or the model forbids the token.
        rounding: the rounding level: how far transformers' own score of either token moves when it is computed in
            other ways, and a unit in the last place; None without a gap.
        verdict: "rounding" if the gap is at most twice the rounding level, as both scores may move; else "error".
    """

    at: int
    expected: int | None
    emitted: int | None
    gap: float | None = None
    rounding: float | None = None

    verdict: str = attrs.field(init=False, default=attrs.Factory(lambda self: self._judged(), takes_self=True))

    def _judged(self) -> str:
        if self.gap is None or self.rounding is None:
            return "error"
        return "rounding" if self.gap <= BOTH_MOVE * self.rounding else "error"


@attrs.frozen
class PromptCheck:
    """What was found with one prompt.

    Attributes:
        prompt: its index.
        prompt_tokens: its length.
        compared: new tokens that were compared: all of them, or those up to where the outputs part.
        target_passes: passes of the target for the decoder's output.
        nodes_verified: nodes of the trees in them.
        divergence: where the outputs part; None if they are identical.
        identical: whether both outputs are the same, their ends included.
    """

    prompt: int
    prompt_tokens: int
    compared: int
    target_passes: int
    nodes_verified: int
    divergence: Divergence | None

    identical: bool = attrs.field(
        init=False, default=attrs.Factory(lambda self: self.divergence is None, takes_self=True)
    )


@attrs.frozen
class GreedyCheck:
    """What `check_greedy` found.

    Attributes:
        model: what the model is called.
        dtype: the format of its weights, as "float32".
        drafter: the drafter, as a spec; None without drafting.
        policy: the tree policy, likewise.
        rule: the acceptance rule, as a spec.
        max_new_tokens: most tokens of each output.
        prompts: one record for each prompt, in their order.
    """

    model: str
    dtype: str
    drafter: str | None
    policy: str | None
    rule: str
    max_new_tokens: int
    prompts: tuple[PromptCheck, ...]

    @property
    def compared(self) -> int:
        """Tokens that were compared."""
        return sum(one.compared for one in self.prompts)

    @property
    def identical(self) -> int:
        """Prompts whose outputs are the same."""
        return sum(one.identical for one in self.prompts)

    @property
    def divergences(self) -> list[Divergence]:
        """Where outputs part, at most one place for each prompt."""
        return [one.divergence for one in self.prompts if one.divergence is not None]

    @property
    def passed(self) -> bool:
        """In bfloat16 and float16, whether rounding explains every divergence; else, whether there is none."""
        if self.dtype not in ROUNDED:
            return not self.divergences
        return all(one.verdict == "rounding" for one in self.divergences)

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain types."""
        return {
            **attrs.asdict(self),
            "prompts": [attrs.asdict(one) for one in self.prompts],
            "compared": self.compared,
            "identical": self.identical,
            "target_passes": sum(one.target_passes for one in self.prompts),
            "nodes_verified": sum(one.nodes_verified for one in self.prompts),
            "passed": self.passed,
            "verdict": "passed" if self.passed else "failed",
        }


def check_greedy(
    decoder: "Decoder",
    model: Any,
    prompts: Sequence[IntArray],
    max_new_tokens: int,
    report: Callable[[int, int], None] = lambda done, all_: None,
    name: str | None = None,
) -> GreedyCheck:
    """Compare a decoder's greedy output with the model's own, prompt by prompt, up to the same stop conditions.

    In half precision an error that is smaller than the rounding cannot be seen: check in float32 first.

    The model's generation config counts on both sides: its processors, its end tokens, its stop strings. Outputs end at
    the target's context. What follows the place where two outputs part is not compared, as the texts before it differ.

    Args:
        decoder: the decoder, with a frontend.
        model: the transformers causal LM that it decodes with.
        prompts: token ids, each of shape `(prompt,)`, int64; at least one prompt.
        max_new_tokens: most tokens of each output, at least 1.
        report: called with the number of prompts that are done and of all, once at the start and after each.
        name: what to call the model; its class by default.

    Raises:
        ValueError: if there are no prompts, or one cannot be decoded; nothing is decoded then.
    """
    if not len(prompts):
        raise ValueError("there are no prompts; a check needs at least one")
    asked: dict[str, Any] = {
        "temperature": 0,
        "max_new_tokens": max_new_tokens,
        "seed": 0,
    }  # policies may draw their trees
    requests = [_request(decoder, index, ids, asked) for index, ids in enumerate(prompts)]
    checks: list[PromptCheck] = []
    report(0, len(requests))
    for index, request in enumerate(requests):
        result = decoder.generate(request.ids, **asked)
        divergence = _Own(decoder, model, request).divergence(result.token_ids)
        compared = len(result.token_ids) if divergence is None else divergence.at + 1
        passes, nodes = result.stats.target_passes, result.stats.nodes_verified
        checks.append(PromptCheck(index, len(request.ids), compared, passes, nodes, divergence))
        report(len(checks), len(requests))
    return GreedyCheck(
        model=type(model).__name__ if name is None else name,
        dtype=str(model.dtype).removeprefix("torch."),
        drafter=spelled(decoder.drafter_spec) if decoder.drafter_spec is not None else None,
        policy=spelled(decoder.policy) if decoder.policy is not None else None,
        rule=spelled(decoder.rule),
        max_new_tokens=max_new_tokens,
        prompts=tuple(checks),
    )


def _request(decoder: "Decoder", index: int, ids: IntArray, asked: dict[str, Any]) -> "Request":
    try:
        request = decoder.frontend.request(ids, asked)
        decoder.limit(request)
    except ValueError as error:
        raise ValueError(f"prompt {index} cannot be decoded: {error}") from error
    return request


class _Own:
    """transformers' own greedy decoding of a prompt, stopped where the decoder has to stop."""

    def __init__(self, decoder: "Decoder", model: Any, request: "Request") -> None:
        import torch

        from talon_core.hf.frontend import HFFrontend

        self._model = model
        self._ids = torch.as_tensor(request.ids, device=model.device)[None]
        self._how: dict[str, Any] = {"do_sample": False, "max_new_tokens": decoder.limit(request)}
        self._how["attention_mask"] = torch.ones_like(self._ids)
        if model.generation_config.pad_token_id is None:
            self._how["pad_token_id"] = 0  # nothing is padded; without one, generate warns
        if model.generation_config.stop_strings and isinstance(decoder.frontend, HFFrontend):
            self._how["tokenizer"] = decoder.frontend.tokenizer

    def _generate(self, **more: Any) -> list[int]:
        from talon_core.hf.model import evaluating
        from talon_core.runtime.modules import Modules

        with evaluating(Modules(self._model)):
            out = self._model.generate(self._ids, **self._how, **more)
        return [int(token) for token in out[0, self._ids.shape[1] :].tolist()]

    def divergence(self, emitted: list[int]) -> Divergence | None:
        """Where the model's own output and the decoder's part."""
        seen: list[Tensor] = []

        def watch(_ids: "Tensor", scores: "Tensor") -> "Tensor":  # behind all other processors
            if len(seen) < len(emitted):
                seen.append(scores[0, [int(scores[0].argmax()), emitted[len(seen)]]])
            return scores

        expected = self._generate(logits_processor=[watch])
        at = first_difference(expected, emitted)
        if at is None:
            return None
        one, other = next(iter(expected[at:]), None), next(iter(emitted[at:]), None)
        if one is None or other is None:  # the same text has ended for one of them
            return Divergence(at, one, other)
        gap = float(seen[at][0] - seen[at][1])
        if not math.isfinite(gap):
            return Divergence(at, one, other)
        return Divergence(at, one, other, gap, self._rounding_level(expected[:at], [one, other], seen[at]))

    def _rounding_level(self, before: list[int], tokens: list[int], scores: "Tensor") -> float:
        """How far the scores of two tokens after others move when they are computed in other ways that are as good.

        `scores`, shape `(tokens,)`, are those of decoding token by token. Now the text is run at once; and so again
        with each number of its embeddings nudged by up to one unit in the last place, so that everything after them is
        rounded anew, experts that nearly tie included. It is the larger difference of the two tokens, and one unit in
        the last place at the size of their scores.
        """
        import torch

        from talon_core.hf.model import evaluating
        from talon_core.runtime.modules import Modules

        model, found = self._model, [scores]
        ids = torch.cat([self._ids, self._ids.new_tensor([before])], dim=1) if before else self._ids
        processors: list[Any] = []  # transformers' own, not those that TALON believes in

        def capture(_model: Any, input_ids: "Tensor", **prepared: Any) -> "Tensor":
            processors.extend(prepared["logits_processor"])
            return input_ids

        self._generate(custom_generate=capture, stop_strings=None)
        with torch.inference_mode(), evaluating(Modules(model)):
            for seed in (None, *range(NUDGES)):
                with nullcontext() if seed is None else _nudged(model.get_input_embeddings(), seed):
                    own = model(input_ids=ids, use_cache=False, logits_to_keep=1).logits[:, -1].float()  # (1, vocab)
                for processor in processors:
                    own = processor(ids, own)
                found.append(own[0, tokens].to(scores.device))
        moved = torch.stack(found)  # (ways, tokens)
        spread = float((moved.amax(0) - moved.amin(0)).max())
        size = math.frexp(float(moved.abs().max()))[1] - 1
        return spread + float(torch.finfo(model.dtype).eps) * 2.0**size


@contextmanager
def _nudged(embeddings: Any, seed: int) -> Iterator[None]:
    import torch

    def nudge(_module: Any, _ids: Any, out: "Tensor") -> "Tensor":
        generator = torch.Generator(out.device).manual_seed(seed)
        share = 2.0 * torch.rand(out.shape, generator=generator, device=out.device) - 1.0
        return (out.float() * (1.0 + torch.finfo(out.dtype).eps * share)).to(out.dtype)

    handle = embeddings.register_forward_hook(nudge)
    try:
        yield
    finally:
        handle.remove()
