"""Reading EAGLE-1 and EAGLE-2 heads: the authors' files, and copies of them under other architecture names."""

import re
from typing import Any

import attrs
import torch

from talon_core.runtime.blocks import like_weight, shape_of_weight
from talon_drafters.checkpoints.files import Checkpoint
from talon_drafters.checkpoints.layer_config import layer_config, norms_features
from talon_drafters.checkpoints.reading import counted, fill, renamed, shaped
from talon_drafters.eagle.network import EagleHead

RULES = {
    r"(?:model\.)?(fc|embed_tokens)\.(weight|bias)": r"\1.\2",
    r"(?:model\.)?layers\.(\d+)\.(.+)": r"layers.\1.\2",
}
IGNORED = r".*rotary_emb\.inv_freq|lm_head\.weight"
"""Some copies carry the target's LM head along."""

FIRST = "layers.0.self_attn.q_proj.weight"
EAGLE3_SPECULATORS = ("eagle3", "peagle")
STRANGE = ("layers.0.input_layernorm.weight", "norm.weight")


def resembles_eagle(checkpoint: Checkpoint) -> bool:
    """Whether these are files of EAGLE-1 or EAGLE-2, be they readable or not."""
    names = _bare(checkpoint)
    return "fc.weight" in names and FIRST in names and not _is_eagle3(checkpoint)


def _is_eagle3(checkpoint: Checkpoint) -> bool:
    """Whether these are files of the EAGLE-3 family, by what vLLM's `speculators` call them or by their tensors."""
    return checkpoint.config.get("speculators_model_type") in EAGLE3_SPECULATORS or norms_features(checkpoint)


def _bare(checkpoint: Checkpoint) -> set[str]:
    return {name.removeprefix("model.") for name in checkpoint.tensors}


@attrs.frozen(eq=False)
class EagleFiles:
    """An EAGLE-1 or EAGLE-2 checkpoint, recognised."""

    checkpoint: Checkpoint

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> "EagleFiles":
        """Recognise the layout.

        Raises:
            ValueError: if it is another kind of drafter.
        """
        if _is_eagle3(checkpoint):
            raise checkpoint.error("is an EAGLE-3 head; use drafter 'eagle3'")
        kind = checkpoint.config.get("speculators_model_type")
        if kind is not None:
            raise checkpoint.error(f"is a speculator of type '{kind}'; drafter 'eagle' reads the authors' own files")
        names = _bare(checkpoint)
        for name in ("fc.weight", FIRST):
            if name not in names:
                raise checkpoint.error(f"lacks the tensor {name}, so it is no EAGLE-1 or EAGLE-2 head")
        for name in STRANGE:
            if name in names:
                raise checkpoint.error(f"has the tensor {name}, which EAGLE-1 and EAGLE-2 heads do not have")
        return cls(checkpoint)

    def head(self, lm_head: Any, target_vocab: int) -> EagleHead:
        """The head with its weights, in the type and on the device of the target's LM head.

        Args:
            lm_head: the target's, shared.
            target_vocab: tokens of the target.

        Raises:
            ValueError: if it does not fit the target; the sentence says which tensor and which sizes.
        """
        checkpoint = self.checkpoint
        names = renamed(checkpoint, RULES, IGNORED, "EAGLE")
        width = shape_of_weight(lm_head)[1]
        checkpoint.tensor(names["fc.weight"], width, 2 * width)
        embedding = None
        if "embed_tokens.weight" in names:
            checkpoint.tensor(names["embed_tokens.weight"], target_vocab, width)
            embedding = (target_vocab, width)
        numbers = {int(match[1]) for name in names if (match := re.match(r"layers\.(\d+)\.", name))}
        first = names[FIRST].removesuffix("self_attn.q_proj.weight")
        layer = layer_config(checkpoint, checkpoint.config, first, width)
        with torch.device("meta"):
            head = EagleHead(layer, counted(checkpoint, numbers, "layer {}"), "fc.bias" in names, lm_head, embedding)
        tensors = shaped(checkpoint, names, head, None, target_vocab)
        head.rotary = type(head.rotary)(layer)  # its frequencies are in no file
        fill(head, tensors, like_weight(lm_head))
        return head

    def describe(self, head: EagleHead) -> dict[str, object]:
        """What was recognised, for `talon doctor`."""
        return {
            "layout": "eagle",
            "hidden_size": head.num_features,
            "rope": head.rotary.config.rope_parameters,
            "num_layers": len(head.layers),
            "fc_bias": head.fc.bias is not None,
            "own_embedding": head.embed_tokens is not None,
        }
