"""EAGLE-1 and EAGLE-2: a decoder layer over the target's last hidden state; both use the same weights."""

import attrs
from attrs.validators import in_

from talon_core.drafter import FINAL_STATE, Drafter, DrafterSpec
from talon_core.target import Target
from talon_drafters.heads.options import FORMS


@attrs.frozen
class Eagle(DrafterSpec):
    """One decoder layer over the target's last hidden state and the next token, with the target's own LM head.

    Drafts step by step; a layer of the tree is one pass of the head and one of the LM head (EAGLE: Li et al., arXiv
    2401.15077, section 3.1; EAGLE-2, arXiv 2406.16858, has the same weights and another tree, policy `eagle2`).

    Attributes:
        path: a folder or Hugging Face id.
        weights: in which form the head's matrices are kept: "stored" as the file has them, "q8_0" in blocks of eight
            bits, which halves what a pass reads, or "auto": in blocks where the target's own are, on a CPU. What the
            target emits is the same; drafts differ a little.
    """

    name = "eagle"
    purpose = "trained heads"
    paper = "arXiv 2401.15077"
    path: str
    weights: str = attrs.field(default="auto", validator=in_(FORMS))

    @classmethod
    def of_files(cls, path: str) -> "Eagle | None":
        from talon_drafters.checkpoints.files import read_checkpoint
        from talon_drafters.eagle.files import EagleFiles, resembles_eagle

        checkpoint = read_checkpoint(path, only_shapes=True)
        if not resembles_eagle(checkpoint):
            return None
        EagleFiles.of(checkpoint)
        return cls(path)

    def features(self, num_layers: int) -> tuple[int, ...]:
        return (FINAL_STATE,)

    def open(self, target: Target) -> Drafter:
        from talon_drafters.eagle.drafter import open_eagle

        return open_eagle(self, target)
