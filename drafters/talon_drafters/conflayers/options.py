"""Self-speculation: the target without some of its layers, which the text at hand chooses."""

import attrs
from attrs.validators import ge, le

from talon_core.basics.option_checks import number, whole_number
from talon_core.drafter import Drafter, DrafterSpec
from talon_core.target import Target


@attrs.frozen
class ConfLayers(DrafterSpec):
    """Drafts with the target itself, layers left out by how confident they are (ConfLayers, arXiv 2604.14612).

    The score of a layer is the mean over recent tokens of

        (1 - H(softmax(h_attention)) / ln d) + (1 - H(softmax(h_mlp)) / ln d),

    `h` what the layer's two halves add to the state, `d` its width and H the entropy. A layer is left out if its score
    is below those of the layers around it (`skipped` has the rule); the first and the last layer always stay. What is
    found is taken if the target without these layers agrees with the whole one on more of the recent tokens than
    without every second layer, which is what is left out otherwise, and before anything is known.

    What is chosen depends on the text alone: on the last `context` tokens before the last multiple of `every`. The
    authors' code goes on from what it had before, and moves lambda from one time to the next; here lambda moves until
    the share is reached. It drafts from the target's own keys and values of the text, and needs no cache.

    The authors end a draft at a probability below 0.8 or after 25 tokens, which is the policy's part:
    `gammatune-plus:length=25,start=25,growth=25,weight=1e-9,tau=0.8` does so. With the defaults of
    `start`, `growth` and `weight` a draft has 3 tokens at first, and its length follows what was accepted before.

    Attributes:
        least: the smallest share of the layers between the first and the last that is wanted left out.
        most: the largest.
        context: recent tokens that are looked at.
        every: after so many tokens of the text the layers are chosen anew; three passes over the recent tokens.
    """

    name = "conflayers"
    purpose = "models"
    paper = "arXiv 2604.14612"
    least: float = attrs.field(default=0.4, validator=[number, ge(0), le(1)])
    most: float = attrs.field(default=0.45, validator=[number, ge(0), le(1)])
    context: int = attrs.field(default=32, validator=[whole_number, ge(2), le(1024)])
    every: int = attrs.field(default=32, validator=[whole_number, ge(1)])

    def __attrs_post_init__(self) -> None:
        if self.least > self.most:
            raise ValueError(f"least must be at most most, {self.most}, not {self.least}")

    def open(self, target: Target) -> Drafter:
        from talon_drafters.conflayers.drafter import open_conflayers

        return open_conflayers(self, target)
