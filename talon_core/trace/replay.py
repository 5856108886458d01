"""Trying policies on a trace: the rounds that they would have had, without either model."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isnan
from time import perf_counter
from typing import Any

import attrs
import numpy as np

from talon_core.choices import SeededChoices
from talon_core.costs import Costs, MeasuredCosts, UnknownCosts
from talon_core.drafter import Drafter, DrafterSpec
from talon_core.engine.checked_drafter import checked_depth, opened
from talon_core.engine.checked_policy import begun, fixed_chaining, follower, never_rests, no_chains, resting, teller
from talon_core.engine.drafting import Drafted, DraftLimits, draft_tree
from talon_core.engine.plain import NoDrafter, RootAlone
from talon_core.engine.walking import walked
from talon_core.errors import PluginError, is_whole, unblamed
from talon_core.laws import Laws, check_node
from talon_core.policy import SequenceInfo, TreePolicy
from talon_core.rounds import Round, Span
from talon_core.rule import AcceptanceRule
from talon_core.source_chooser import check_sources
from talon_core.trace.columns import NO_ROW, TextTrace
from talon_core.trace.drafter import TraceDrafter
from talon_core.trace.folder import Trace
from talon_core.trace.prices import (
    AtRest,
    Untold,
    WithLookUps,
    behind,
    costs_with,
    in_pauses,
    priced,
    priced_target,
    seconds_of,
)
from talon_core.trace.source import Recorded, Source
from talon_core.trace.text_laws import LawsChanged
from talon_core.tree import FloatArray, IntArray, TokenTree, read_only


@attrs.frozen
class Method:
    """What is tried.

    Attributes:
        name: as the user wrote it.
        policy: the tree policy; None decodes without drafting.
        rule: the acceptance rule.
        drafter: a drafter that reads texts alone, in the place of the recorded one; None for that.
        recorded: that drafter, as far as it is known here; None where a plugin that is not installed brought it.
    """

    name: str
    policy: TreePolicy | None
    rule: AcceptanceRule
    drafter: DrafterSpec | None = None
    recorded: DrafterSpec | None = None


@attrs.frozen(eq=False)
class Replayed:
    """The rounds of one text.

    Attributes:
        text: it.
        rounds: as decoding would have had them; `spans` of the drafter and the target are there where costs are known.
        outside: questions that the trace does not answer.
        seconds: that decoding it would take, the reading of the prompt included; None where no costs are known.
        policy_seconds: of these the policy's own, as it took them here; None where they are left out.
        drafter_seconds: likewise, of a drafter that was asked here.
    """

    text: TextTrace
    rounds: Sequence[Round]
    outside: int
    seconds: float | None = None
    policy_seconds: float | None = None
    drafter_seconds: float | None = None


SECONDS = "predicted_seconds", "policy_seconds", "drafter_seconds"
"""Fields of `Totals` that are not known everywhere."""


@attrs.frozen
class Totals:
    """What a method did on some texts.

    Attributes:
        new_tokens: of all texts.
        target_passes: rounds.
        draft_passes: forward passes of a draft model.
        nodes_verified: of all trees, roots included.
        largest_tree: nodes of the largest.
        outside: questions that the trace does not answer; where there are any, the figures are not decoding's.
        predicted_seconds: that decoding would take; None where no costs are known.
        policy_seconds: of these the policy's own; None where they are left out.
        timed_texts: texts on which these were taken; on the others they are what a round of those took in the mean.
        drafter_seconds: as `policy_seconds`, of a drafter of texts, which is asked here; None with another one.
    """

    new_tokens: int
    target_passes: int
    draft_passes: int
    nodes_verified: int
    largest_tree: int
    outside: int
    predicted_seconds: float | None = None
    policy_seconds: float | None = None
    timed_texts: int = 0
    drafter_seconds: float | None = None

    @classmethod
    def of(cls, replayed: Replayed) -> "Totals":
        """On one text."""
        rounds = replayed.rounds
        return cls(
            new_tokens=sum(len(one.tokens) for one in rounds),
            target_passes=len(rounds),
            draft_passes=sum(one.draft_passes for one in rounds),
            nodes_verified=sum(len(one.tree) for one in rounds),
            largest_tree=max(len(one.tree) for one in rounds),
            outside=replayed.outside,
            predicted_seconds=replayed.seconds,
            policy_seconds=replayed.policy_seconds,
            drafter_seconds=replayed.drafter_seconds,
            timed_texts=int(replayed.policy_seconds is not None),
        )

    @classmethod
    def all_of(cls, totals: Iterable["Totals"]) -> "Totals":
        """On several texts, at least one."""
        by_field = zip(*map(attrs.astuple, totals), strict=True)
        fields: Any = attrs.fields(cls)
        others: dict[str, Any] = {"largest_tree": max, **dict.fromkeys(SECONDS, sum_of_known)}
        together = {field.name: others.get(field.name, sum) for field in fields}
        return cls(*(together[field.name](values) for field, values in zip(fields, by_field, strict=True)))

    def taking(self, policy_seconds: float, drafter_seconds: float | None) -> "Totals":
        """The same with seconds of the policy's own, and the drafter's, where they were left out."""
        assert self.predicted_seconds is not None
        assert self.policy_seconds is None
        seconds = self.predicted_seconds + policy_seconds + (drafter_seconds or 0.0)
        own: dict[str, Any] = {"policy_seconds": policy_seconds, "drafter_seconds": drafter_seconds}
        return attrs.evolve(self, predicted_seconds=seconds, **own)

    def as_dict(self) -> dict[str, Any]:
        """They by name, as plain data; what is predicted, and seconds of a drafter, only where there are any."""
        found = attrs.asdict(self)
        if self.drafter_seconds is None:
            del found["drafter_seconds"]
        if self.predicted_seconds is None:
            del found["predicted_seconds"], found["policy_seconds"], found["timed_texts"]
        else:
            found["predicted_tokens_per_second"] = self.predicted_tokens_per_second
        return found

    @property
    def mean_accepted_tokens(self) -> float:
        """New tokens per target pass, the bonus token included (MAT, tau)."""
        return self.new_tokens / self.target_passes if self.target_passes else 0.0

    @property
    def predicted_tokens_per_second(self) -> float | None:
        """New tokens by the seconds that decoding would take; None where no costs are known."""
        return self.new_tokens / self.predicted_seconds if self.predicted_seconds else None


def sum_of_known(values: Sequence[float | None]) -> float | None:
    """None if one of them is not known."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


