"""Whether a drafter drafts the same trees where passes run on a device and are recorded, shown on a CPU."""

from collections.abc import Sequence
from typing import Any

from talon_core.decoding.decoder import Decoder
from talon_core.drafter import DrafterSpec
from talon_core.hf.target import HFTarget
from talon_core.testing.plain_device import PlainDevice
from talon_core.testing.tape import TapedBackend, TapeRecorder


def check_on_device(
    spec: DrafterSpec, usual: Decoder, prompts: Sequence[Any], recorded: bool, max_new_tokens: int = 8
) -> None:
    """Decode prompts together and alone with a device backend; trees and output are those of the `usual` decoder.

    Args:
        spec: the drafter, the one that `usual` has.
        usual: what to compare with; its rule and its policy are used, and its target's model.
        prompts: as for `Decoder.generate`.
        recorded: record passes, the target's and the drafter's, and repeat them.
        max_new_tokens: for each prompt.

    Raises:
        AssertionError: if something differs, or nothing was recorded that should have been.
    """
    recorders: list[TapeRecorder] = []

    def recorder() -> TapeRecorder:
        recorders.append(TapeRecorder())
        return recorders[-1]

    assert isinstance(usual.target, HFTarget)
    usual.engine.allocator = None  # what is worth its time is another thing on each device
    requests = usual.requests(prompts, {"max_new_tokens": max_new_tokens})
    expected = usual.run_all(requests)
    features, graphs = usual.target.runner.features, recorder if recorded else None
    target = HFTarget(usual.target.model, TapedBackend(PlainDevice()), None, features, graphs=graphs, probe=False)
    decoder = Decoder(target, usual.rule, usual.policy, spec, usual.frontend, lossy=usual.rule.lossy)
    decoder.engine.allocator = None
    together = decoder.run_all(requests)
    alone = [decoder.run_all([request])[0] for request in requests]
    for results in (together, alone):
        for one, other in zip(results, expected, strict=True):
            assert one.token_ids == other.token_ids
            for mine, theirs in zip(one.rounds, other.rounds, strict=True):
                assert mine.tree.tokens.tolist() == theirs.tree.tokens.tolist()
                off = abs(mine.tree.path_logp - theirs.tree.path_logp).max()
                assert off <= 1e-3, off  # sums in another order; what is wrong is off by whole numbers
    assert len(recorders) == 2 * recorded
    assert all(one.repeated > one.recorded > 0 for one in recorders)
