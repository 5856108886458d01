"""Preparing for what may come out of a verification: the drafter is asked below likely outcomes, layer by layer."""

import copy
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter

import attrs
import numpy as np

from talon_core.candidates import Candidates
from talon_core.choices import Choices
from talon_core.costs import Costs
from talon_core.drafter import Drafter, Frontier
from talon_core.engine.ahead.asking import root_of
from talon_core.engine.ahead.below import Below
from talon_core.engine.ahead.checked_schedule import checked_nodes, checked_outcomes
from talon_core.engine.ahead.prepared import Base, Prepared, Row
from talon_core.engine.growing import DraftLimits
from talon_core.engine.memory import is_memoryless
from talon_core.engine.offers import Offers
from talon_core.errors import PluginError, naming
from talon_core.policy import TreePolicy
from talon_core.rounds import Span
from talon_core.schedule import Outlook, Schedule
from talon_core.tree import FloatArray, IntArray, TokenTree, with_nodes


@attrs.frozen(eq=False)
class Job:
    """What one sequence's preparing starts from. It can be sent to another process.

    Attributes:
        slot: of the sequence.
        base: the text before the tree.
        drafted: the tree as it was drafted, and as the drafter counts its nodes.
        verified: the tree that is verified.
        asked: nodes of `drafted` that the drafter was asked at in this round.
        known: what is known of nodes of `drafted`.
        policy: says how far the drafter is asked: a copy of the sequence's own, or that one, if it remembers nothing.
        costs: what `policy` asks about passes; nobody else asks them. None where it asks
            for nothing.
        limits: what bounds paths in the tree that the drafter sees, its depths counted from the verified root.
        width: the most candidates a node that were wanted so far in this text.
        laws: whether whole laws are kept.
        choices: the randomness of `policy`, which nobody else has.
        outlook: counts of the rounds before: `accepted`, `tested`, `hits` and `misses` of `Outlook`.
    """

    slot: int
    base: Base
    drafted: TokenTree
    verified: TokenTree
    asked: frozenset[int]
    known: Mapping[int, Row]
    policy: TreePolicy
    costs: Costs | None
    limits: DraftLimits
    width: int
    laws: bool
    choices: Choices
    outlook: Mapping[str, int] = attrs.field(factory=dict)


class Preparing:
    """Asks a drafter below likely outcomes of some sequences, all of them together in each call.

    Args:
        drafter: has drafted the trees, and was told nothing since.
        schedule: says which outcomes.
        jobs: one for each sequence.
        now: the clock, in seconds.

    Attributes:
        layers: calls of the drafter so far.
        passes: forward passes of a draft model that it took.
        faults: what has gone wrong for some sequences, by slot: nothing more is prepared for them.
    """

    def __init__(
        self, drafter: Drafter, schedule: Schedule, jobs: Sequence[Job], now: Callable[[], float] = perf_counter
    ) -> None:
        self._offers = Offers(drafter)
        self._schedule = schedule
        self._now = now
        self.layers = self.passes = 0
        self.faults: dict[int, Exception] = {}
        self._ahead: dict[int, _Ahead] = {}
        for job in jobs:
            self._ahead[job.slot] = _Ahead(job, drafter.max_depth, drafter.takes_paths)

    @property
    def slots(self) -> list[int]:
        """The slots of its sequences."""
        return [*self._ahead]

    def step(self) -> bool:
        """Ask the drafter once; False where nothing is left to ask.

        Raises:
            PluginError: if the drafter fails; it is in no known state then.
        """
        frontiers = []
        for slot, one in self._ahead.items():
            if slot not in self.faults:
                try:
                    frontier = one.frontier(self._schedule, self._now)
                except Exception as error:
                    self.faults[slot] = error
                    continue
                if frontier is not None:
                    frontiers.append(frontier)
        if not frontiers:
            return False
        draws = [{node: drawn.copied() for node, drawn in one.tree.drawn.items()} for one in frontiers]
        proposed = self._offers.ask(frontiers, draws)
        self.layers += 1
        self.passes += proposed.draft_passes
        for asked, answer in zip(frontiers, proposed.candidates, strict=True):
            one = self._ahead[asked.slot]
            try:
                one.take(self._offers.checked(answer, asked, one.job.limits.vocab_size))
            except Exception as error:
                self.faults[asked.slot] = error
        return True

    def timed_step(self, spans: list[Span]) -> bool:
        """`step`, with a span of it.

        Args:
            spans: gets it.

        Raises:
            PluginError: as `step`.
        """
        started, layer = self._now(), self.layers
        asked = self.step()
        work = ("layer", layer) if asked else ("look", None)
        spans.append(Span("prepare", started, self._now(), *work))
        return asked

    def prepared(self) -> dict[int, Prepared]:
        """What is there, by slot."""
        found = {slot: one.prepared() for slot, one in self._ahead.items()}
        for slot, one in self._ahead.items():
            if one.failed is not None and not found[slot].below:
                self.faults.setdefault(slot, one.failed)
        return found


