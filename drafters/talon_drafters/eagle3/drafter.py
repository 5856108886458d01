"""Opening an EAGLE-3 head for a target, and finding out what its layers' numbers mean."""

from collections.abc import Callable, Sequence
from itertools import count

import attrs
import numpy as np
import torch
from torch import Tensor

from talon_core.drafter import Drafter
from talon_core.runtime.embeddings import like_output
from talon_core.runtime.network import NetworkTarget, network_target
from talon_core.target import Target
from talon_core.tree import IntArray, TokenTree
from talon_drafters.eagle3.files import Eagle3Files
from talon_drafters.eagle3.network import Eagle3Head
from talon_drafters.eagle3.options import Eagle3, default_states
from talon_drafters.heads.layers import FeatureHead
from talon_drafters.heads.opening import Select, checkpoint_for, embedding_of, feature_drafter
from talon_drafters.heads.unrolled import unrolled

CHECK_PROMPT = "Write a short story about a lighthouse keeper."
CHECK_TOKENS = 64


def open_eagle3(spec: Eagle3, target: Target) -> Drafter:
    """Open an EAGLE-3 head; raises as `DrafterSpec.open` does."""
    target = network_target(target, spec.name)
    text = target.model.config.get_text_config()
    files = Eagle3Files.of(checkpoint_for(target.model, spec.path, spec.name, ""))
    head = files.head(text.hidden_size, target.vocab_size, like_output(target.model))
    readings = spec.readings(text.num_hidden_layers)
    for states in readings.values():
        check_fused(files, head, states)
    embed = embedding_of(head, head.fc.out_features, target.model, files.checkpoint)
    selects = {name: _columns(states, target, text.hidden_size) for name, states in readings.items()}
    norms = [spec.norm_output == "yes"]
    if spec.norm_output == "auto":
        norms = [False, True] if files.norm_output_is_unclear else [head.config.norm_output]
    described: dict[str, object] = {}
    meaning = next(iter(selects))
    known = greedy_text(target) if len(selects) > 1 or len(norms) > 1 else None
    if known is not None and len(selects) > 1:
        shares = {name: agreement(head, embed, known, select, 0) for name, select in selects.items()}
        usual = default_states(text.num_hidden_layers)
        meaning = max(shares, key=lambda name: (shares[name], readings[name] == usual))
        described["agreement_by_meaning"] = shares
    if known is not None and len(norms) > 1:  # the first step does not depend on it
        by_norm = {norm: agreement(_with(head, norm), embed, known, selects[meaning], 1) for norm in norms}
        norms = [max(norms, key=by_norm.__getitem__)]
        described["agreement_by_norm_output"] = {("yes" if norm else "no"): share for norm, share in by_norm.items()}
    _with(head, norms[0])
    described = {**files.describe(head), **described, "layer_ids_are": meaning, "states": readings[meaning]}
    return feature_drafter(head, embed, target, described, selects[meaning], spec.weights)


def check_fused(files: Eagle3Files, head: Eagle3Head, states: Sequence[int]) -> None:
    """Refuse another number of states than a head fuses.

    Args:
        files: what the head was made of, for the message.
        head: whose `fc` reads them.
        states: the target's hidden states.
    """
    found = head.config.num_fused
    if len(states) != found:
        raise files.checkpoint.error(
            f"fuses {found} states of width {head.config.target_hidden_size}, but {len(states)} layers are named; "
            f"give them as layers=..., {found} numbers joined by +"
        )


def _with(head: Eagle3Head, norm_output: bool) -> Eagle3Head:
    """The same head, its next step fed normed states or not."""
    head.config = attrs.evolve(head.config, norm_output=norm_output)
    return head


def _columns(states: tuple[int, ...], target: NetworkTarget, width: int) -> Select:
    """From the features that the target was asked for to these states, in this order."""
    asked = target.states
    if states == asked:
        return lambda features: features
    places = [asked.index(state) for state in states]
    return lambda features: torch.cat([features[..., at * width : (at + 1) * width] for at in places], dim=-1)


@attrs.frozen(eq=False)
class KnownText:
    """A short text by the target, greedily.

    Attributes:
        prompt: how many of its tokens were given.
        ids: shape `(tokens,)`, int64.
        features: the target's at all tokens but the last, shape `(tokens - 1, features)`.
    """

    prompt: int
    ids: IntArray
    features: Tensor


@torch.inference_mode()
def greedy_text(target: NetworkTarget) -> KnownText:
    """A short text by the target, greedily, and its features."""
    if target.tokenizer is not None:
        ids = list(target.tokenizer(CHECK_PROMPT)["input_ids"])
    else:
        ids = list(range(min(8, target.vocab_size)))
    longest = len(ids) + CHECK_TOKENS
    if target.context_length is not None:
        longest = min(longest, target.context_length)
    ids = ids[: max(longest // 2, 1)]
    prompt = len(ids)
    slot = next(slot for slot in count() if slot not in target.occupied)
    with target.session():
        target.open(slot, longest + 1)
        target.read({slot: np.array(ids[:-1], dtype=np.int64)})
        while len(ids) < longest:
            outputs = target.verify({slot: TokenTree.root(ids[-1])}).outputs[slot]
            target.commit({slot: np.zeros(1, dtype=np.int64)})
            ids.append(int(outputs.logits[0].argmax()))
        text = np.array(ids, dtype=np.int64)
        target.open(slot, len(text))
        features = target.read({slot: text[:-1]})[slot]
        target.close(slot)
    assert features is not None
    return KnownText(prompt, text, features)


@torch.inference_mode()
def agreement(
    head: FeatureHead, embed: Callable[[Tensor], Tensor], text: KnownText, select: Select, step: int
) -> float:
    """The share of a text's tokens behind its prompt that are the head's best guess.

    Args:
        head: what guesses.
        embed: token ids to embeddings.
        text: what is to be guessed.
        select: from the target's features to those that are fused.
        step: after how many drafted tokens of the text's own; 0 for guesses from the target's features alone.
    """
    features = select(text.features).to(head.dtype)[None]
    ids = torch.as_tensor(text.ids, device=features.device)
    # row t knows the tokens up to t + 1; those of the prompt were not the target's choice
    starts = torch.arange(max(text.prompt - 2, 0), len(ids) - 2 - step, device=ids.device)
    *_, hidden = unrolled(head, embed(ids)[None].to(head.dtype), features, starts[None], step + 1)
    best = head.logits(hidden[0]).argmax(-1)
    if head.target_ids is not None:
        best = head.target_ids[best]
    return float((best == ids[starts + 2 + step]).float().mean())
