"""EAGLE-3: a small decoder layer over low, middle and high states of the target."""

import re
from collections.abc import Iterable
from typing import Any

import attrs
from attrs.validators import in_

from talon_core.basics.option_checks import whole_numbers
from talon_core.drafter import Drafter, DrafterSpec
from talon_core.heads import GivesHead, HeadWeights
from talon_core.target import Target
from talon_drafters.heads.options import FORMS

CONVENTIONS = ("auto", "boundary", "block")
NORM_OUTPUT = ("auto", "yes", "no")


def _layers(given: Any) -> Any:
    """`(2, 15, 27)` from `"2+15+27"` or `"2;15;27"`; of whatever else is no list it is for a validator to refuse it."""
    if not isinstance(given, str):
        return tuple(given) if isinstance(given, Iterable) else given
    try:
        return tuple(int(part) for part in re.split("[+;]", given) if part)
    except ValueError:
        raise ValueError(f"layers is '{given}'; it must be numbers such as 2+15+27") from None


@attrs.frozen
class Eagle3(DrafterSpec, GivesHead):
    """One decoder layer that fuses three of the target's hidden states and drafts step by step from its own.

    It has a cache and an LM head of its own over a smaller vocabulary, and draws on the whole text: each layer of the
    tree is one pass of the head (EAGLE-3: Li et al., arXiv 2503.01840, section 3.1). Files of the authors, of
    SpecForge, of vLLM's speculators and of NVIDIA's Model-Optimizer are read.

    Attributes:
        path: a folder or Hugging Face id; empty for the drafter that is shipped for the target.
        layers: the fused layers in the place of those that the file names, such as `"2+15+27"` in a spec.
        layer_ids_are: what the numbers of explicit layers mean: "boundary" for states as `hidden_states[i]` of
            transformers counts them, "block" for the output of block `i`, which is `hidden_states[i + 1]`; "auto"
            drafts a little text both ways and takes what agrees more with the target.
        norm_output: whether the next step is fed what has gone through the last norm (EAGLE-3.1): "yes", "no", or
            "auto" for what the file says; where it says `norm_output` in the authors' layout, by which SpecForge
            means something else, a little text is drafted both ways.
        weights: in which form the head's matrices are kept: "stored" as the file has them, "q8_0" in blocks of eight
            bits, which halves what a pass reads, or "auto": in blocks where the target's own are, on a CPU. What the
            target emits is the same; drafts differ a little.
    """

    name = "eagle3"
    purpose = "trained heads"
    paper = "arXiv 2503.01840"
    path: str = ""
    layers: tuple[int, ...] = attrs.field(default=(), converter=_layers, validator=whole_numbers)
    layer_ids_are: str = attrs.field(default="auto", validator=in_(CONVENTIONS))
    norm_output: str = attrs.field(default="auto", validator=in_(NORM_OUTPUT))
    weights: str = attrs.field(default="auto", validator=in_(FORMS))

    @classmethod
    def rank_for(cls, model: Any) -> int | None:
        from talon_drafters.checkpoints.files import shipped_for

        return 3 if shipped_for(model, cls.name) else None

    @classmethod
    def of_files(cls, path: str) -> "Eagle3 | None":
        from talon_drafters.checkpoints.files import read_checkpoint
        from talon_drafters.eagle3.files import Eagle3Files, resembles_eagle3

        checkpoint = read_checkpoint(path, only_shapes=True)
        if not resembles_eagle3(checkpoint):
            return None
        Eagle3Files.of(checkpoint)
        return cls(path)

    def features(self, num_layers: int) -> tuple[int, ...]:
        readings = self.readings(num_layers)
        return tuple(sorted({state for states in readings.values() for state in states}))

    def readings(self, num_layers: int) -> dict[str, tuple[int, ...]]:
        """The hidden states, in order, that each possible meaning of the layers' numbers would fuse.

        Raises:
            ValueError: if no meaning fits a target of so many layers.
        """
        explicit = self.layers
        if self.path and not explicit:
            from talon_drafters.eagle3.files import named_layers

            explicit = named_layers(self.path)
        if not explicit:
            return {"default": default_states(num_layers)}
        meanings = {"boundary": explicit, "block": tuple(layer + 1 for layer in explicit)}
        wanted = {
            name: states
            for name, states in meanings.items()
            if self.layer_ids_are in ("auto", name) and all(0 <= state <= num_layers for state in states)
        }
        if not wanted:
            raise ValueError(
                f"drafter 'eagle3' fuses layers {', '.join(map(str, explicit))}, which a target of {num_layers} layers "
                "does not have"
            )
        return wanted

    def open(self, target: Target) -> Drafter:
        from talon_drafters.eagle3.drafter import open_eagle3

        return open_eagle3(self, target)

    def head_weights(self, model: Any) -> HeadWeights:
        from talon_drafters.eagle3.giving import eagle3_weights

        return eagle3_weights(self, model)


def default_states(num_layers: int) -> tuple[int, int, int]:
    """The states that all trainers fuse by default: a low, a middle and a high one, as `hidden_states` counts them."""
    return (min(2, num_layers), num_layers // 2, max(num_layers - 3, 0))
