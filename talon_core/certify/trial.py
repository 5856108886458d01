"""Certificates: the exact law of what a policy and a rule make of thousands of small worlds, and the target's own."""

from __future__ import annotations

import platform
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache, partial
from importlib.metadata import PackageNotFoundError, version
from random import Random
from time import perf_counter
from typing import Any
from zlib import crc32

import attrs
import hypothesis
from hypothesis import Phase, settings
from hypothesis.errors import Flaky, NoSuchExample, Unsatisfiable
from hypothesis.strategies import SearchStrategy

from talon_core.certificates.code import UntoldError
from talon_core.certificates.standing import is_proved
from talon_core.certificates.store import RANDOM, TOLERANCE, WORLDS
from talon_core.certificates.subject import Subject, is_variable
from talon_core.certify.adversary import Adversary
from talon_core.certify.certificate import Certificate, CertificationError
from talon_core.certify.composed import Enumerated, composed_law
from talon_core.certify.counterexample import explain
from talon_core.certify.exact import Law, LawsAfter, MadeUp, ancestral_law, distance, generations
from talon_core.certify.ticks import Ticks
from talon_core.certify.worlds import KEPT, VARIED, World, random_worlds, worlds_by_size
from talon_core.decoding.decoder import Decoder
from talon_core.defaults import IN_TURN
from talon_core.drafter import DrafterSpec
from talon_core.engine.checked_policy import checked_kind
from talon_core.engine.memory import is_memoryless
from talon_core.errors import PluginError, is_whole, naming, written
from talon_core.plugins.fitting import rule_for
from talon_core.plugins.parts import built, made_policy, made_schedule
from talon_core.plugins.registry import Registry, load_registry
from talon_core.plugins.specs import spelled
from talon_core.policy import TreePolicy
from talon_core.request import Request
from talon_core.rule import AcceptanceRule
from talon_core.schedule import Schedule

MOST_OUTCOMES = 500
"""A world with more outcomes than this is left out, and another one is tried."""

WHOLE = 40
"""In one of so many worlds whole generations are enumerated, too, where laws are composed."""

FEW_OUTCOMES = 50
"""But only where the composed law took no more outcomes than this: whole generations have many times as many."""

SIMPLER = 60
"""Where something is wrong, so many worlds of each size are tried for one that shows it more simply."""

PACKAGES = ("talon-core", "numpy", "torch", "transformers", "hypothesis")


UNSTEADY = (
    "the policy or the rule does not do the same when it is given the same; what is random must come from Choices alone"
)


def certify(
    policy: TreePolicy | str | None,
    rule: AcceptanceRule | str | None = None,
    *,
    drafter: DrafterSpec | str | None = None,
    schedule: Schedule | str | None = None,
    worlds: int = WORLDS,
    seed: int = 0,
    vary: Mapping[str, int] = VARIED,
    report: Callable[[int, int], None] | None = None,
    registry: Registry | None = None,
) -> Certificate:
    """Certify that a policy and a rule keep the target's law, or find a simple world in which they do not.

    In each world the exact law of the text is computed, over every way in which the random choices of the policy and
    the rule can come out; it must be that of sampling from the target, token by token. A policy and a rule without
    memory make rounds whose laws depend on the text before them alone: these are enumerated once for each text, and
    chained. Every so often, and always for those with a memory or a drafter of the registry, the decoder itself runs
    whole generations of several rounds.

    Args:
        policy: a policy or its spec. Worlds set its options named in `vary`. None or "none" certifies a rule where
            nothing is drafted.
        rule: a rule or its spec; by default the policy's default rule.
        drafter: what drafts, or its spec; by default a random table in each world. It must take any target.
        schedule: a schedule or its spec: what it prepares while the target verifies is delayed, reordered and dropped
            by an `Adversary`, in each world in another way. None and "sync" draft and verify in turn.
        worlds: how many.
        seed: the same seed gives the same worlds.
        vary: options of the policy that worlds set where they are numbers from 1 on, and their least values.
        report: called with the number of worlds that are done, and of all.
        registry: where names are looked up; by default in what is installed.

    Returns:
        The certificate.

    Raises:
        CertificationError: if the laws differ in a world, or the policy, rule or drafter raises or breaks its contract;
            the message is the counterexample.
        LookupError: for an unknown name, or a policy whose default rule is not there.
        ValueError: for a bad option, a rule that says itself that it is not exact for such trees, no worlds, or a
            policy whose trees are too large for so many worlds, or never accepted in any: nothing is certified then.
    """
    if worlds < 1:
        raise ValueError(f"worlds is {worlds}; it must be at least 1")
    if not is_whole(seed) or seed < 0:
        raise ValueError(f"seed is {written(seed)}; it must be a whole number and at least 0")
    registry = registry if registry is not None else load_registry()
    made = made_policy(registry, policy)
    ruling: AcceptanceRule = built(registry, "rule", rule_for(registry, made) if rule is None else rule)
    spec: DrafterSpec | None = None if drafter is None else built(registry, "drafter", drafter)
    ahead = made_schedule(registry, schedule)
    vary = {name: least for name, least in vary.items() if is_variable(getattr(made, name, least))}
    trial = _Trial(made, ruling, spec, worlds, report, ahead)
    started = perf_counter()
    before, unkept = _subject(made, ruling, vary)
    found = trial.search(seed, vary)
    if found is None:
        trial.check_enough()
        unkept = unkept or _why_unkept(before, _subject(made, ruling, vary)[0], spec, worlds, ahead)
    subject, _ = _subject(made, ruling, trial.varied)
    certificate = Certificate(
        policy=spelled(made) if made is not None else "none",
        rule=spelled(ruling),
        drafter=spelled(spec) if spec is not None else RANDOM,
        schedule=spelled(ahead) if ahead is not None else IN_TURN,
        worlds=trial.tried,
        outcomes=trial.outcomes,
        accepting=trial.accepting,
        left_out=trial.left_out,
        largest_error=trial.largest,
        tolerance=TOLERANCE,
        seed=seed,
        seconds=perf_counter() - started,
        versions=_versions(),
        counterexample=explain(found[0], trial.decoder(found[0]), found[1], TOLERANCE) if found else None,
        proved=is_proved(ruling, made),
        subject=subject,
        unkept=unkept,
    )
    if not certificate.certified:
        raise CertificationError(certificate)
    return certificate


