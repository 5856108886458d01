"""What `certify` returns or raises: what was tried, what came of it, and whether it can be kept."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

import attrs

from talon_core.certificates.subject import Subject
from talon_core.certify.counterexample import Counterexample
from talon_core.defaults import IN_TURN


class CertificationError(AssertionError):
    """The output of a policy and a rule does not have the target's law, or one of them failed; the message tells where.

    Attributes:
        certificate: what was tried, with the counterexample.
    """

    def __init__(self, certificate: Certificate) -> None:
        super().__init__(str(certificate))
        self.certificate = certificate


@attrs.frozen(eq=False)
class Certificate:
    """What was tried, and what came of it.

    Attributes:
        policy: as it was given; worlds set some of its options, see `World.options`. "none" without one.
        rule: the acceptance rule.
        drafter: what drafted.
        worlds: in how many worlds the law was computed.
        outcomes: how many generations that took, one for every way in which the draws could come out.
        accepting: in how many worlds a drafted token could be accepted; the others test little.
        left_out: worlds of too many outcomes, in whose place others were tried.
        largest_error: the largest difference of two probabilities, of a text as emitted and as sampled from the target.
        tolerance: how large it may be.
        seed: the same seed gives the same worlds.
        seconds: how long it took.
        versions: of Python and the packages that matter.
        counterexample: the simplest world that was found in which the laws differ, or the policy or rule fails; None if
            there is none.
        proved: whether the output has the target's law by construction, so that no certificate is needed.
        subject: what exactly is certified; None where the code cannot be told.
        unkept: why the certificate cannot be kept; None if it can.
        schedule: what was prepared while the target verified; "sync" for nothing.
    """

    policy: str
    rule: str
    drafter: str
    worlds: int
    outcomes: int
    accepting: int
    left_out: int
    largest_error: float
    tolerance: float
    seed: int
    seconds: float
    versions: Mapping[str, str]
    counterexample: Counterexample | None = None
    proved: bool = False
    subject: Subject | None = None
    unkept: str | None = None
    schedule: str = IN_TURN

    @property
    def certified(self) -> bool:
        """Whether the law was the target's in every world."""
        return self.counterexample is None

    @property
    def verdict(self) -> Literal["certified", "refuted", "broken"]:
        """ "refuted" if the law is another one; "broken" if the policy or rule raised, or broke its contract."""
        if self.counterexample is None:
            return "certified"
        return "refuted" if self.counterexample.broke is None else "broken"

    def as_dict(self) -> dict[str, Any]:
        """The fields as plain values; the counterexample in words."""
        fields = {name: getattr(self, name) for name in attrs.fields_dict(Certificate)}
        words = self.counterexample.lines() if self.counterexample is not None else None
        subject = attrs.asdict(self.subject) if self.subject is not None else None
        return {
            "verdict": self.verdict,
            "certified": self.certified,
            **fields,
            "counterexample": words,
            "subject": subject,
        }

    def record(self) -> dict[str, Any]:
        """What is kept of a certificate, see `talon_core.certificates.store.keep`.

        Raises:
            ValueError: if it is none that can be kept.
        """
        if self.subject is None or self.unkept is not None or not self.certified:
            raise ValueError(self.unkept or "nothing is certified")
        told = self.as_dict()
        left_out = ("verdict", "certified", "counterexample", "proved", "unkept", "schedule")
        return {**{name: told[name] for name in told if name not in left_out}, "date": _now()}

    def __str__(self) -> str:
        ahead = f", schedule {self.schedule}" if self.schedule != IN_TURN else ""
        what = f"policy {self.policy} with rule {self.rule}, drafter: {self.drafter}{ahead}"
        tried = (
            f"{self.worlds:,} worlds, {self.outcomes:,} outcomes; something drafted could be accepted in "
            f"{self.accepting:,} worlds, {self.left_out:,} too large ones left out"
        )
        made = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        if self.counterexample is None:
            error = f"largest error {self.largest_error:.2g} (tolerance {self.tolerance:g}), seed {self.seed}"
            return f"CERTIFIED: {what}\n{tried}\n{error}, {self.seconds:.1f} s\n{made}"
        word = self.verdict.upper()
        return "\n".join([f"{word}: {what}", *self.counterexample.lines(), f"after {tried}, seed {self.seed}", made])


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
