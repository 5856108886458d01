"""Reading and writing EAGLE-3 heads: the authors' files, SpecForge's, speculators', and Model-Optimizer's."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor

from talon_drafters.checkpoints.files import Checkpoint, read_config
from talon_drafters.checkpoints.layer_config import layer_config, norms_features
from talon_drafters.checkpoints.reading import counted, fill, renamed, shaped
from talon_drafters.checkpoints.vocabulary import draft_vocabulary
from talon_drafters.checkpoints.writing import write_checkpoint
from talon_drafters.eagle3.network import Eagle3Config, Eagle3Head

RULES = {
    r"(?:model\.)?(fc|input_norm|norm|lm_head|embed_tokens)\.(weight|bias)": r"\1.\2",
    r"(?:model\.)?fc_norm\.(\d+)\.weight": r"fc_norm.\1.weight",
    r"(?:model\.)?aux_norm_low\.weight": "fc_norm.0.weight",
    r"(?:model\.)?aux_norm_mid\.weight": "fc_norm.1.weight",
    r"(?:model\.)?aux_norm_high\.weight": "fc_norm.2.weight",
    r"(?:model\.)?midlayer\.(.+)": r"layers.0.\1",
    r"(?:model\.)?layers\.(\d+)\.(.+)": r"layers.\1.\2",
}
IGNORED = r"(?:model\.)?(?:d2t|t2d|draft_id_to_target_id|.*rotary_emb\.inv_freq)"
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
PARALLEL = ("mask_token_id", "pard_token", "ptd_token_id")
"""Entries of `config.json` that heads which draft in parallel have."""

TENSOR_OF_FLAG = {
    "norm_before_fc": (False, "input_norm.weight"),
    "fc_norm": (False, "fc_norm.0.weight"),
    "use_input_layernorm_in_first_layer": (True, "layers.0.input_layernorm.weight"),
    "use_last_layernorm": (True, "norm.weight"),
}
"""Flags that a tensor goes with: what they are where a file does not say, and the tensor."""

NOT_BUILT = {"use_mtp_layernorm": False, "next_layer_regular": True, "use_aux_hidden_state": True}
"""Of NVIDIA's `eagle_config`: flags that change the network in ways that are not built, and the value that does not."""


def named_layers(source: str) -> tuple[int, ...]:
    """The fused layers as a checkpoint's `config.json` numbers them; empty if it says nothing.

    Raises:
        ValueError: if there is no such checkpoint, or these are no layers.
    """
    config = read_config(source)
    inner = config.get("eagle_config")
    given = config.get(LAYER_IDS) or (inner.get(LAYER_IDS) if isinstance(inner, Mapping) else None) or ()
    if not isinstance(given, list | tuple) or not all(type(layer) is int for layer in given):
        raise ValueError(f"the drafter '{source}' has {LAYER_IDS}={given!r}; it must be a list of layers")
    return tuple(given)


def resembles_eagle3(checkpoint: Checkpoint) -> bool:
    """Whether these are files of the EAGLE-3 family, be they readable or not."""
    if str(checkpoint.config.get("speculators_model_type")) in ("eagle3", "peagle"):
        return True
    return norms_features(checkpoint)


