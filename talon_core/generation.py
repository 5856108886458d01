"""The loop: draft, verify, accept, commit, for a batch of sequences, until a stop condition holds for each."""

import copy
from collections.abc import Generator, Iterator
from collections.abc import Sequence as SequenceOf
from contextlib import nullcontext
from time import perf_counter
from typing import TYPE_CHECKING

import attrs
import numpy as np
import torch
from torch import Tensor

from talon_core.choices import Choices, SeededChoices
from talon_core.drafter import Committed, Prompt, checked_depth, checked_passes
from talon_core.drafting import Drafted, checked_budget, draft_trees
from talon_core.errors import PluginError, blaming, naming, written
from talon_core.policy import TreePolicy
from talon_core.request import Chunk, Request, Result
from talon_core.rounds import Round
from talon_core.rule import Accepted
from talon_core.sequence import Sequence
from talon_core.sessions import Session
from talon_core.target import GreedyTarget
from talon_core.tree import IntArray, TokenTree, read_only

if TYPE_CHECKING:
    from talon_core.decoder import Decoder
    from talon_core.frontend import Frontend

RESERVED_NODES = 256
"""Nodes that a target is asked to make room for; the cache grows where a policy sends a larger tree."""

NOWHERE: IntArray = np.empty(0, dtype=np.int64)
"""The path of a sequence that is over."""


class BatchGeneration:
    """A running generation of several sequences, each with its own tree and its own end.

    An iterator of rounds: each is a list with one `Round` for each sequence, None for those that were over before. In
    one pass all sequences are verified together, so the times of drafter, target and cache are those of the batch.

    Args:
        decoder: what to decode with.
        requests: what to decode, at least one.
        choices: for each sequence the randomness of the rule and the policy; seeded from the requests by default.

    Raises:
        ValueError: if a request cannot be served, see `Decoder.limit`.
    """

    def __init__(
        self, decoder: "Decoder", requests: SequenceOf[Request], choices: SequenceOf[Choices] | None = None
    ) -> None:
        self.decoder = decoder
        given = choices if choices is not None else [SeededChoices(request.seed) for request in requests]
        # A policy serves one sequence at a time; the decoder's own is the one of a sequence that is decoded alone.
        policies = [decoder.policy, *(_copied(decoder.policy) for _ in requests[1:])]
        limits = [decoder.limit(request) for request in requests]
        self.sequences = [Sequence(*of) for of in zip(requests, given, limits, policies, strict=True)]
        self._greedy = decoder.rule.follows_argmax and all(request.greedy for request in requests)
        self._greedy &= len({request.eos for request in requests}) == 1
        self._prefill_seconds = 0.0
        self._rounds = self._run()

    def __iter__(self) -> Iterator[list[Round | None]]:
        return self

    def __next__(self) -> list[Round | None]:
        return next(self._rounds)

    def close(self) -> None:
        """Stop early and give the target back."""
        self._rounds.close()

    def results(self) -> list[Result]:
        """What has come out so far, one for each request."""
        decoder = self.decoder
        return [one.result(decoder._frontend, decoder.lossless, self._prefill_seconds) for one in self.sequences]

    def _run(self) -> Generator[list[Round | None], None, None]:
        drafter = self.decoder.drafter
        drafting = Session("drafter", self.decoder.drafter_spec, drafter) if drafter is not None else nullcontext()
        with Session("target", self.decoder.target), drafting:
            yield from self._rounds_in_session()

    def _rounds_in_session(self) -> Generator[list[Round | None], None, None]:
        started = perf_counter()
        self._prefill()
        self._prefill_seconds = perf_counter() - started
        while not all(sequence.over for sequence in self.sequences):
            active = [row for row, sequence in enumerate(self.sequences) if not sequence.over]
            rounds = self._round(active)
            for row in active:
                sequence, round_ = self.sequences[row], rounds[row]
                assert round_ is not None
                if sequence.policy is not None and type(sequence.policy).observe is not TreePolicy.observe:
                    with blaming("tree policy", sequence.policy, "observe"):
                        sequence.policy.observe(round_.copied())
                sequence.seconds = perf_counter() - started
            yield rounds

    def _prefill(self) -> None:
        target, drafter, policy = self.decoder.target, self.decoder.drafter, self.decoder.policy
        nodes = min(checked_budget(policy), RESERVED_NODES) if policy is not None else 1
        prompts = [sequence.request.ids for sequence in self.sequences]
        rooms = [len(ids) + sequence.limit + nodes for ids, sequence in zip(prompts, self.sequences, strict=True)]
        features = target.prefill(prompts, rooms)
        if drafter is not None:
            told = [Prompt(ids.copy(), own) for ids, own in zip(prompts, features, strict=True)]
            with blaming("drafter", self.decoder.drafter_spec, "begin"):
                drafter.begin(told)
        for sequence, room in zip(self.sequences, rooms, strict=True):
            if sequence.policy is not None:
                with blaming("tree policy", sequence.policy, "begin"):
                    sequence.policy.begin()
            sequence.start(target.device, room)

    def _round(self, active: list[int]) -> list[Round | None]:
        decoder = self.decoder
        passes = self._passes()
        drafted = self._draft()
        verified = self._verify([one.tree if row in active else None for row, one in enumerate(drafted)])
        clock = _Clock()
        emitted = {row: self.sequences[row].emit(drafted[row].tree, verified.accepted[row]) for row in active}
        if not verified.committed:
            decoder.target.commit([one.path for one in verified.accepted])
        commit_seconds = clock.lap()
        if decoder.drafter is not None and not all(sequence.over for sequence in self.sequences):
            told = [self._told(row, drafted[row], verified, emitted) for row in range(len(drafted))]
            with blaming("drafter", decoder.drafter_spec, "commit"):
                decoder.drafter.commit(told)
        draft_passes = self._passes() - passes
        draft_seconds = clock.lap()
        rounds: list[Round | None] = [None] * len(drafted)
        for row in active:
            one = drafted[row]
            rounds[row] = round_ = Round(
                tree=one.tree.without_laws(),
                path=read_only(verified.accepted[row].path),
                tokens=read_only(emitted[row]),
                drafted_nodes=len(one.drafted),
                draft_passes=draft_passes,
                draft_seconds=one.draft_seconds + draft_seconds,
                policy_seconds=one.policy_seconds,
                verify_seconds=verified.verify_seconds,
                accept_seconds=verified.accept_seconds,
                commit_seconds=commit_seconds,
            )
            self.sequences[row].rounds.append(round_)
        return rounds

    def _passes(self) -> int:
        drafter = self.decoder.drafter
        return checked_passes(self.decoder.drafter_spec, drafter) if drafter is not None else 0

    def _draft(self) -> list[Drafted]:
        decoder = self.decoder
        roots = [sequence.root for sequence in self.sequences]
        if decoder.policy is None or decoder.drafter is None:
            return [Drafted(tree, tree, 0.0, 0.0) for tree in map(TokenTree.root, roots)]
        max_depth = checked_depth(decoder.drafter_spec, decoder.drafter)
        limits = [one.limits(decoder.target.vocab_size, max_depth) for one in self.sequences]
        policies = [one.policy for one in self.sequences if one.policy is not None]
        return draft_trees(policies, decoder.drafter, roots, limits, [one.choices for one in self.sequences])

    def _verify(self, trees: list[TokenTree | None]) -> "_Verified":
        target, rule = self.decoder.target, self.decoder.rule
        clock = _Clock()
        if self._greedy and isinstance(target, GreedyTarget) and target.walks:
            walked = target.verify_greedily(trees, self.sequences[0].request.eos)
            features = [one.features for one in walked]
            return _Verified([one.accepted for one in walked], features, True, clock.lap(), 0.0)
        outputs = target.verify(trees)
        verify_seconds = clock.lap()
        accepted = [
            sequence.accept(rule, tree, of.logits) if tree is not None else Accepted(NOWHERE, -1)
            for sequence, tree, of in zip(self.sequences, trees, outputs, strict=True)
        ]
        features = [
            of.features[torch.as_tensor(one.path)] if of.features is not None else None
            for of, one in zip(outputs, accepted, strict=True)
        ]
        return _Verified(accepted, features, False, verify_seconds, clock.lap())

    def _told(self, row: int, drafted: Drafted, verified: "_Verified", emitted: dict[int, IntArray]) -> Committed:
        """What the drafter is told of a sequence's round; nothing is added any more where it is over."""
        features = verified.features[row]
        if self.sequences[row].over:
            return Committed(NOWHERE.copy(), NOWHERE.copy(), features[:0] if features is not None else None)
        tokens = emitted[row]
        return Committed(tokens.copy(), drafted.drafted.follow(tokens[:-1]), features)


