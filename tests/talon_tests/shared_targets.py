"""Decoders that share targets and drafters: to make them, and to record their passes, takes longer than many a test."""

from typing import Any

from talon_core.certify.exact import Given
from talon_core.costs import Costs
from talon_core.decoding.decoder import Decoder
from talon_core.decoding.loading import target_for_model
from talon_core.drafter import Drafter
from talon_core.engine.checked_drafter import checked_features, opened
from talon_core.hf.frontend import HFFrontend
from talon_core.hf.target import HFTarget
from talon_core.plugins.parts import Parts, resolve
from talon_core.plugins.registry import load_registry


class SharedTargets:
    """Makes decoders as `decoder_for_model` does, of one target where their drafters need the same hidden states.

    Each decoder has its own engine and, unless `drafters` says otherwise, its own drafter, so none knows the texts of
    another. Nobody changes the models.

    Args:
        drafters: of the same options one drafter serves all. By its contract it remembers no other text either.
    """

    def __init__(self, drafters: bool = False) -> None:
        self._targets: dict[Any, HFTarget] = {}  # each keeps its model alive, so no id comes twice
        self._drafters: dict[Any, Drafter] | None = {} if drafters else None
        self._registry = load_registry()

    def decoder(self, model: Any, tokenizer: Any, parts: Parts, costs: Costs | None = None) -> Decoder:
        """As `decoder_for_model`, but for the schedule that "auto" would stand for."""
        resolved = resolve(parts, self._registry).for_model(model)
        layers = model.config.get_text_config().num_hidden_layers
        features = checked_features(resolved.drafter, layers) if resolved.drafter is not None else ()
        question = (id(model), tuple(features), parts.attention, parts.accelerate, parts.graphs)
        if question not in self._targets:
            self._targets[question], _ = target_for_model(model, tokenizer, resolved)
        target, drafter = self._targets[question], resolved.drafter
        if drafter is not None and self._drafters is not None:
            if (question, drafter) not in self._drafters:
                self._drafters[question, drafter] = opened(drafter, target)
            drafter = Given(self._drafters[question, drafter])
        own = (resolved.rule, resolved.policy, drafter, HFFrontend(model, tokenizer))
        return Decoder(target, *own, lossy=parts.lossy, schedule=resolved.schedule, costs=costs)