@attrs.frozen(eq=False)
class Eagle3Files:
    """An EAGLE-3 checkpoint, recognised.

    Attributes:
        checkpoint: its files.
        layout: "speculators" or "eagle", which SpecForge and NVIDIA share.
        fields: the part of its configuration that speaks of the layers.
        flags: the part that holds the flags.
    """

    checkpoint: Checkpoint
    layout: str
    fields: Mapping[str, Any]
    flags: Mapping[str, Any]

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> "Eagle3Files":
        """Recognise the layout.

        Raises:
            ValueError: if it is not EAGLE-3, or a kind of it that is not known.
        """
        config = checkpoint.config
        kind = config.get("speculators_model_type")
        if kind is not None:
            if kind != "eagle3":
                raise checkpoint.error(f"is a speculator of type '{kind}'; drafter 'eagle3' reads type 'eagle3'")
            fields = config.get("transformer_layer_config")
            if not isinstance(fields, Mapping):
                raise checkpoint.error("has no transformer_layer_config in its config.json")
            files = cls(checkpoint, "speculators", fields, {"norm_before_residual": True, **config})
        else:
            files = cls(checkpoint, "eagle", config, {**config, **_nvidia(checkpoint)})
        files._check_kind()
        return files

    @property
    def norm_output_is_unclear(self) -> bool:
        """In this layout EAGLE-3.1 means by `norm_output` that the next step is fed normed states, and SpecForge, which
        writes it into every file, that there is a norm before the LM head."""
        return self.layout == "eagle" and bool(self.flags.get("norm_output"))

    def _check_kind(self) -> None:
        checkpoint, flags = self.checkpoint, self.flags
        parallel = any(flags.get(entry) is not None for entry in PARALLEL)
        if parallel or "mask_hidden" in checkpoint.tensors or (flags.get("parallel_draft_step") or 1) > 1:
            raise checkpoint.error("drafts in parallel (P-EAGLE); drafter 'eagle3' reads step-by-step heads")
        for flag, harmless in NOT_BUILT.items():
            if flags.get(flag) not in (None, harmless):
                raise checkpoint.error(f"has {flag}={flags[flag]}, which drafter 'eagle3' cannot run")
        if not resembles_eagle3(checkpoint):
            if any(re.match(r"(?:model\.)?layers\.0\.", name) for name in checkpoint.tensors) and any(
                re.fullmatch(r"(?:model\.)?fc\.weight", name) for name in checkpoint.tensors
            ):
                raise checkpoint.error("is an EAGLE-1 or EAGLE-2 head; use drafter 'eagle'")
            raise checkpoint.error("has neither a midlayer nor a hidden_norm, so it is no EAGLE-3 head")

    def head(self, target_hidden: int, target_vocab: int, like: Tensor) -> Eagle3Head:
        """The head with its weights.

        Args:
            target_hidden: width of the target's states.
            target_vocab: tokens of the target.
            like: gives the type and the device.

        Raises:
            ValueError: if it does not fit the target; the sentence says which tensor and which sizes.
        """
        checkpoint = self._with_layers_in_a_row()
        names = renamed(checkpoint, RULES, IGNORED, "EAGLE-3")
        config, ids = self._config(checkpoint, names, target_hidden, target_vocab)
        width = config.layer.hidden_size
        embedding = (target_vocab, width) if "embed_tokens.weight" in names else None
        with torch.device("meta"):
            head = Eagle3Head(config, None, embedding)
        tensors = shaped(checkpoint, names, head, None, target_vocab)
        head.rotary = type(head.rotary)(config.layer)  # its frequencies are in no file
        fill(head, tensors, like)
        head.register_buffer("target_ids", None if ids is None else ids.to(head.fc.weight.device), persistent=False)
        return head

    def _config(
        self, checkpoint: Checkpoint, names: Mapping[str, str], target_hidden: int, target_vocab: int
    ) -> tuple[Eagle3Config, Tensor | None]:
        """The head's shape and its vocabulary, shape `(draft_vocab,)`, int64, or None."""
        self._check_vocabulary(checkpoint, names, target_vocab)
        fused = checkpoint.tensor(_given(checkpoint, names, "fc.weight"), -1, -1)
        hidden, inputs = fused.shape
        self._check_widths(names, hidden, inputs, target_hidden)
        ids = draft_vocabulary(checkpoint, target_vocab)
        rows = checkpoint.tensor(_given(checkpoint, names, "lm_head.weight"), -1, hidden).shape[0]
        if ids is None and rows != target_vocab:
            raise checkpoint.error(
                f"has {names['lm_head.weight']} with {rows} rows and no d2t to say which of the "
                f"target's {target_vocab} tokens they are"
            )
        if ids is not None and len(ids) != rows:
            raise checkpoint.error(f"has {rows} rows in {names['lm_head.weight']} and {len(ids)} tokens in d2t")
        if ids is not None and torch.equal(ids, torch.arange(target_vocab)):
            ids = None  # maps that were never set: all tokens, in their order
        query = _given(checkpoint, names, "layers.0.self_attn.q_proj.weight")
        numbers = {int(match[1]) for name in names if (match := re.match(r"layers\.(\d+)\.", name))}
        self._check_flags(names)
        config = Eagle3Config(
            layer=layer_config(checkpoint, self.fields, query.removesuffix("self_attn.q_proj.weight"), hidden),
            target_hidden_size=target_hidden,
            draft_vocab_size=rows,
            num_layers=counted(checkpoint, numbers, "layer {}"),
            num_fused=inputs // target_hidden,
            fc_bias="fc.bias" in names,
            norm_before_residual=bool(self.flags.get("norm_before_residual", False)),
            norm_before_fc="input_norm.weight" in names,
            fc_norm="fc_norm.0.weight" in names,
            norm_output=bool(self.flags.get("norm_output", False)) and not self.norm_output_is_unclear,
            embedding_norm="layers.0.input_layernorm.weight" in names,
            last_norm="norm.weight" in names,
        )
        return config, ids

    def _check_widths(self, names: Mapping[str, str], hidden: int, inputs: int, target_hidden: int) -> None:
        fused, said = f"{names['fc.weight']} of shape ({hidden}, {inputs})", self.flags.get("target_hidden_size")
        if said is not None and said != target_hidden:
            raise self.checkpoint.error(
                f"was made for a target of hidden size {said} (target_hidden_size); this target's is {target_hidden}"
            )
        if "embed_tokens.weight" not in names and hidden != target_hidden:
            raise self.checkpoint.error(
                f"has {fused} and no embed_tokens.weight, so it was made for a target of hidden size {hidden}; "
                f"this target's is {target_hidden}"
            )
        number = self.flags.get("num_aux_hidden_states")
        if inputs % target_hidden or (number is not None and inputs != number * target_hidden):
            raise self.checkpoint.error(
                f"has {fused}, which does not fuse {'whole states' if number is None else f'{number} states'} of this "
                f"target, whose hidden size is {target_hidden}"
            )

    def _with_layers_in_a_row(self) -> Checkpoint:
        """`midlayer` and `layers.0` beside it are the first and the second layer."""
        tensors = self.checkpoint.tensors
        both = (r"(?:model\.)?midlayer\.", r"(?:model\.)?layers\.0\.")
        if not all(any(re.match(start, name) for name in tensors) for start in both):
            return self.checkpoint
        moved = {
            re.sub(r"^((?:model\.)?layers)\.(\d+)\.", lambda match: f"{match[1]}.{int(match[2]) + 1}.", name): tensor
            for name, tensor in tensors.items()
        }
        return attrs.evolve(self.checkpoint, tensors=moved)

    def _check_vocabulary(self, checkpoint: Checkpoint, names: Mapping[str, str], target_vocab: int) -> None:
        said = self.fields.get("vocab_size")
        if isinstance(said, int) and said != target_vocab:
            raise checkpoint.error(f"was made for a vocabulary of {said} tokens; this target has {target_vocab}")
        if "t2d" in checkpoint.tensors:
            checkpoint.tensor("t2d", target_vocab)
        if "embed_tokens.weight" in names:
            checkpoint.tensor(names["embed_tokens.weight"], target_vocab, -1)

    def _check_flags(self, names: Mapping[str, str]) -> None:
        flags = dict(self.flags)
        if flags.get("fc_norm") is None:
            flags["fc_norm"] = flags.get("use_aux_norm")  # its older name
        for flag, (default, tensor) in TENSOR_OF_FLAG.items():
            said, found = flags.get(flag), tensor in names
            if said is not None and bool(said) != found:
                raise self.checkpoint.error(
                    f"says {flag}={said} in its config.json and {'has' if found else 'lacks'} the tensor {tensor}"
                )
            if said is None and default and not found:
                raise self.checkpoint.error(f"lacks the tensor {tensor}")

    def describe(self, head: Eagle3Head) -> dict[str, object]:
        """What was recognised, for `talon doctor`."""
        flags = attrs.asdict(head.config, recurse=False, filter=lambda field, _: field.name != "layer")
        layer = head.config.layer
        return {
            "layout": self.layout,
            "hidden_size": layer.hidden_size,
            "layers_like": layer.model_type,
            "rope": layer.rope_parameters,
            "own_embedding": head.embed_tokens is not None,
            "whole_vocabulary": head.target_ids is None,
            **flags,
        }