def _versions() -> dict[str, str]:
    """Those of Python and the packages, as far as these are installed."""
    found = {"Python": platform.python_version()}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _subject(policy: TreePolicy | None, rule: AcceptanceRule, vary: Iterable[str]) -> tuple[Subject | None, str | None]:
    """What is certified, or why nobody can tell."""
    try:
        return Subject.of(policy, rule, vary), None
    except UntoldError as error:
        return None, str(error)


def _why_unkept(
    before: Subject | None, after: Subject | None, drafter: DrafterSpec | None, worlds: int, schedule: Schedule | None
) -> str | None:
    if schedule is not None:
        return "it is about a schedule, which changes no text; a certificate that is kept is about a policy and a rule"
    if worlds < WORLDS:
        return f"it is about {worlds} worlds; a certificate that is kept is about at least {WORLDS}"
    if drafter is not None:
        return f"it is about one drafter; a certificate that is kept is about {RANDOM}"
    if before != after:
        return "the code has changed on disk while it was certified"
    return None


@attrs.frozen(eq=False)
class Examined:
    """What one world showed.

    Attributes:
        expected: the law that the text must have.
        emitted: the law that it has; of several ways to compute it the one that is furthest off.
        outcomes: how much was enumerated.
        accepting: whether something drafted could be accepted.
        broke: what the decoder refused, if it did.
    """

    expected: Law
    emitted: Law = attrs.field(factory=dict)
    outcomes: int = 0
    accepting: bool = False
    broke: str | None = None

    @cached_property
    def error(self) -> float:
        """The largest difference of two probabilities."""
        return distance(self.emitted, self.expected)

    @property
    def wrong(self) -> bool:
        """Whether the law is another one, or something failed."""
        return self.broke is not None or self.error > TOLERANCE

    def with_law(self, found: Enumerated) -> Examined:
        """The same with a law that was computed in another way."""
        further = not self.emitted or distance(found.law, self.expected) > self.error
        return attrs.evolve(
            self,
            emitted=found.law if further else self.emitted,
            outcomes=self.outcomes + found.outcomes,
            accepting=self.accepting or found.accepting,
        )


class _TooLarge(Exception):
    """A world that would take too long."""


