"""The loop: draft, verify, accept, commit, until a stop condition holds."""

from collections.abc import Callable, Generator, Iterator
from contextlib import nullcontext
from time import perf_counter
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import torch
from torch import Tensor

from talon_core.choices import Choices, SeededChoices
from talon_core.drafter import Committed, Drafter, DrafterSpec, Prompt
from talon_core.drafting import Drafted, DraftLimits, checked_budget, draft_trees
from talon_core.errors import PluginError, blaming, blaming_bugs, naming
from talon_core.policy import TreePolicy
from talon_core.rounds import Round, Stats
from talon_core.rule import AcceptanceRule, Accepted
from talon_core.sampling import Sampling, TokenBuffer, WarpedLaws
from talon_core.target import NodeOutputs, Target
from talon_core.tree import IntArray, TokenTree, read_only

if TYPE_CHECKING:
    from talon_core.frontend import Frontend

RESERVED_NODES = 256
"""Nodes that a target is asked to make room for; the cache grows where a policy sends a larger tree."""

Criterion = Callable[[Tensor], bool]
"""`criterion(ids (1, length) int64) -> bool`: whether the text stops after these tokens."""


@attrs.frozen(eq=False)
class Request:
    """What is to be decoded, and when it is over.

    Attributes:
        ids: the prompt, shape `(prompt,)`, int64, at least one token.
        max_new_tokens: most tokens to emit, at least 1.
        sampling: how tokens are chosen.
        eos: tokens that end the text; the token itself is emitted.
        criteria: further stop conditions, asked after each token with everything up to it.
        seed: for sampling; None takes a fresh one.
    """

    ids: IntArray
    max_new_tokens: int
    sampling: Sampling = attrs.field(factory=Sampling)
    eos: frozenset[int] = frozenset()
    criteria: tuple[Criterion, ...] = ()
    seed: int | None = None


@attrs.frozen(eq=False)
class Result:
    """What came out.

    Attributes:
        prompt_ids: the prompt, shape `(prompt,)`, int64.
        token_ids: the new tokens.
        text: the new tokens as text, special tokens left out; None if the decoder has no tokenizer.
        finish_reason: "eos", "length" (`max_new_tokens` or the target's context) or "stop" (another condition).
        rounds: one record per round.
        stats: totals.
    """

    prompt_ids: IntArray
    token_ids: list[int]
    text: str | None
    finish_reason: str
    rounds: list[Round]
    stats: Stats


@attrs.frozen(eq=False)
class Chunk:
    """One round as it is streamed: its new text (None without a tokenizer), tokens and record."""

    text: str | None
    round: Round


class Decoder:
    """Decodes with a target, a drafter, a tree policy and an acceptance rule; the output is the target's own.

    A decoder is made by `talon_core.load`. It runs one generation at a time.

    Args:
        target: the model whose output is wanted.
        rule: the acceptance rule.
        policy: the tree policy; None decodes one token per pass, without drafting.
        drafter: the drafter's options; needed with a policy.
        frontend: turns prompts and options into requests, and tokens into text.

    Raises:
        ValueError: if there is a policy but no drafter, the drafter does not fit the target, or the rule is not
            exact for the policy's trees.
    """

    def __init__(
        self,
        target: Target,
        rule: AcceptanceRule,
        policy: TreePolicy | None = None,
        drafter: DrafterSpec | None = None,
        frontend: "Frontend | None" = None,
    ) -> None:
        if policy is not None and drafter is None:
            raise ValueError(f"{naming('tree policy', policy)} needs a drafter, and there is none")
        if policy is not None and not {policy.children, "any"} & rule.exact_for:
            raise ValueError(
                f"{naming('rule', rule)} is not exact for the {policy.children} trees of "
                f"{naming('tree policy', policy)}; it is exact for {', '.join(sorted(rule.exact_for)) or 'none'}"
            )
        self.target = target
        self.rule = rule
        self.policy = policy
        self.drafter_spec = drafter if policy is not None else None
        self.drafter: Drafter | None = None
        if self.drafter_spec is not None:
            with blaming_bugs("drafter", self.drafter_spec, "open"):
                self.drafter = self.drafter_spec.open(target)
        self._frontend = frontend

    @property
    def frontend(self) -> "Frontend":
        """What prepares requests.

        Raises:
            ValueError: if the decoder was made without one.
        """
        if self._frontend is None:
            raise ValueError("this decoder has no frontend: give it token ids through `run`, as a Request")
        return self._frontend

    def generate(self, prompt: "str | list[dict[str, str]] | IntArray | Tensor", **options: Any) -> Result:
        """Decode a prompt to its end.

        Args:
            prompt: text, chat messages, or token ids of shape `(prompt,)`.
            options: `max_new_tokens`, `temperature`, `seed`, `raw` and every option of
                `transformers.GenerationConfig`; see `Frontend.request`.
        """
        request = self.frontend.request(prompt, options)
        generation = Generation(self, request)
        for _ in generation:
            pass
        return generation.result()

    def stream(self, prompt: "str | list[dict[str, str]] | IntArray | Tensor", **options: Any) -> "StreamedGeneration":
        """Decode a prompt, giving text as soon as it is accepted; options as for `generate`.

        The returned object is an iterator of `Chunk`s, and its `result()` is there when it is exhausted.
        """
        return StreamedGeneration(Generation(self, self.frontend.request(prompt, options)), self.frontend)

    def run(self, request: Request) -> "Generation":
        """Decode a prepared request; iterate over the result for its rounds."""
        return Generation(self, request)


