"""The loop: draft, verify, accept, commit, for a batch of sequences, until a stop condition holds for each."""

import copy
from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING

import attrs
import torch

from talon_core.checked_drafter import checked_depth
from talon_core.checked_policy import checked_budget
from talon_core.choices import Choices, SeededChoices
from talon_core.drafter import Committed, Part
from talon_core.drafting import Drafted, Wanted, draft_trees
from talon_core.errors import BusyError, PluginError, blaming, naming, written
from talon_core.policy import TreePolicy
from talon_core.request import Request, Result
from talon_core.rounds import Round
from talon_core.rule import Accepted
from talon_core.sequence import Sequence
from talon_core.sessions import Sessions
from talon_core.tree import TokenTree, read_only

if TYPE_CHECKING:
    from talon_core.decoder import Decoder

RESERVED_NODES = 256
"""Nodes that a target is asked to make room for; the cache grows where a policy sends a larger tree."""


class BatchGeneration(Iterator[list[Round | None]]):
    """A running generation of several sequences, each with its own tree and its own end.

    An iterator of rounds: each is a list with one `Round` for each sequence, None for those that were over before. In
    one pass all sequences are verified together, so the times of drafter, target and cache are those of the batch.

    Target and drafter are in session while a round runs and at no other time, unless `in_one_session` says so.

    Args:
        decoder: what to decode with.
        requests: what to decode, at least one.
        choices: for each sequence the randomness of the rule and the policy, see `Choices.apart`; seeded from the
            requests by default.
        cancelled: asked before each round, also from `finish`; where it says True there are no more.

    Attributes:
        target_passes: forward passes over trees so far; the sequences share them.

    Raises:
        ValueError: if a request cannot be served, see `Decoder.limit`.
    """

    def __init__(
        self,
        decoder: "Decoder",
        requests: SequenceOf[Request],
        choices: SequenceOf[Choices] | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        self.decoder = decoder
        # A policy serves one sequence at a time; the decoder's own is the one of a sequence that is decoded alone.
        policies = [decoder.policy, *(_copied(decoder.policy) for _ in requests[1:])]
        limits = [decoder.limit(request) for request in requests]
        given = choices if choices is not None else [SeededChoices(request.seed) for request in requests]
        self.sequences = [Sequence(*of, decoder.children) for of in zip(requests, given, limits, policies, strict=True)]
        self._greedy = [decoder.rule.follows_argmax and request.greedy for request in requests]
        self._cancelled = cancelled
        self.target_passes = 0
        self._closed = False
        self._running = Lock()  # held while a round runs
        self._session = Sessions(decoder.target, decoder.drafter, decoder.drafter_spec)
        self._in_session = False
        self._started: float | None = None
        self._prefill_seconds = 0.0
        self._claim: set[int] = set()  # the slots that are open

    def __next__(self) -> list[Round | None]:
        """Decode one round; the first one reads the prompts, too.

        Raises:
            StopIteration: if every sequence is over, or the generation was closed, cancelled or has failed.
            BusyError: if the model is being decoded at this moment, or another thread is at this generation.
            RuntimeError: if another generation of this decoder has begun since.
        """
        if not self._running.acquire(blocking=False):
            raise BusyError("a round of this generation is running; ask for the next one when it is over, or close it")
        try:
            if self.over:
                raise StopIteration
            with nullcontext() if self._in_session else self._session.entered():
                self._check_claim()  # in session, so that nobody else can begin after it
                return self._guarded_step()
        finally:
            self._running.release()

    @property
    def over(self) -> bool:
        """Whether no further round will come."""
        if self._cancelled():
            self._closed = True
        return self._closed or all(sequence.over for sequence in self.sequences)

    @contextmanager
    def in_one_session(self) -> Iterator[None]:
        """While entered, target and drafter stay in session between rounds, which costs least; nobody else can decode.

        Raises:
            BusyError: if the model is being decoded at this moment.
        """
        with self._session.entered():
            self._check_claim()
            self._in_session = True
            try:
                yield
            finally:
                self._in_session = False

    def finish(self) -> None:
        """Decode to the end, in one session."""
        if self.over:
            return
        with self.in_one_session():
            for _ in self:
                pass

    def close(self) -> None:
        """Let no further round come. From any thread, at any time: a round that runs is the last one."""
        self._closed = True

    def results(self) -> list[Result]:
        """What has come out so far, one for each request."""
        decoder = self.decoder
        return [one.result(decoder._frontend, decoder.lossless, self._prefill_seconds) for one in self.sequences]

    def _check_claim(self) -> None:
        """Nobody else may have begun on this target: it holds the keys and values of one generation."""
        if self._started is not None and self.decoder.target.claim is not self._claim:
            raise RuntimeError(
                "this generation cannot go on: another one has begun on the same decoder since, and a decoder holds "
                "the keys and values of one at a time; use one decoder for each stream"
            )

    def _guarded_step(self) -> list[Round | None]:
        try:
            return self._step()
        except StopIteration as error:  # whoever iterates would take it for the end
            self._closed = True
            raise RuntimeError(f"StopIteration was raised in a round: {error}") from error
        except BaseException:
            self._closed = True  # target and drafter may be in the middle of something
            raise

    def _step(self) -> list[Round | None]:
        if self._started is None:
            self._started = perf_counter()
            self._prefill()
            self._prefill_seconds = perf_counter() - self._started
        active = [row for row, sequence in enumerate(self.sequences) if not sequence.over]
        rounds = self._round(active)
        for row in active:
            sequence, round_ = self.sequences[row], rounds[row]
            assert round_ is not None
            if sequence.policy is not None and type(sequence.policy).observe is not TreePolicy.observe:
                with blaming("tree policy", sequence.policy, "observe"):
                    sequence.policy.observe(round_.copied())
            sequence.took(perf_counter() - self._started)
        return rounds

    def _prefill(self) -> None:
        target, drafter, policy = self.decoder.target, self.decoder.drafter, self.decoder.policy
        nodes = min(checked_budget(policy), RESERVED_NODES) if policy is not None else 1
        if target.claim is not None:  # whose generation this is cannot go on
            for slot in [*target.claim]:
                self._close(slot, target.claim)
        target.claim = self._claim
        for slot, sequence in enumerate(self.sequences):
            ids = sequence.request.ids
            room = len(ids) + sequence.limit
            self._claim.add(slot)
            target.open(slot, room + nodes)
            if drafter is not None:
                with blaming("drafter", self.decoder.drafter_spec, "open"):
                    drafter.open(slot, ids.copy(), room)
            sequence.start(target.device, room + nodes)
        features = target.read({slot: one.request.ids[:-1] for slot, one in enumerate(self.sequences)})
        if drafter is not None:
            parts = {slot: Part(0, len(self.sequences[slot].request.ids) - 1, own) for slot, own in features.items()}
            with blaming("drafter", self.decoder.drafter_spec, "read"):
                drafter.read(parts)
        for sequence in self.sequences:
            if sequence.policy is not None:
                with blaming("tree policy", sequence.policy, "begin"):
                    sequence.policy.begin()

    def _close(self, slot: int, claim: set[int]) -> None:
        claim.discard(slot)
        self.decoder.target.close(slot)
        if self.decoder.drafter is not None:
            with blaming("drafter", self.decoder.drafter_spec, "close"):
                self.decoder.drafter.close(slot)

    def _round(self, active: list[int]) -> list[Round | None]:
        decoder = self.decoder
        drafted = self._draft(active)
        verified = self._verify({slot: one.tree for slot, one in drafted.items()})
        clock = _Clock()
        emitted = {slot: self.sequences[slot].emit(drafted[slot].tree, verified.accepted[slot]) for slot in active}
        decoder.target.commit({slot: verified.accepted[slot].path for slot in active if slot not in verified.committed})
        commit_seconds = clock.lap()
        told = {
            slot: Committed(tokens.copy(), drafted[slot].drafted.follow(tokens[:-1]), verified.accepted[slot].features)
            for slot, tokens in emitted.items()
            if not self.sequences[slot].over
        }
        if decoder.drafter is not None and told:
            with blaming("drafter", decoder.drafter_spec, "commit"):
                decoder.drafter.commit(told)
        draft_seconds = clock.lap()
        rounds: list[Round | None] = [None] * len(self.sequences)
        for slot in active:
            one = drafted[slot]
            rounds[slot] = round_ = Round(
                tree=one.tree.without_laws(),
                path=read_only(verified.accepted[slot].path),
                tokens=read_only(emitted[slot]),
                drafted_nodes=len(one.drafted),
                draft_passes=one.draft_passes,
                draft_seconds=one.draft_seconds + draft_seconds,
                policy_seconds=one.policy_seconds,
                verify_seconds=verified.verify_seconds,
                accept_seconds=verified.accept_seconds,
                commit_seconds=commit_seconds,
            )
            self.sequences[slot].rounds.append(round_)
            if self.sequences[slot].over:
                self._close(slot, self._claim)
        return rounds

    def _draft(self, active: list[int]) -> dict[int, Drafted]:
        decoder = self.decoder
        sequences = {slot: self.sequences[slot] for slot in active}
        if decoder.policy is None or decoder.drafter is None:
            roots = {slot: TokenTree.root(one.root) for slot, one in sequences.items()}
            return {slot: Drafted(root, root) for slot, root in roots.items()}
        max_depth = checked_depth(decoder.drafter_spec, decoder.drafter)
        wanted = [
            Wanted(slot, one.policy, one.root, one.limits(decoder.target.vocab_size, max_depth), one.policy_choices)
            for slot, one in sequences.items()
            if one.policy is not None
        ]
        return dict(zip(active, draft_trees(wanted, decoder.drafter), strict=True))

    def _verify(self, trees: dict[int, TokenTree]) -> "_Verified":
        target, rule = self.decoder.target, self.decoder.rule
        greedy = {slot: self.sequences[slot].request.eos for slot in trees if self._greedy[slot]}
        clock = _Clock()
        verified = target.verify(trees, greedy)
        self.target_passes += 1
        verify_seconds = clock.lap()
        accepted = {**verified.accepted}
        for slot, outputs in verified.outputs.items():
            chosen = self.sequences[slot].accept(rule, trees[slot], outputs.logits)
            features = outputs.features[torch.as_tensor(chosen.path)] if outputs.features is not None else None
            accepted[slot] = Accepted(chosen.path, chosen.token, features)
        return _Verified(accepted, frozenset(verified.accepted), verify_seconds, clock.lap())


@attrs.frozen(eq=False)
class _Verified:
    """What became of a round's trees.

    Attributes:
        accepted: by slot.
        committed: the slots whose paths the target has committed already.
        verify_seconds: time in the target.
        accept_seconds: time in the acceptance rule.
    """

    accepted: dict[int, Accepted]
    committed: frozenset[int]
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


class Generation(Iterator[Round]):
    """One running generation: an iterator of `Round`s; `result()` when it is exhausted.

    Args:
        decoder: what to decode with.
        request: what to decode.
        choices: the randomness of the rule and the policy; seeded from the request by default.
        cancelled: as for `BatchGeneration`.

    Raises:
        ValueError: as `BatchGeneration`.
    """

    def __init__(
        self,
        decoder: "Decoder",
        request: Request,
        choices: Choices | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        self.decoder = decoder
        self.request = request
        self._batch = BatchGeneration(decoder, [request], None if choices is None else [choices], cancelled)
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
        """Why it is over; None while it is not, and where it was left early."""
        return self.sequence.finish_reason

    @property
    def over(self) -> bool:
        """Whether no further round will come."""
        return self._batch.over

    def __next__(self) -> Round:
        """Decode one round; raises as `BatchGeneration` does."""
        (round_,) = next(self._batch)
        assert round_ is not None
        return round_

    def in_one_session(self) -> AbstractContextManager[None]:
        """As `BatchGeneration.in_one_session`."""
        return self._batch.in_one_session()

    def finish(self) -> None:
        """Decode to the end, in one session."""
        self._batch.finish()

    def close(self) -> None:
        """Let no further round come. From any thread, at any time: a round that runs is the last one."""
        self._batch.close()

    def result(self) -> Result:
        """What has come out so far; `finish_reason` is "interrupted" if it was not run to its end."""
        (result,) = self._batch.results()
        return result


class _Clock:
    """Seconds since the last lap."""

    def __init__(self) -> None:
        self._last = perf_counter()

    def lap(self) -> float:
        now = perf_counter()
        seconds, self._last = now - self._last, now
        return seconds