class _Trial:
    """One policy and rule in many worlds.

    Attributes:
        varied: options of the policy that some world has set; it may have refused all that others say.
    """

    def __init__(
        self,
        policy: TreePolicy | None,
        rule: AcceptanceRule,
        drafter: DrafterSpec | None,
        worlds: int,
        report: Callable[[int, int], None] | None,
        schedule: Schedule | None = None,
    ) -> None:
        self.schedule = schedule
        self.policy = policy
        self.rule = rule
        self.drafter = drafter
        self.worlds = worlds
        self.tried = self.outcomes = self.accepting = self.left_out = 0
        self.largest = 0.0
        self.varied: set[str] = set()
        self._report = report
        in_turn = drafter is None and schedule is None
        self._composes = in_turn and is_memoryless(rule) and (policy is None or is_memoryless(policy))

    def search(self, seed: int, vary: Mapping[str, int]) -> tuple[World, Examined] | None:
        """A simple world in which something is wrong, and what; None if nothing is wrong in any that is tried."""
        draws = self.policy is not None and checked_kind(self.policy).most != 0
        for world in random_worlds(seed, vary=vary, draws=draws):
            examined = self._tried(world)
            if examined is not None and examined.wrong:
                return self._simplest(world, examined, worlds_by_size(vary=vary, draws=draws), seed)
            if self.tried >= self.worlds or self.left_out > self.worlds:
                return None
        raise AssertionError("there are worlds without end")

    def _tried(self, world: World) -> Examined | None:
        try:
            examined = self.examine(world, whole=self.tried % WHOLE == 0)
        except _TooLarge:
            self.left_out += 1
            return None
        if examined is None:
            return None
        self.tried += 1
        if self.policy is not None:
            policy = world.varied(self.policy)
            self.varied |= {name for name, value in world.options.items() if getattr(policy, name, None) == value}
        self.outcomes += examined.outcomes
        self.accepting += examined.accepting
        if examined.broke is None:  # otherwise the law is not complete
            self.largest = max(self.largest, examined.error)
        if self._report is not None:
            self._report(self.tried, self.worlds)
        return examined

    def _simplest(
        self, world: World, first: Examined, simpler: Sequence[SearchStrategy[World]], seed: int
    ) -> tuple[World, Examined]:
        """A simpler world that shows the same kind of fault, as far as Hypothesis finds one."""

        def again(other: World) -> Examined | None:
            try:
                found = self.examine(other, whole=not composes)
            except _TooLarge:
                return None
            same = found is not None and found.wrong and (found.broke is None) == (first.broke is None)
            return found if same else None

        composes = True  # whole generations take several times as long
        composes = again(world) is not None
        unsteady = world, attrs.evolve(first, broke=UNSTEADY)
        if not composes and again(world) is None:
            return unsteady
        checks: Any = hypothesis.HealthCheck  # pyright does not know how its members are listed
        few = settings(
            max_examples=SIMPLER,
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(checks),
        )
        for simple in simpler:
            try:
                found = hypothesis.find(simple, lambda one: again(one) is not None, settings=few, random=Random(seed))
            except (NoSuchExample, Unsatisfiable):
                continue
            except Flaky:
                return unsteady
            examined = again(found)
            if examined is None:
                return unsteady
            if examined.broke is None:
                self.largest = max(self.largest, examined.error)
            return found, examined
        return world, first

    def check_enough(self) -> None:
        """Refuse a certificate about nothing.

        Raises:
            ValueError: if there were too few worlds, or more too large ones, or nothing drafted was accepted in any.
        """
        if self.tried < self.worlds or self.left_out > self.tried:
            raise ValueError(
                f"{self.tried} of {self.worlds} worlds could be enumerated, and {self.left_out} had too many outcomes; "
                f"give {naming('tree policy', self.policy)} options that make its trees smaller"
            )
        if self.policy is not None and not self.accepting:
            raise ValueError(
                f"nothing that {naming('tree policy', self.policy)} drafted could be accepted in any of {self.worlds} "
                "worlds, so nothing is certified; give it more worlds, or options that let it draft"
            )

    def decoder(self, world: World) -> Decoder:
        """The decoder of a world."""
        drafter = self.drafter if self.drafter is not None else MadeUp(world.make_drafter())
        policy = world.varied(self.policy) if self.policy is not None else None
        parts = world.make_target(), self.rule, policy, drafter
        worst = partial(Adversary, seed=0 if self.schedule is None else crc32(repr(world).encode()))
        return Decoder(*parts, lossy=self.rule.lossy, schedule=self.schedule, worker=worst, now=Ticks())

    def examine(self, world: World, whole: bool) -> Examined | None:
        """Compute both laws; None where the processors forbid every token somewhere, so that there is none.

        Args:
            world: the world.
            whole: enumerate whole generations, also where the law can be composed.

        Raises:
            _TooLarge: if there are too many outcomes.
        """
        truth = true_law(world)
        if truth is None:
            return None
        expected, laws = truth[0], {**truth[1]}
        decoder = self.decoder(world)
        examined = Examined(expected)
        try:
            composes = self._composes and is_memoryless(decoder.engine.policy_for(world.request))
            if composes:
                composed = composed_law(decoder, world.request, MOST_OUTCOMES, laws)
                if composed is None:
                    raise _TooLarge
                examined = examined.with_law(composed)
                whole &= composed.outcomes <= FEW_OUTCOMES
            if whole or not composes:
                examined = examined.with_law(_whole(decoder, world.request))
        except PluginError as error:
            return attrs.evolve(examined, broke=str(error))
        return examined


def true_law(world: World) -> tuple[Law, LawsAfter] | None:
    """The law that texts of a world must have, and the target's own after each; None where there is none.

    It is worked out once for a world: all policies and rules are tried in the same ones. The laws are constant.
    """
    return _true_law(attrs.evolve(world, drafter=(), knows=None, options={}))


@lru_cache(KEPT)
def _true_law(world: World) -> tuple[Law, LawsAfter] | None:
    laws: LawsAfter = {}
    try:
        return ancestral_law(world.make_target(), world.request, laws), laws
    except ValueError:
        return None


def _whole(decoder: Decoder, request: Request) -> Enumerated:
    """The law of the text by whole generations of the decoder."""
    law: Law = defaultdict(float)
    outcomes, accepting = 0, False
    for prob, generation in generations(decoder, request):
        law[tuple(generation.token_ids)] += prob
        accepting |= any(round_.accepted for round_ in generation.rounds)
        outcomes += 1
        if outcomes > MOST_OUTCOMES:
            raise _TooLarge
    return Enumerated(law, outcomes, accepting)