class _Ahead:
    """What is prepared for one sequence: first it learns of the verified tree's nodes, then it goes on below outcomes.

    Args:
        job: where it starts.
        max_depth: the drafter's.
        takes_paths: likewise.
    """

    def __init__(self, job: Job, max_depth: int | None, takes_paths: bool) -> None:
        self.job = job
        deepest = job.limits.max_depth
        self._deepest = deepest if max_depth is None else min(deepest, max_depth)
        self._takes_paths = takes_paths
        self._tree = job.drafted
        self._asked = set(job.asked)
        self._known: dict[int, Row] = dict(job.known)
        self._places = job.drafted.nodes_of(job.verified)
        self._wanted: list[int] | None = None  # nodes to ask at before outcomes are chosen
        self._below: dict[tuple[int, int], Below] | None = None
        self._dropped: dict[tuple[int, int], int] = {}  # drafted nodes that are not verified, by parent and token
        self._frontier: Frontier | None = None
        self._parts: list[tuple[Below, list[int]]] = []  # who grows by the next answer, and its frontier
        self.failed: Exception | None = None  # what an outcome was given up for

    def frontier(self, schedule: Schedule, now: Callable[[], float]) -> Frontier | None:
        """Where the drafter is asked next; None at the end.

        Raises:
            PluginError: if the schedule fails, or breaks its contract.
        """
        if self._wanted is None:
            self._wanted = self._unasked(schedule)
        if self._wanted:
            ready = [node for node in self._wanted if self._takes_paths or self._is_ready(node)]
            self._parts = []
            return self._asking(ready, self.job.width)
        if self._below is None:
            self._below = self._chosen(schedule, now)
        nodes: list[int] = []
        width, self._parts = self.job.width, []
        for one in self._below.values():
            try:
                own, wanted = self._unknown(one)
            except PluginError as error:  # what this policy would want for this outcome is not prepared
                self._end(one, error)
                continue
            if own and wanted:
                self._parts.append((one, own))
                nodes += [node for node in own if node not in self._asked]
                width = max(width, wanted)
        return self._asking(nodes, width) if nodes else None

    def _unknown(self, below: Below) -> tuple[list[int], int]:
        """As `Below.frontier`, of the first one that has a node at which the drafter was not asked.

        Raises:
            PluginError: if the policy fails.
        """
        own, wanted = below.frontier()
        while own and wanted and self._asked.issuperset(own):
            self._grow(below, own, None, {})
            own, wanted = below.frontier()
        return own, wanted

    def _end(self, below: Below, error: Exception) -> None:
        below.end()
        self.failed = error

    def _asking(self, nodes: list[int], width: int) -> Frontier:
        width = min(max(width, 1), self.job.limits.vocab_size)
        tree = self._tree if nodes != [0] else root_of(self._tree)
        self._frontier = Frontier(self.job.slot, tree, np.array(nodes, dtype=np.int64), width)
        return self._frontier

    def _is_ready(self, node: int) -> bool:
        return not node or int(self._tree.parents[node]) in self._asked

    def _unasked(self, schedule: Schedule) -> list[int]:
        """The nodes that the drafter has to be asked at before outcomes are chosen, by its count."""
        wanted = checked_nodes(schedule, self.job.verified)
        found: set[int] = set()
        depths = self._tree.depths
        for node in wanted:
            place = self._places[node]
            while place >= 0 and place not in found:
                found.add(place)
                place = int(self._tree.parents[place])
        return sorted(node for node in found if node not in self._asked and int(depths[node]) < self._deepest)

    def take(self, candidates: Candidates) -> None:
        """The drafter has answered."""
        frontier = self._frontier
        assert frontier is not None
        nodes = frontier.nodes.tolist()
        self._asked.update(nodes)
        if self._wanted:
            for place, node in enumerate(nodes):
                self._known[node] = Row.of(candidates, place, frontier.width)
            self._wanted = [node for node in self._wanted if node not in self._asked]
            return
        answered = {node: place for place, node in enumerate(nodes)}
        for below, own in self._parts:
            try:
                self._grow(below, own, candidates, answered)
            except PluginError as error:
                self._end(below, error)

    def _grow(
        self, below: Below, nodes: Sequence[int], candidates: Candidates | None, answered: Mapping[int, int]
    ) -> None:
        """Let what is below an outcome grow by what the drafter has answered.

        Args:
            below: it.
            nodes: its frontier, as the drafter counts it.
            candidates: the drafter's answer, if it was asked now.
            answered: the nodes that this is about, and their rows in it; about the others it was asked in drafting.

        Raises:
            PluginError: if the policy fails, or breaks its contract.
        """
        rows = []
        for node in nodes:
            if candidates is None or node not in answered:
                rows.append(self._known[node])
            else:
                assert self._frontier is not None
                rows.append(Row.of(candidates, answered[node], self._frontier.width, self.job.laws))

        def law(row: int) -> FloatArray:
            if candidates is None or nodes[row] not in answered:  # the law was not kept, and this is a guess anyway
                return rows[row].offered_law(self.job.limits.vocab_size)
            return candidates.law(answered[nodes[row]])

        tokens, parents = below.grow(rows, law)
        below.joined(self._extended(tokens, parents))

    def _extended(self, tokens: IntArray, parents: Sequence[int]) -> list[int]:
        """Put nodes into the tree that the drafter sees, but for those that it has drafted and nobody verifies.

        Returns:
            What they are there, in their order.
        """
        found = [self._dropped.get(pair) for pair in zip(parents, tokens.tolist(), strict=True)]
        new = [place for place, node in enumerate(found) if node is None]
        numbers = iter(range(len(self._tree), len(self._tree) + len(new)))
        if new:
            above = np.array([parents[place] for place in new], dtype=np.int64)
            scores = self._tree.path_logp[above]  # nobody looks at them: the order of outcomes is the schedule's
            self._tree = with_nodes(self._tree, tokens[new], above, scores, self._tree.drawn, layer=True)
        return [next(numbers) if node is None else node for node in found]

    def _chosen(self, schedule: Schedule, now: Callable[[], float]) -> dict[tuple[int, int], Below]:
        """The roots of what is prepared: one for each outcome."""
        job, vocab_size = self.job, self.job.limits.vocab_size
        known = {node: row for node, place in enumerate(self._places) if (row := self._known.get(place)) is not None}
        outlook = Outlook(
            tree=job.verified.copied(),
            tokens={node: row.tokens for node, row in known.items()},
            logp={node: row.logp for node, row in known.items()},
            **job.outlook,
        )
        chosen = checked_outcomes(schedule, outlook, vocab_size)
        found: dict[tuple[int, int], int] = {}  # by place and token, the depth
        for node, token in chosen:
            place = self._places[node]
            depth = int(job.verified.depths[node]) + 1
            over = token in job.limits.ends or depth >= self._deepest
            if place >= 0 and place in self._asked and not over and job.verified.child(node, token) is None:
                found.setdefault((place, token), depth)
        if not found:
            return {}
        verified = {*self._places}
        drafted = zip(job.drafted.parents.tolist(), job.drafted.tokens.tolist(), strict=True)
        self._dropped = {pair: node for node, pair in enumerate(drafted) if node not in verified}
        tokens = np.array([token for _, token in found], dtype=np.int64)
        nodes = self._extended(tokens, [place for place, _ in found])
        shared = is_memoryless(job.policy)
        below = {}
        for at, ((place, token), depth) in zip(nodes, found.items(), strict=True):
            limits = attrs.evolve(job.limits, max_depth=self._deepest - depth)
            policy = job.policy if shared else apart(job.policy, job.costs)
            try:
                below[place, token] = Below(policy, token, at, limits, job.choices, now)
            except PluginError as error:  # one that cannot say its budget is refused where it serves the sequence
                self.failed = error
                return below
        return below

    def prepared(self) -> Prepared:
        """What is there."""
        below = self._below or {}
        return Prepared(self.job.base, {key: one.rows for key, one in below.items() if one.rows})


def apart(policy: TreePolicy, costs: Costs | None, now: Costs | None = None) -> TreePolicy:
    """The same policy as an object of its own, with what it remembers: outcomes are grown each by itself.

    Args:
        policy: it.
        costs: what it knows of passes, which is not copied with it.
        now: what the copy is told in their place; by default the same.

    Raises:
        PluginError: if it cannot be copied; the message names it.
    """
    try:
        return copy.deepcopy(policy, {id(costs): now if now is not None else costs})
    except Exception as error:
        raise PluginError(
            f"{naming('tree policy', policy)} cannot be copied, so nothing is prepared: {error}"
        ) from error
