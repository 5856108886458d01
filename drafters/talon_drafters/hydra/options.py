"""Hydra: heads on the target's last hidden state that also read the tokens drafted before them."""

from typing import Any

import attrs

from talon_core.drafter import FINAL_STATE, Drafter, DrafterSpec
from talon_core.target import Target


@attrs.frozen
class Hydra(DrafterSpec):
    """Heads on the target's last hidden state, each of which also reads the tokens that were drafted before it.

    One head runs a layer, on the state of the token before the root and the embeddings of the path from the root to
    each node (Ankner et al., arXiv 2402.05109, section 3). A checkpoint may bring a prefix layer (Hydra++, section 4),
    which runs once a round over the states of the new tokens.

    Attributes:
        path: a folder or Hugging Face id with `hydra_lm_head`; empty for the drafter that is shipped for the target.
    """

    name = "hydra"
    purpose = "trained heads"
    paper = "arXiv 2402.05109"
    path: str = ""

    @classmethod
    def rank_for(cls, model: Any) -> int | None:
        from talon_drafters.checkpoints.files import shipped_for

        return 2 if shipped_for(model, cls.name) else None

    @classmethod
    def of_files(cls, path: str) -> "Hydra | None":
        from talon_drafters.checkpoints.files import read_checkpoint
        from talon_drafters.hydra.files import STEM, resembles_hydra

        return cls(path) if resembles_hydra(read_checkpoint(path, STEM, only_shapes=True)) else None

    def features(self, num_layers: int) -> tuple[int, ...]:
        return (FINAL_STATE,)

    def open(self, target: Target) -> Drafter:
        from talon_drafters.hydra.drafter import open_hydra

        return open_hydra(self, target)
