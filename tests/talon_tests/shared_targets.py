"""Decoders that share their targets: to make one is to probe a model, which takes longer than many a test."""

from typing import Any

from talon_core.costs import Costs
from talon_core.decoding.decoder import Decoder
from talon_core.decoding.loading import decoder_for_model
from talon_core.engine.checked_drafter import checked_features
from talon_core.hf.frontend import HFFrontend
from talon_core.plugins.parts import Parts, resolve
from talon_core.plugins.registry import load_registry


class SharedTargets:
    """Makes decoders as `decoder_for_model` does, of one target where their drafters need the same hidden states.

    Each decoder has its own drafter and its own engine, so none knows the texts of another. Nobody changes the models.
    """

    def __init__(self) -> None:
        self._targets: dict[Any, Any] = {}  # each keeps its model alive, so no id comes twice

    def decoder(self, model: Any, tokenizer: Any, parts: Parts, costs: Costs | None = None) -> Decoder:
        """As `decoder_for_model`, for parts that leave nothing to a schedule of "auto"."""
        resolved = resolve(parts, load_registry()).for_model(model)
        layers = model.config.get_text_config().num_hidden_layers
        features = checked_features(resolved.drafter, layers) if resolved.drafter is not None else ()
        question = (id(model), tuple(features), parts.attention, parts.accelerate, parts.graphs)
        if question not in self._targets:
            made = decoder_for_model(model, tokenizer, resolved, costs)
            self._targets[question] = made.target
            return made
        own = (resolved.rule, resolved.policy, resolved.drafter, HFFrontend(model, tokenizer))
        return Decoder(self._targets[question], *own, lossy=parts.lossy, schedule=resolved.schedule, costs=costs)