class Generation:
    """One running generation: an iterator of `Round`s; `result()` when it is exhausted.

    Args:
        decoder: what to decode with.
        request: what to decode.
        choices: the randomness of the rule and the policy; seeded from the request by default.

    Raises:
        ValueError: if the prompt is empty, leaves no room in the target's context, or has tokens outside the
            vocabulary.
    """

    def __init__(self, decoder: Decoder, request: Request, choices: Choices | None = None) -> None:
        self.decoder = decoder
        self.request = request
        self.choices = choices if choices is not None else SeededChoices(request.seed)
        self.token_ids: list[int] = []
        self.rounds: list[Round] = []
        self.finish_reason: str | None = None
        self.limit = _checked_limit(decoder.target, request)
        self._rounds = self._run()
        self._seconds = 0.0
        self._prefill_seconds = 0.0

    def __iter__(self) -> Iterator[Round]:
        return self

    def __next__(self) -> Round:
        return next(self._rounds)

    def close(self) -> None:
        """Stop early and give the target back."""
        self._rounds.close()

    def result(self) -> Result:
        """What has come out so far; `finish_reason` is "interrupted" if it was not run to its end."""
        frontend = self.decoder._frontend
        return Result(
            prompt_ids=self.request.ids,
            token_ids=self.token_ids,
            text=frontend.text(self.token_ids) if frontend is not None else None,
            finish_reason=self.finish_reason or "interrupted",
            rounds=self.rounds,
            stats=Stats.of(self.rounds, self._seconds, self._prefill_seconds),
        )

    def _run(self) -> Generator[Round, None, None]:
        drafter = self.decoder.drafter
        with self.decoder.target.session(), drafter.session() if drafter is not None else nullcontext():
            yield from self._rounds_in_session()

    def _rounds_in_session(self) -> Generator[Round, None, None]:
        target, drafter, policy = self.decoder.target, self.decoder.drafter, self.decoder.policy
        ids = self.request.ids
        started = perf_counter()
        nodes = min(checked_budget(policy), RESERVED_NODES) if policy is not None else 1
        max_length = len(ids) + self.limit + nodes
        (features,) = target.prefill([ids], [max_length])
        if drafter is not None:
            with blaming("drafter", self.decoder.drafter_spec, "begin"):
                drafter.begin([Prompt(ids.copy(), features)])
        if policy is not None:
            with blaming("tree policy", policy, "begin"):
                policy.begin()
        self._prefill_seconds = perf_counter() - started
        committed = TokenBuffer(ids, max_length, target.device)
        while self.finish_reason is None:
            round_ = self._round(committed)
            if policy is not None:
                with blaming("tree policy", policy, "observe"):
                    policy.observe(round_)
            self._seconds = perf_counter() - started
            yield round_

    def _round(self, committed: TokenBuffer) -> Round:
        decoder = self.decoder
        root = self.token_ids[-1] if self.token_ids else int(self.request.ids[-1])
        passes = decoder.drafter.passes if decoder.drafter is not None else 0
        drafted = self._draft(root)
        clock = _Clock()
        (outputs,) = decoder.target.verify([drafted.tree])
        verify_seconds = clock.lap()
        accepted = self._accept(drafted.tree, outputs, committed)
        accept_seconds = clock.lap()
        path = accepted.path.astype(np.int64)  # a copy: the rule may keep its own
        tokens = np.append(drafted.tree.tokens[path[1:]], accepted.token)
        tokens = self._cut(tokens, committed)
        decoder.target.commit([path])
        committed.append(tokens)
        commit_seconds = clock.lap()
        if decoder.drafter is not None and self.finish_reason is None:
            features = outputs.features[torch.as_tensor(path)] if outputs.features is not None else None
            nodes = drafted.drafted.follow(tokens[:-1])
            with blaming("drafter", decoder.drafter_spec, "commit"):
                decoder.drafter.commit([Committed(tokens.copy(), nodes, features)])
        round_ = Round(
            tree=drafted.tree,
            path=read_only(path),
            tokens=read_only(tokens),
            drafted_nodes=len(drafted.drafted),
            draft_passes=(decoder.drafter.passes if decoder.drafter is not None else 0) - passes,
            draft_seconds=drafted.draft_seconds + clock.lap(),
            policy_seconds=drafted.policy_seconds,
            verify_seconds=verify_seconds,
            accept_seconds=accept_seconds,
            commit_seconds=commit_seconds,
        )
        self.rounds.append(round_)
        self.token_ids.extend(tokens.tolist())
        return round_

    def _draft(self, root: int) -> Drafted:
        decoder = self.decoder
        if decoder.policy is None or decoder.drafter is None:
            tree = TokenTree.root(root)
            return Drafted(tree, tree, 0.0, 0.0)
        limits = DraftLimits(
            vocab_size=decoder.target.vocab_size,
            max_depth=min(self.limit - len(self.token_ids) - 1, decoder.drafter.max_depth or self.limit),
            ends=self.request.eos,
        )
        (drafted,) = draft_trees([decoder.policy], decoder.drafter, [root], [limits], [self.choices])
        return drafted

    def _accept(self, tree: TokenTree, outputs: NodeOutputs, committed: TokenBuffer) -> Accepted:
        rule = self.decoder.rule
        laws = WarpedLaws(tree, outputs.logits, self.request.sampling, committed, self.request.eos)
        try:
            with blaming("rule", rule, "walk"):
                accepted = rule.walk(tree, laws, self.choices)
        except PluginError as error:
            if error.__cause__ in laws.failures:
                raise laws.failures[-1] from None
            raise
        if not isinstance(accepted, Accepted):
            raise PluginError(f"{naming('rule', rule)} returned {type(accepted).__name__} from walk, not an Accepted")
        path = accepted.path
        if not isinstance(path, np.ndarray) or path.ndim != 1 or path.dtype.kind not in "iu":
            raise PluginError(f"{naming('rule', rule)} accepted {path!r}; a path is an array of node indices")
        on_tree = len(path) and path[0] == 0 and path.min() == 0 and path.max() < len(tree)
        if not on_tree or not np.array_equal(tree.parents[path[1:]], path[:-1]):
            raise PluginError(f"{naming('rule', rule)} accepted nodes {path.tolist()}, which are no path from the root")
        if not 0 <= accepted.token < self.decoder.target.vocab_size:
            raise PluginError(
                f"{naming('rule', rule)} emitted token {accepted.token}; "
                f"the target's vocabulary has ids 0 to {self.decoder.target.vocab_size - 1}"
            )
        return accepted

    def _cut(self, tokens: IntArray, committed: TokenBuffer) -> IntArray:
        """The tokens up to the first at which a stop condition holds; sets `finish_reason` there."""
        for count in range(1, len(tokens) + 1):
            if int(tokens[count - 1]) in self.request.eos:
                self.finish_reason = "eos"
            elif self.request.criteria and self._stops(committed.with_path(tokens[:count])):
                self.finish_reason = "stop"
            elif len(self.token_ids) + count >= self.limit:
                self.finish_reason = "length"
            if self.finish_reason is not None:
                return tokens[:count]
        return tokens

    def _stops(self, ids: Tensor) -> bool:
        answers = [criterion(ids) for criterion in self.request.criteria]  # all are asked: some keep state
        return any(answers)


