"""The texts of a trace with what its drafter offers along them, recorded or, of a drafter of texts, asked for."""

from collections.abc import Sequence

from talon_core.drafter import DrafterSpec
from talon_core.plugins.registry import load_registry
from talon_core.trace.answers import Answers
from talon_core.trace.columns import TextTrace
from talon_core.trace.folder import Trace
from talon_core.trace.methods import own_drafter
from talon_strategies.entropy import OFFERED


def texts_with_rows(trace: Trace, depth: int) -> Sequence[TextTrace | None]:
    """The texts that are there; None for one along which a drafter of texts knows more candidates than are asked for.

    Args:
        trace: of them.
        depth: layers that are looked at, at each position.

    Raises:
        ValueError: if too few candidates or layers were recorded, or a drafter of texts cannot be asked.
        PluginError: if such a drafter breaks its contract.
    """
    if not trace["drafter"]["reads_texts"]:
        _check_recorded(trace, depth)
        return [*trace]
    answers = Answers(_drafter_of(trace), trace)
    return [answers.of(text) for text in trace]


def _check_recorded(trace: Trace, depth: int) -> None:
    if trace["settings"]["width"] < OFFERED:
        raise ValueError(
            f"the trace in '{trace.folder}' has {trace['settings']['width']} candidates of each node; record it with "
            f"--width {OFFERED} or more"
        )
    if trace["settings"]["depth"] < depth:
        raise ValueError(
            f"the trace in '{trace.folder}' has {trace['settings']['depth']} layers at each position; record it with "
            f"--depth {depth} or more"
        )


def _drafter_of(trace: Trace) -> DrafterSpec:
    """The drafter of texts that a trace is of, if it is still the same."""
    try:
        return own_drafter(trace, load_registry())
    except (LookupError, ValueError) as error:
        written = trace["drafter"]["spec"]
        raise ValueError(f"the trace in '{trace.folder}' is of the drafter '{written}': {error.args[0]}") from error
