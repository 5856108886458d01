"""The texts of a trace with what its drafter offers along them, recorded or, of a drafter of texts, asked for."""

from collections.abc import Sequence

from talon_core.drafter import DrafterSpec
from talon_core.plugins.parts import built
from talon_core.plugins.registry import load_registry
from talon_core.trace.answers import Answers
from talon_core.trace.columns import TextTrace
from talon_core.trace.folder import Trace
from talon_core.trace.record import drafter_hash
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
    written = trace["drafter"]["spec"]
    try:
        spec: DrafterSpec = built(load_registry(), "drafter", written)
        same = drafter_hash(written, spec, None) == trace["drafter"]["sha256"]
    except (LookupError, ValueError) as error:
        raise ValueError(f"the trace in '{trace.folder}' is of the drafter '{written}': {error.args[0]}") from error
    if not same:
        raise ValueError(
            f"the trace in '{trace.folder}' is of the drafter '{written}', and its files, or what it is called, were "
            "changed since; record it again"
        )
    return spec
