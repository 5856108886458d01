"""Certificates: the exact law of what a policy and a rule make of thousands of small worlds, and the target's own."""

from __future__ import annotations

import platform
import random
from collections import defaultdict
from collections.abc import Callable, Mapping
from importlib.metadata import version
from time import perf_counter
from typing import Any

import attrs
import hypothesis
from hypothesis import Phase, settings
from hypothesis.errors import Flaky, NoSuchExample, Unsatisfiable

from talon_core.certify.code import UntoldError
from talon_core.certify.standing import is_proved
from talon_core.certify.store import RANDOM, TOLERANCE, WORLDS
from talon_core.certify.subject import Subject
from talon_core.checked_policy import checked_kind
from talon_core.decoder import Decoder
from talon_core.drafter import DrafterSpec
from talon_core.errors import PluginError, is_whole, naming, written
from talon_core.fitting import suited_rule
from talon_core.loading import built
from talon_core.policy import TreePolicy
from talon_core.registry import load_registry
from talon_core.rule import AcceptanceRule
from talon_core.specs import spelled
from talon_core.testing.certificate import Certificate, CertificationError
from talon_core.testing.counterexample import explain
from talon_core.testing.exact import Given, Law, ancestral_law, distance, generations
from talon_core.testing.timeless import timeless
from talon_core.testing.worlds import VARIED, World, worlds

MOST_OUTCOMES = 1000
"""A world with more outcomes than this is left out, and another one is tried."""

PACKAGES = ("talon-core", "numpy", "torch", "transformers", "hypothesis")


UNSTEADY = (
    "the policy or the rule does not do the same when it is given the same; what is random must come from Choices alone"
)


