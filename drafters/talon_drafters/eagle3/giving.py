"""An EAGLE-3 head as data, in the format of its files."""

from typing import Any

from talon_core.heads import HeadWeights
from talon_core.runtime.embeddings import output_shape
from talon_drafters.eagle3.drafter import check_fused
from talon_drafters.eagle3.files import Eagle3Files
from talon_drafters.eagle3.options import Eagle3
from talon_drafters.heads.opening import checkpoint_for, embedding_of


def eagle3_weights(spec: Eagle3, model: Any) -> HeadWeights:
    """The head for a model; raises as `GivesHead.head_weights` does.

    What drafting a little text would decide has to be said by the files or the options: nothing is drafted here.
    """
    text = model.config.get_text_config()
    files = Eagle3Files.of(checkpoint_for(model, spec.path, spec.name, ""))
    readings = spec.readings(text.num_hidden_layers)
    if len(readings) > 1:
        raise files.checkpoint.error(
            "numbers the layers that it fuses and does not say how it counts; add layer_ids_are=boundary or =block"
        )
    if spec.norm_output == "auto" and files.norm_output_is_unclear:
        raise files.checkpoint.error("says norm_output, which may mean two things; add norm_output=yes or =no")
    like = next(tensor for tensor in files.checkpoint.tensors.values() if tensor.is_floating_point())
    head = files.head(text.hidden_size, output_shape(model)[0], like)
    embedding_of(head, head.fc.out_features, model, files.checkpoint)
    (states,) = readings.values()
    check_fused(files, head, states)
    return HeadWeights(
        config=head.config.layer,
        tensors=dict(head.state_dict()),
        states=states,
        target_ids=head.target_ids,
        norm_before_residual=head.config.norm_before_residual,
        norm_output=head.config.norm_output if spec.norm_output == "auto" else spec.norm_output == "yes",
    )
