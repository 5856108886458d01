"""Opening an EAGLE-1 or EAGLE-2 head for a target."""

from talon_core.drafter import Drafter
from talon_core.runtime.embeddings import output_shape
from talon_core.runtime.network import network_target
from talon_core.target import Target
from talon_drafters.checkpoints.files import read_checkpoint
from talon_drafters.eagle.files import EagleFiles
from talon_drafters.eagle.options import Eagle
from talon_drafters.heads.opening import embedding_of, feature_drafter


def open_eagle(spec: Eagle, target: Target) -> Drafter:
    """Open an EAGLE-1 or EAGLE-2 head; raises as `DrafterSpec.open` does."""
    target = network_target(target, spec.name)
    files = EagleFiles.of(read_checkpoint(spec.path))
    output_shape(target.model)  # raises where it cannot be read
    head = files.head(target.model.get_output_embeddings(), target.vocab_size)
    embed = embedding_of(head, head.num_features, target.model, files.checkpoint)
    return feature_drafter(head, embed, target, files.describe(head), weights=spec.weights)
