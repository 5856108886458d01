"""What `talon doctor` says about drafting while the target verifies: whether it can pay on this machine."""

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs

from talon_core.profiles.contention import BUSY

if TYPE_CHECKING:
    from talon_core.decoding.decoder import Decoder
    from talon_core.rounds import Round

CHECK_TOKENS = 32
CHECK_PROMPTS = (
    "Write a short story about a lighthouse keeper.",
    "Explain step by step how rain forms.",
    "Write a Python function that tells whether a number is prime.",
)
SIMULATION = "talon trace simulate tells how much is left of that with what really comes"


@attrs.frozen
class Overlap:
    """What decides whether a schedule other than sync can gain, where target and drafter share a processor.

    Attributes:
        threads: of the target.
        cores: that this process may use.
        verify_seconds: of a pass of the target, the median over rounds.
        verify_seconds_with_one_less: with one thread less; None where the target has one, or leaves a core free.
        draft_seconds: of a round's drafting, likewise.
        round_seconds: of a round.
    """

    threads: int
    cores: int
    verify_seconds: float
    verify_seconds_with_one_less: float | None
    draft_seconds: float
    round_seconds: float

    @property
    def slower(self) -> float | None:
        """How many times as long a pass takes while a core is the drafter's; None where there is none for it."""
        if self.verify_seconds_with_one_less is None:
            return 1.0 if self.threads < self.cores else None
        return self.verify_seconds_with_one_less / self.verify_seconds

    @property
    def at_best(self) -> float:
        """How many times as fast a round would be if all that comes were prepared, and the memory held up nobody."""
        if self.slower is None:
            return 1.0
        rest = self.round_seconds - self.verify_seconds - self.draft_seconds
        # fewer threads are faster only where something else keeps the cores
        verify = max(1.0, self.slower) * self.verify_seconds
        return self.round_seconds / (rest + max(verify, self.draft_seconds))

    @property
    def pays(self) -> bool:
        """Whether a schedule other than sync can gain at all."""
        return self.at_best > 1.0

    @property
    def said(self) -> str:
        """It in a sentence."""
        share = f"drafting is {self.draft_seconds / self.round_seconds:.0%} of a round"
        if self.slower is None:
            return "no schedule but sync can gain: there is one core, on which nothing works at the same time"
        if self.verify_seconds_with_one_less is None:
            why = f"the target takes {self.threads} of {self.cores} cores, and {share}"
        else:
            left = f"{self.threads - 1} thread{'s' * (self.threads > 2)} in the place of {self.threads}"
            why = f"with {left} a pass takes {self.slower:.2f} times as long, and {share}"
        if self.slower < BUSY:
            why += "; something else kept the cores while this was measured"
        if self.pays:
            return f"a schedule can make it at best {self.at_best:.2f} times as fast: {why}; {SIMULATION}"
        return f"no schedule but sync can gain: {why}; at best it would be {self.at_best:.2f} times as fast"

    def as_dict(self) -> dict[str, Any]:
        """It as plain data."""
        found = attrs.asdict(self)
        return {**found, "slower": self.slower, "at_best": self.at_best, "pays": self.pays, "said": self.said}


def measured_overlap(decoder: "Decoder") -> dict[str, Any]:
    """Decode a few prompts with all threads and with all but one, in turn.

    Args:
        decoder: with the drafter that is looked at; its drafting and verifying take turns.

    Returns:
        What `Overlap.as_dict` gives; or `pays`, which is None where it is not known, and `said` alone.
    """
    import torch

    from talon_core.engine.ahead.place import usable_cores

    if decoder.drafter is not None and decoder.drafter.uses_target:
        return _only(False, "no schedule but sync can be used: the drafter runs layers of the target, which are busy")
    if decoder.target.device.type != "cpu":
        return _only(None, f"on {decoder.target.device} passes of both are not told apart by threads; {SIMULATION}")
    threads, free = torch.get_num_threads(), usable_cores()
    fewer = threads >= free and threads > 1
    rounds: dict[int, list[Round]] = {threads: [], **({threads - 1: []} if fewer else {})}
    try:
        for prompt in CHECK_PROMPTS:
            for count, own in rounds.items():  # in turn, as other work comes and goes
                torch.set_num_threads(count)
                own += decoder.generate(prompt, max_new_tokens=CHECK_TOKENS, temperature=0.0).rounds[1:-1]
    finally:
        torch.set_num_threads(threads)
    if not all(rounds.values()):
        return _only(None, "the texts were too short to time rounds")
    verify, draft, whole = _medians(rounds[threads])
    less = _medians(rounds[threads - 1])[0] if fewer else None
    return Overlap(threads, free, verify, less, draft, whole).as_dict()


def _only(pays: bool | None, said: str) -> dict[str, Any]:
    return {"pays": pays, "said": said}


def _medians(rounds: Sequence["Round"]) -> tuple[float, float, float]:
    """Seconds of a pass of the target, of drafting, and of a round."""
    verify = statistics.median(one.verify_seconds for one in rounds)
    draft = statistics.median(one.draft_seconds for one in rounds)
    rest = statistics.median(one.policy_seconds + one.accept_seconds + one.commit_seconds for one in rounds)
    return verify, draft, verify + draft + rest