def certify(
    policy: TreePolicy | str | None,
    rule: AcceptanceRule | str | None = None,
    *,
    drafter: DrafterSpec | str | None = None,
    worlds: int = WORLDS,
    seed: int = 0,
    vary: Mapping[str, int] = VARIED,
    report: Callable[[int, int], None] | None = None,
) -> Certificate:
    """Certify that a policy and a rule keep the target's law, or find a simple world in which they do not.

    In each world a generation of several rounds is run by the decoder itself, once for every way in which the random
    choices of the policy and the rule can come out. This gives the exact law of the text, which must be that of
    sampling from the target, token by token.

    Args:
        policy: a policy or its spec. Worlds set its options named in `vary`. None or "none" certifies a rule where
            nothing is drafted.
        rule: a rule or its spec; by default the one that the policy suits.
        drafter: what drafts, or its spec; by default a random table in each world. It must take any target.
        worlds: how many.
        seed: the same seed gives the same worlds.
        vary: options of the policy that worlds set, and their least values.
        report: called with the number of worlds that are done, and of all.

    Returns:
        The certificate.

    Raises:
        CertificationError: if the laws differ in a world, or the policy, rule or drafter raises or breaks its contract;
            the message is the counterexample.
        LookupError: for an unknown name, or a policy that suits a rule that is not there.
        ValueError: for a bad option, a rule that says itself that it is not exact for such trees, no worlds, or a
            policy whose trees are too large for so many worlds, or never accepted in any: nothing is certified then.
    """
    if worlds < 1:
        raise ValueError(f"worlds is {worlds}; it must be at least 1")
    if not is_whole(seed) or seed < 0:
        raise ValueError(f"seed is {written(seed)}; it must be a whole number and at least 0")
    registry = load_registry()
    made: TreePolicy | None = None if policy in (None, "none") else built(registry, "tree policy", policy)
    ruling: AcceptanceRule = built(registry, "rule", suited_rule(registry, made) if rule is None else rule)
    spec: DrafterSpec | None = None if drafter is None else built(registry, "drafter", drafter)
    trial = _Trial(made, ruling, spec, worlds, report)
    started = perf_counter()
    subject, unkept = _subject(made, ruling, vary)
    found = trial.search(seed, vary)
    if found is None:
        trial.check_enough()
        unkept = unkept or _why_unkept(subject, _subject(made, ruling, vary)[0], spec, worlds)
    certificate = Certificate(
        policy=spelled(made) if made is not None else "none",
        rule=spelled(ruling),
        drafter=spelled(spec) if spec is not None else RANDOM,
        worlds=trial.tried,
        outcomes=trial.outcomes,
        accepting=trial.accepting,
        left_out=trial.left_out,
        largest_error=trial.largest,
        tolerance=TOLERANCE,
        seed=seed,
        seconds=perf_counter() - started,
        versions={"Python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
        counterexample=explain(found[0], trial.decoder(found[0]), found[1], TOLERANCE) if found else None,
        proved=is_proved(ruling, made),
        subject=subject,
        unkept=unkept,
    )
    if not certificate.certified:
        raise CertificationError(certificate)
    return certificate


def _subject(
    policy: TreePolicy | None, rule: AcceptanceRule, vary: Mapping[str, int]
) -> tuple[Subject | None, str | None]:
    """What is certified, or why nobody can tell."""
    try:
        return Subject.of(policy, rule, vary), None
    except UntoldError as error:
        return None, str(error)


def _why_unkept(before: Subject | None, after: Subject | None, drafter: DrafterSpec | None, worlds: int) -> str | None:
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
        emitted: the law of the text.
        expected: the law that it must have.
        outcomes: how many generations it took.
        accepting: whether something drafted could be accepted.
        broke: what the decoder refused, if it did.
    """

    emitted: Law
    expected: Law
    outcomes: int
    accepting: bool
    broke: str | None = None

    @property
    def error(self) -> float:
        """The largest difference of two probabilities."""
        return distance(self.emitted, self.expected)


class _TooLarge(Exception):
    """A world that would take too long."""


class _Trial:
    """One policy and rule in many worlds."""

    def __init__(
        self,
        policy: TreePolicy | None,
        rule: AcceptanceRule,
        drafter: DrafterSpec | None,
        worlds: int,
        report: Callable[[int, int], None] | None,
    ) -> None:
        self.policy = policy
        self.rule = rule
        self.drafter = drafter
        self.worlds = worlds
        self.tried = self.outcomes = self.accepting = self.left_out = 0
        self.largest = 0.0
        self._report = report
        self._refuted: tuple[World, Examined] | None = None  # the first one, before it is made simpler

    def search(self, seed: int, vary: Mapping[str, int]) -> tuple[World, Examined] | None:
        """The simplest world in which something is wrong, and what; None if nothing is wrong in any that is tried."""
        checks: Any = hypothesis.HealthCheck  # pyright does not know how its members are listed
        few = settings(
            max_examples=self.worlds,
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(checks),
        )
        draws = self.policy is not None and checked_kind(self.policy).most != 0
        try:
            found = hypothesis.find(
                worlds(vary=vary, draws=draws), self._refutes, settings=few, random=random.Random(seed)
            )
            return found, self.examine(found)
        except (NoSuchExample, Unsatisfiable):
            return None
        except Flaky:
            assert self._refuted is not None
            world, examined = self._refuted
            return world, attrs.evolve(examined, broke=UNSTEADY)

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
        drafter = self.drafter if self.drafter is not None else Given(world.make_drafter())
        policy = timeless(world.varied(self.policy)) if self.policy is not None else None
        return Decoder(world.make_target(), self.rule, policy, drafter, lossy=self.rule.lossy)

    def _refutes(self, world: World) -> bool:
        try:
            examined = self.examine(world)
        except _TooLarge:
            self.left_out += self._refuted is None
            hypothesis.reject()
        wrong = examined.broke is not None or examined.error > TOLERANCE
        if self._refuted is not None:  # a world that shows something else is no simpler form of the first one
            return wrong and (examined.broke is None) == (self._refuted[1].broke is None)
        self.tried += 1
        self.outcomes += examined.outcomes
        self.accepting += examined.accepting
        if examined.broke is None:  # otherwise the law is not complete
            self.largest = max(self.largest, examined.error)
        if self._report is not None:
            self._report(self.tried, self.worlds)
        if wrong:
            self._refuted = (world, examined)
        return wrong

    def examine(self, world: World) -> Examined:
        """Compute both laws."""
        try:
            expected = ancestral_law(world.make_target(), world.request)
        except ValueError:  # the processors forbid every token somewhere
            hypothesis.reject()
        law: Law = defaultdict(float)
        outcomes, accepting = 0, False
        try:
            for prob, generation in generations(self.decoder(world), world.request):
                law[tuple(generation.token_ids)] += prob
                accepting |= any(round_.accepted for round_ in generation.rounds)
                outcomes += 1
                if outcomes > MOST_OUTCOMES:
                    raise _TooLarge
        except PluginError as error:
            return Examined(law, expected, outcomes, accepting, str(error))
        return Examined(law, expected, outcomes, accepting)