class Replay:
    """A trace, and what is the same for all methods that are tried on it.

    Args:
        trace: the trace.
        costs: what passes take, on the machine that is asked about; None if nobody wants to know.
        timed: add what policies, and drafters of texts, take here and now. Without it, both are by the costs, and most
            know nothing of them, so that they take nothing: the same question has the same answer at any time.
        now: the clock, in seconds.
    """

    def __init__(
        self,
        trace: Trace,
        costs: Costs | None = None,
        timed: bool = True,
        now: Callable[[], float] = perf_counter,
    ) -> None:
        self.trace = trace
        self.costs = costs
        self.timed = timed
        self.now = now
        self.temperature = float(trace["settings"]["temperature"])
        self._target = trace.target
        self._unknown = UnknownCosts()
        self._at_rest = self._unknown if costs is None else AtRest.of(costs)

    @property
    def adds_own_time(self) -> bool:
        """Whether what policies take here is a part of what is predicted."""
        return self.timed and self.costs is not None

    def check(self, method: Method) -> None:
        """Refuse a method that cannot be tried on this trace.

        Raises:
            ValueError: if its rule is lossy, or tests probabilities of the target that were not recorded, or its policy
                draws from whole laws of the drafter that were not, or chooses among several drafters, or if its drafter
                does not fit the recorded target.
            PluginError: if its drafter breaks its contract; the message names it.
        """
        rule, policy = method.rule, method.policy
        if method.drafter is not None:
            try:
                opened(method.drafter, self._target)
            except ValueError as error:
                raise ValueError(f"method '{method.name}': {error}") from error
        if policy is not None:
            check_sources(policy, (), "a trace has what all of its drafter have said together")
        if rule.lossy:
            raise ValueError(
                f"method '{method.name}': rule '{rule.name}' changes the text, and a trace has the target's own alone"
            )
        laws = bool(self.trace["settings"]["laws"])
        if laws and method.drafter is None:
            return
        if not self.follows(rule):
            lacks = "has them at the nodes of its own drafter alone" if laws else "has none"
            raise ValueError(
                f"method '{method.name}': rule '{rule.name}' tests the target's probabilities, and the trace {lacks}; "
                "take the rule match" + ("" if laws else ", or record with --laws")
            )
        if policy is not None and policy.children != "deterministic" and method.drafter is None:
            raise ValueError(
                f"method '{method.name}': its policy draws from whole laws of the drafter, and the trace has none; "
                "record with --laws"
            )

    def text(self, method: Method, text: TextTrace) -> Replayed:
        """The rounds of a method on one text.

        Args:
            method: has passed `check`.
            text: of the trace.

        Raises:
            PluginError: if a policy, a rule or a drafter breaks its contract; the message names it.
            ValueError: if the text was changed since it was recorded.
        """
        source = self._source(method, text)
        source.drafter.open(0, text.ids[: text.prompt_tokens].copy(), len(text.ids))
        try:
            with unblamed(LawsChanged):
                return _Text(self, method, text, source).replayed()
        finally:
            source.close()

    def answered(self, method: Method, text: TextTrace, max_depth: int | None) -> Replayed | None:
        """The rounds by what a drafter of texts has said along the text, as `text` gives them where it is asked again.

        Args:
            method: has passed `check`, and has such a drafter.
            text: of the trace, with the rows of this drafter, see `talon_core.trace.answers`.
            max_depth: the drafter's own.

        Returns:
            None where that does not tell: for laws, and for questions that it does not answer.

        Raises:
            PluginError: if the policy or the rule breaks its contract; the message names it.
        """
        drafter = TraceDrafter(text, max_depth)
        drafter.open(0, text.ids[: text.prompt_tokens], len(text.ids))
        try:
            found = _Text(self, method, text, Recorded(drafter, self._target.vocab_size)).replayed()
        except PluginError:
            if drafter.law_asked or drafter.unanswered:
                return None
            raise
        return None if drafter.law_asked or drafter.unanswered else found

    def lacks_costs(self, method: Method, text: TextTrace) -> bool:
        """Whether a method's policy asks for costs that nobody gave, tried on one text; arguments and errors as `text`.

        The policy may have learnt from the text afterwards.
        """
        if self.costs is not None:
            return False
        trial = Replay(self.trace, None, self.timed, self.now)  # whose costs nobody else has asked for
        trial.text(method, text)
        return trial._unknown.asked

    def limit(self, text: TextTrace) -> int:
        """The most new tokens that a text could have had."""
        return self.trace.limit(text)

    def costs_of(self, method: Method) -> Costs:
        """What passes take with a method's drafter, or without any where nothing is drafted."""
        if self.costs is None:
            return self._unknown
        if method.policy is None and self.follows(method.rule):
            return self._at_rest
        return costs_with(self.costs, method.drafter)

    def rests(self, method: Method) -> bool:
        """Whether a method's policy says in how many rounds nothing will be drafted: their passes are run together."""
        policy = method.policy
        return policy is not None and self.follows(method.rule) and resting(policy) is not never_rests

    def runs_on(self, method: Method) -> bool:
        """Whether passes of rounds may be run ahead whose trees are known to be chains."""
        costs = self.costs
        return (
            not (costs is None or method.drafter is not None or method.policy is None)
            and self.follows(method.rule)
            and costs.chain(1) is not None
        )

    def costs_behind(self, method: Method) -> Costs | None:
        """What is predicted of a method comes of these, besides what is measured here; None where nothing is.

        What a drafter that is asked here takes is measured, where time is.
        """
        if self.costs is None:
            return None
        return WithLookUps(self.costs) if self.timed and method.drafter is not None else self.costs_of(method)

    def begun(self, method: Method, text: TextTrace) -> TreePolicy:
        """The policy that serves a text.

        Raises:
            PluginError: if it breaks its contract; the message names it.
        """
        told = SequenceInfo(
            prompt_length=text.prompt_tokens,
            max_new_tokens=self.limit(text),
            temperature=self.temperature,
            costs=self.costs_of(method),
            drafter=self.trace["drafter"]["name"] if method.drafter is None else method.drafter.name,
            weight_bits=weight_bits_of(self.trace),
            unread=text.prompt_tokens - 1,
            vocab_size=self._target.vocab_size,
            runs_on=self.runs_on(method),
            rests_on=self.follows(method.rule),
        )
        return begun(method.policy or RootAlone(), told)

    def choices(self, text: TextTrace) -> SeededChoices:
        """The randomness of a text's rounds."""
        return SeededChoices(int(self.trace["settings"]["seed"]) + text.prompt)

    def policy_choices(self, text: TextTrace) -> SeededChoices:
        """That of the policy."""
        return self.choices(text).apart(1)

    def _source(self, method: Method, text: TextTrace) -> Source:
        if method.policy is None:
            return Source(NoDrafter())
        if method.drafter is not None:
            return Source(opened(method.drafter, self._target))
        return Recorded(TraceDrafter(text, self.trace["drafter"]["max_depth"]), self._target.vocab_size)

    def follows(self, rule: AcceptanceRule) -> bool:
        """Whether a rule accepts what stands in the text, and nothing else decides."""
        return rule.follows_target or (not self.temperature and rule.follows_argmax)


