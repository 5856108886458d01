"""What tests of several drafters know of each kind of trained head: a module for each, which goes with its drafter.

The modules are found, and named nowhere else. What is about one kind alone is tested in `tests/drafters/`, in the
module that is called as it is.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

import attrs

from talon_core.drafter import Drafter
from talon_core.recipe import Recipe

if TYPE_CHECKING:
    from talon_core.hf.target import HFTarget
    from talon_tests.pretended import Pretended

LAYER = {"hidden_size": 48, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
"""A decoder layer for the tiny models."""


@attrs.frozen
class Rounds:
    """What rounds with such heads, of random weights, ask of a device that is only pretended.

    Attributes:
        reads: the states of the target that they read, as `features` of a spec says them.
        drafter: makes them for a model, which its target runs, on the pretended device.
        copies: to the device and from it in a round, and in a pass of the drafter.
        done: operations that a round adds to a plain one, and those of a pass of the drafter, for four sequences.
        waits: whether a layer is waited for by itself, so that it can be over too early.
    """

    reads: tuple[int, ...]
    drafter: "Callable[[Any, HFTarget, Pretended], Drafter]"
    copies: tuple[int, int, int]
    done: tuple[int, int]
    waits: bool = True


@attrs.frozen
class Trained:
    """How such heads are trained.

    Attributes:
        recipe: makes the recipe of options.
        training: makes the training of a recipe.
        variants: by name, the options that tell one from others; the first is called as the drafter.
        anywhere: those with which it is tried on models of many architectures.
        epochs: after which heads for an easy target guess well.
        counts_steps: whether the training counts its steps by the drafter's layers.
        last_state: whether the heads read the target's last state alone.
    """

    recipe: Callable[..., Recipe]
    training: Callable[[Any], Any]
    variants: Mapping[str, Mapping[str, Any]]
    epochs: int
    anywhere: Mapping[str, Any] = attrs.field(factory=dict)
    counts_steps: bool = True
    last_state: bool = True

    def made(self, **options: Any) -> Any:
        """The training with some options."""
        return self.training(self.recipe(**options))


@attrs.frozen
class Kind:
    """One kind of heads.

    Attributes:
        name: the drafter's.
        turn: where it stands among the others; what is drawn for one after the other hangs on it.
        rounds: what its rounds ask of a device.
        trained: how it is trained; None where no recipe of ours does.
        shipped: of the head that travels with TALON for SmolLM2, tokens a pass that it must give with 16 nodes, and its
            most bytes; None where there is none.
    """

    name: str
    turn: int
    rounds: Rounds
    trained: Trained | None = None
    shipped: tuple[float, float] | None = None


def _found() -> dict[str, Kind]:
    kinds: list[Kind] = [import_module(f"{__name__}.{module.name}").KIND for module in iter_modules(__path__)]
    return {kind.name: kind for kind in sorted(kinds, key=lambda kind: kind.turn)}


KINDS = _found()
TRAINED = {name: kind.trained for name, kind in KINDS.items() if kind.trained is not None}
SHIPPED = {name: kind.shipped for name, kind in KINDS.items() if kind.shipped is not None}


def trainings(**options: Any) -> dict[str, Any]:
    """A training of each variant of each kind, with these options besides its own."""
    return {
        name: trained.made(**options, **own) for trained in TRAINED.values() for name, own in trained.variants.items()
    }
