"""A drafter with a small trained head: one attention layer over the last state that the target gave."""

from pathlib import Path

import attrs

from talon_core import FINAL_STATE, Drafter, DrafterSpec, Target, hookimpl

SHIPPED = Path(__file__).parent / "smollm2-135m.safetensors"


@attrs.frozen
class LastState(DrafterSpec):
    """One attention layer over the tokens so far, and the last state that the target gave.

    It was trained for the embedded model smollm2-135m, on what that model answers; `train.py` makes one for another.

    Attributes:
        path: a file that `train.py` has written; empty for the one in this package.
    """

    name = "last-state"
    path: str = ""

    def features(self, num_layers: int) -> tuple[int, ...]:
        return (FINAL_STATE,)

    def open(self, target: Target) -> Drafter:
        from talon_last_state.drafter import open_last_state

        return open_last_state(Path(self.path) if self.path else SHIPPED, target)


@hookimpl
def talon_drafters() -> list[type[DrafterSpec]]:
    return [LastState]