def weight_bits_of(trace: Trace) -> int | None:
    """`Target.weight_bits` of the recorded target; None where the trace, of an earlier version, says nothing."""
    bits = trace.manifest["environment"].get("weight_bits")
    return bits if is_whole(bits) else None


class _Layers(MeasuredCosts):
    """Notes the layers of a tree in the place of what they took, which is the trace's time and not the drafter's."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[tuple[int, int]] = []

    def drafted(self, rows: int, width: int, seconds: float) -> None:
        self.sizes.append((rows, width))


class _Text:
    """One text while a method is tried on it."""

    def __init__(self, replay: Replay, method: Method, text: TextTrace, source: Source) -> None:
        self._replay, self._method, self._text, self._source = replay, method, text, source
        trace = replay.trace
        self._new = text.ids[text.prompt_tokens :]
        self._eos = frozenset(trace["target"]["eos"])
        self._vocab_size = int(trace["target"]["vocab_size"])
        self._limit = replay.limit(text)
        self._choices, self._policy_choices = replay.choices(text), replay.policy_choices(text)
        self.outside = 0
        self._untold = Untold(text.prompt_tokens)
        self._policy = replay.begun(method, text)
        self._tell = teller(self._policy)
        self._chains = fixed_chaining(self._policy) if replay.runs_on(method) else no_chains
        self._follows = follower(self._policy) is not None
        self._alone: list[bool] = []  # of each round, whether nothing was drafted in it
        self._parts: list[tuple[list[Span], dict[str, float]]] = []  # what was measured, and what is predicted

    def replayed(self) -> Replayed:
        rounds: list[Round] = []
        done = 0
        while done < len(self._new):
            round_ = self._round(done)
            rounds.append(round_)
            done += len(round_.tokens)
            if done < len(self._new):
                self._source.commit(round_)
            self._tell(round_)
        replay = self._replay
        if replay.costs is not None and replay.rests(self._method):
            rounds = self._in_pauses(rounds)
        spans = [span for round_ in rounds for span in round_.spans]
        seconds = seconds_of(replay.costs, self._text, (span.seconds for span in spans))
        policy = drafter = None
        if replay.adds_own_time:
            policy = sum(span.seconds for span in spans if span.part == "policy")
            if self._method.drafter is not None:
                drafter = sum(span.seconds for span in spans if span.part == "draft")
        return Replayed(self._text, rounds, self.outside, seconds, policy, drafter)

    def _in_pauses(self, rounds: Sequence[Round]) -> list[Round]:
        """The rounds, with what those take that rest together."""
        costs = self._replay.costs_of(self._method)
        together = in_pauses(costs, np.array(self._alone), [round_.context for round_ in rounds]).tolist()
        return [
            round_ if isnan(seconds) else attrs.evolve(round_, spans=_following(own, {**parts, "commit": seconds}))
            for round_, seconds, (own, parts) in zip(rounds, together, self._parts, strict=True)
        ]

    def _round(self, done: int) -> Round:
        """The round that begins after so many new tokens."""
        text, layers = self._text, _Layers()
        context = text.prompt_tokens + done
        root = int(text.ids[context - 1])
        left = self._limit - done - 1
        drafter = self._source.drafter
        began = self._replay.now()
        chained = root not in self._eos and self._chains() is not None
        saying = Span("policy", began, self._replay.now(), "chains")
        depth = checked_depth(drafter, drafter)
        limits = DraftLimits(self._vocab_size, left if depth is None else min(left, depth), self._eos)
        drawing, offers, now = self._drawing(self._policy_choices, done), self._source.offers, self._replay.now
        drafted = draft_tree(self._policy, drafter, root, limits, drawing, layers, offers, now)
        path = self._path(drafted, done)
        self._alone.append(not layers.sizes and len(drafted.tree) == 1)
        return Round(
            tree=drafted.tree.without_laws(),
            path=read_only(path),
            tokens=read_only(self._new[done : done + len(path)]),
            drafted=None if drafted.drafted is drafted.tree else drafted.drafted.without_laws(),
            draft_passes=drafted.draft_passes,
            spans=self._spans(drafted, layers, context, len(path), saying if chained else None),
            context=context,
        )

    def _drawing(self, choices: SeededChoices, done: int) -> SeededChoices:
        """The randomness of a round.

        Where a rule tests what was drawn, what it emits is not what stands in the text. So each position has its own,
        and a round there is the same whatever the rounds before it were.
        """
        return choices if self._replay.follows(self._method.rule) else choices.at(done)

    def _path(self, drafted: Drafted, done: int) -> IntArray:
        """The nodes that are accepted."""
        self.outside += self._source.outside(drafted.drafted)
        if self._replay.follows(self._method.rule) or len(drafted.tree) == 1:
            return drafted.tree.follow(self._new[done:-1])
        laws = _RecordedLaws(self._text, self._source.drafter, drafted.tree, self._eos, self._vocab_size)
        choices = self._drawing(self._choices, done)
        accepted = walked(self._method.rule, drafted.tree, laws, choices, self._vocab_size, laws.failures)
        self.outside += len(laws.unknown)
        return accepted.path[: len(self._new) - done]

    def _spans(
        self, drafted: Drafted, layers: _Layers, context: int, new: int, saying: Span | None
    ) -> tuple[Span, ...]:
        """What the round's parts would take: the policy's own time, and the others where costs are known.

        Where the policy has said that the tree is a chain, in `saying`, and need not be asked for it, that is its own
        time.

        A drafter that reads texts alone has drafted here, and its own time is taken, where time is.
        """
        costs, timed = self._replay.costs_of(self._method), self._replay.timed
        own = [span for span in drafted.spans if span.part == "policy" and timed]
        if saying is not None and timed:
            own = [saying, *([] if self._follows else own)]
        if self._replay.costs is None:
            return tuple(own)
        nodes = len(drafted.tree)
        if not (self._source.drafts and timed):
            predicted = priced(costs, layers.sizes, nodes, context, new, self._untold, timed, saying is not None)
        else:
            draft = sum(span.seconds for span in drafted.spans if span.part == "draft")
            predicted = {"draft": draft, **priced_target(costs, nodes, context, new)}
        self._parts.append((own, predicted))
        return _following(own, predicted)


def _following(own: Sequence[Span], parts: Mapping[str, float]) -> tuple[Span, ...]:
    """What was measured of a round, and its other parts behind that."""
    return (*own, *behind(parts, own[-1].end if own else 0.0))


class _RecordedLaws(Laws):
    """The target's laws at the nodes of a tree, as far as they were recorded.

    Where none was, it is all on one token that no child holds: there the walk ends, and nothing drafted is accepted.

    Attributes:
        unknown: nodes with children that were looked at and not recorded.
        failures: none, ever; as in `SequenceLaws`.
    """

    def __init__(
        self, text: TextTrace, drafter: Drafter, tree: TokenTree, ends: frozenset[int], vocab_size: int
    ) -> None:
        assert isinstance(drafter, TraceDrafter)
        self._text, self._drafter, self._tree, self._ends, self._vocab_size = text, drafter, tree, ends, vocab_size
        self.unknown: set[int] = set()
        self.failures: list[BaseException] = []

    def at(self, node: int) -> FloatArray:
        check_node(self._tree, node)
        assert self._text.law is not None
        row = self._drafter.row(self._tree.tokens[self._tree.path(node)[1:]].tolist())
        if row != NO_ROW:
            return self._text.law("target", row)
        below = self._tree.tokens[self._tree.parents == node].tolist()
        if below:
            self.unknown.add(node)
        law = np.zeros(self._vocab_size)
        law[next(token for token in range(len(law)) if token not in below)] = 1.0
        return law

    def ends(self, token: int) -> bool:
        return token in self._ends