@attrs.frozen(eq=False)
class _Verified:
    """What became of a round's trees.

    Attributes:
        accepted: for each sequence; an empty path where there was no tree.
        features: for each sequence the features at the accepted nodes, shape `(path, features)`; None without any.
        committed: the target has committed the paths already.
        verify_seconds: time in the target.
        accept_seconds: time in the acceptance rule.
    """

    accepted: list[Accepted]
    features: list[Tensor | None]
    committed: bool
    verify_seconds: float
    accept_seconds: float


def _copied(policy: TreePolicy | None) -> TreePolicy | None:
    with blaming("tree policy", policy, "copy.deepcopy"):
        copied = copy.deepcopy(policy)
    if type(copied) is not type(policy):
        raise PluginError(
            f"{naming('tree policy', policy)} was copied to {written(copied)}; copy.deepcopy must make one of its class"
        )
    return copied


class Generation:
    """One running generation: an iterator of `Round`s; `result()` when it is exhausted.

    Args:
        decoder: what to decode with.
        request: what to decode.
        choices: the randomness of the rule and the policy; seeded from the request by default.

    Raises:
        ValueError: as `BatchGeneration`.
    """

    def __init__(self, decoder: "Decoder", request: Request, choices: Choices | None = None) -> None:
        self.decoder = decoder
        self.request = request
        self._batch = BatchGeneration(decoder, [request], None if choices is None else [choices])
        (self.sequence,) = self._batch.sequences

    @property
    def token_ids(self) -> list[int]:
        """The new tokens so far."""
        return self.sequence.token_ids

    @property
    def rounds(self) -> list[Round]:
        """One record per round."""
        return self.sequence.rounds

    @property
    def finish_reason(self) -> str | None:
        """Why it is over; None while it is not."""
        return self.sequence.finish_reason

    def __iter__(self) -> Iterator[Round]:
        return self

    def __next__(self) -> Round:
        (round_,) = next(self._batch)
        assert round_ is not None
        return round_

    def close(self) -> None:
        """Stop early and give the target back."""
        self._batch.close()

    def result(self) -> Result:
        """What has come out so far; `finish_reason` is "interrupted" if it was not run to its end."""
        (result,) = self._batch.results()
        return result


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