class StreamedGeneration:
    """A running generation as text: an iterator of `Chunk`s; `result()` when it is exhausted."""

    def __init__(self, generation: Generation, frontend: "Frontend") -> None:
        self.generation = generation
        self._text = frontend.text_stream()
        self._shown = 0  # tokens whose text was asked for

    def __iter__(self) -> Iterator[Chunk]:
        for round_ in self.generation:
            text = None
            if self._text is not None:
                new = self.generation.token_ids[self._shown :]  # not the round's array, which plugins have seen
                self._shown += len(new)
                text = self._text.push(new)
                if self.generation.finish_reason is not None:
                    text += self._text.end()
            yield Chunk(text, round_)

    def close(self) -> None:
        """Stop early."""
        self.generation.close()

    def result(self) -> Result:
        """What has come out so far."""
        return self.generation.result()


class _Clock:
    """Seconds since the last lap."""

    def __init__(self) -> None:
        self._last = perf_counter()

    def lap(self) -> float:
        now = perf_counter()
        seconds, self._last = now - self._last, now
        return seconds


def _checked_limit(target: Target, request: Request) -> int:
    """Most new tokens: `max_new_tokens`, or what the target's context leaves."""
    ids = request.ids
    if not len(ids):
        raise ValueError("the prompt is empty; it must have at least one token")
    if request.max_new_tokens < 1:
        raise ValueError(f"max_new_tokens is {request.max_new_tokens}; it must be at least 1")
    if ids.min() < 0 or ids.max() >= target.vocab_size:
        bad = int(ids.min() if ids.min() < 0 else ids.max())
        raise ValueError(f"the prompt holds token {bad}; the target's vocabulary has ids 0 to {target.vocab_size - 1}")
    if target.context_length is None:
        return request.max_new_tokens
    if len(ids) >= target.context_length:
        why = f" ({target.context_reason})" if target.context_reason else ""
        raise ValueError(
            f"the prompt has {len(ids)} tokens; the target's context holds {target.context_length}{why}, "
            "the output included, so the prompt must be shorter"
        )
    return min(request.max_new_tokens, target.context_length - len(ids))
