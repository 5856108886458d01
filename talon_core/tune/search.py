"""A search for the options that make some texts fastest, step by step; optuna (an extra) chooses what is tried next."""

from collections.abc import Mapping
from typing import Any

import attrs

from talon_core.basics.extras import library
from talon_core.searching import Among
from talon_core.tune.space import Dimension, Space

STARTUP_SHARE = 4
"""A quarter of the trials is drawn without a look at what came of the others, at least `STARTUP`."""
STARTUP = 10


def needs_optuna() -> Any:
    """The library.

    Raises:
        ValueError: if it is not installed; the sentence names the extra.
    """
    optuna = library("optuna", "tune", "talon tune")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


@attrs.frozen
class Trial:
    """What was tried.

    Attributes:
        spec: the policy.
        options: the values of what is searched, as text.
        speed_up: how many times as fast as plain decoding; None where that cannot be told.
        outside: questions that the traces do not answer.
        fault: why the policy refuses the options; empty if it takes them.
    """

    spec: str
    options: Mapping[str, str]
    speed_up: float | None
    outside: int = 0
    fault: str = ""

    @property
    def counts(self) -> bool:
        """Whether its speed is decoding's: nothing of its trees is missing in the traces."""
        return self.speed_up is not None and not self.outside


class Search:
    """One search: `ask`, try what it says, and `tell` what came of it.

    The same seed and the same answers give the same questions. A trial that does not count is told as one that was
    given up, which ranks below all others, so that the search turns away from there.

    Args:
        space: what is searched.
        seed: of the sampler.
        trials: how many there will be.
    """

    def __init__(self, space: Space, seed: int, trials: int) -> None:
        self._optuna = optuna = needs_optuna()
        self._space = space
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=max(STARTUP, trials // STARTUP_SHARE))
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        self._distributions = {one.option: _distribution(optuna, one) for one in space.dimensions}
        self._asked: Any = None
        self.trials: list[Trial] = []

    def begin(self, trial: Trial) -> None:
        """What is known without asking: the policy as it is without a search."""
        self.trials.append(trial)
        values = {one.option: one.of_text(trial.options[one.option]) for one in self._space.dimensions}
        if all(value is not None for value in values.values()) and trial.counts:
            known = self._optuna.trial.create_trial(
                params=values, distributions=self._distributions, value=trial.speed_up
            )
            self._study.add_trial(known)

    def ask(self) -> dict[str, str]:
        """The values that are to be tried next, as text."""
        self._asked = self._study.ask(self._distributions)
        return {one.option: one.text(self._asked.params[one.option]) for one in self._space.dimensions}

    def tell(self, trial: Trial) -> None:
        """What came of them."""
        self.trials.append(trial)
        if trial.counts:
            self._study.tell(self._asked, trial.speed_up)
        else:
            self._study.tell(self._asked, state=self._optuna.trial.TrialState.PRUNED)

    @property
    def best(self) -> Trial | None:
        """The fastest that counts, the first of equals; None if none does."""
        counting = [trial for trial in self.trials if trial.counts]
        return max(counting, key=lambda trial: trial.speed_up or 0.0, default=None)


def _distribution(optuna: Any, one: Dimension) -> Any:
    values, distributions = one.values, optuna.distributions
    if isinstance(values, Among):
        return distributions.CategoricalDistribution(values.values)
    if one.whole:
        return distributions.IntDistribution(int(values.low), int(values.high), log=values.log)
    return distributions.FloatDistribution(float(values.low), float(values.high), log=values.log)