def _nvidia(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """The flags of Model-Optimizer's `eagle_config`; empty where there is none."""
    inner = checkpoint.config.get("eagle_config")
    if not isinstance(inner, Mapping):
        return {}
    known = {*TENSOR_OF_FLAG, *NOT_BUILT, "norm_before_residual"}
    for flag, value in inner.items():
        if value is True and flag not in known:
            raise checkpoint.error(f"has {flag}=True in its eagle_config, which drafter 'eagle3' does not know")
    return inner


def _given(checkpoint: Checkpoint, names: Mapping[str, str], name: str) -> str:
    """What the file calls a tensor that there must be."""
    if name not in names:
        raise checkpoint.error(f"lacks the tensor {name}")
    return names[name]


def save_eagle3(folder: str | Path, head: Eagle3Head, target_ids: Tensor, entries: Mapping[str, Any]) -> None:
    """Write a head of the authors' own shape in their layout, in bfloat16, as vLLM and SGLang read it.

    Args:
        folder: made if it is not there.
        head: one layer, no flags.
        target_ids: its draft vocabulary, shape `(draft_vocab,)`, int64, ascending.
        entries: further entries of `config.json`.
    """
    layer = head.config.layer
    tensors = {
        name.replace("layers.0.", "midlayer."): tensor.to(torch.bfloat16) for name, tensor in head.state_dict().items()
    }
    known = torch.zeros(layer.vocab_size, dtype=torch.bool)
    known[target_ids.cpu()] = True
    tensors["t2d"] = known
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": layer.hidden_size,
        "intermediate_size": layer.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": layer.num_attention_heads,
        "num_key_value_heads": layer.num_key_value_heads,
        "head_dim": layer.head_dim,
        "hidden_act": layer.hidden_act,
        "rms_norm_eps": layer.rms_norm_eps,
        "rope_theta": layer.rope_parameters["rope_theta"],
        "max_position_embeddings": layer.max_position_embeddings,
        "vocab_size": layer.vocab_size,
        "draft_vocab_size": len(target_ids),
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        **entries,
    }
    write_checkpoint(folder, "model", tensors, config, target_ids)
