"""Medusa: heads on the target's last hidden state, each of which guesses one token further ahead."""

from typing import Any

import attrs

from talon_core.drafter import FINAL_STATE, Drafter, DrafterSpec
from talon_core.target import Target


@attrs.frozen
class Medusa(DrafterSpec):
    """Heads on the target's last hidden state, each of which guesses one token further ahead from the same state.

    All heads run once a round, so a layer of the tree costs next to nothing, but a law knows nothing of the tokens
    drafted before it: it depends on the depth alone (Cai et al., arXiv 2401.10774, section 2.1.1). The state is that of
    the token before the root, the last one the target has seen.

    Attributes:
        path: a folder or Hugging Face id with `medusa_lm_head`; empty for the drafter that is shipped for the target.
    """

    name = "medusa"
    purpose = "trained heads"
    paper = "arXiv 2401.10774"
    path: str = ""

    @classmethod
    def rank_for(cls, model: Any) -> int | None:
        from talon_drafters.checkpoints.files import shipped_for

        return 1 if shipped_for(model, cls.name) else None

    @classmethod
    def of_files(cls, path: str) -> "Medusa | None":
        from talon_drafters.checkpoints.files import read_checkpoint
        from talon_drafters.medusa.files import STEM, resembles_medusa

        return cls(path) if resembles_medusa(read_checkpoint(path, STEM, only_shapes=True)) else None

    def features(self, num_layers: int) -> tuple[int, ...]:
        return (FINAL_STATE,)

    def open(self, target: Target) -> Drafter:
        from talon_drafters.medusa.drafter import open_medusa

        return open_medusa(self, target)
