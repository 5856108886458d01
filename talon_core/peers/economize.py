"""economize, with an EAGLE-3 head in the layout of its authors."""

from typing import TYPE_CHECKING, Any

import attrs
from attrs.validators import ge

from talon_core.basics.option_checks import whole_number
from talon_core.basics.paths import from_home
from talon_core.peer import Peer, PeerAnswer, PeerEngine, PeerSetting
from talon_core.peers.packages import imported, missing, version_of

if TYPE_CHECKING:
    from talon_core.request import Request


@attrs.frozen
class Economize(Peer):
    """economize's chains of an EAGLE-3 head, on the same loaded model.

    Attributes:
        head: a folder with `config.json` and `model.safetensors` as EAGLE-3's authors write them; such are the heads
            that TALON ships and trains.
        cycle: most tokens of a round: one of the model's own, and one less that are drafted.
    """

    name = "economize"
    draws = True
    head: str
    cycle: int = attrs.field(default=5, validator=[whole_number, ge(1)])

    def unavailable(self) -> str | None:
        if not from_home(self.head).is_dir():
            return f"there is no folder '{self.head}'"
        return missing("economize", "economize")

    def open(self, setting: PeerSetting) -> PeerEngine:
        economize = imported("economize")
        try:
            model = economize.load(setting.model, str(from_home(self.head)))
        except economize.EconomizeError as error:
            raise ValueError(f"economize cannot use the head in '{self.head}': {error}") from error
        greedy = economize.DecodeConfig(cycle_length=self.cycle)
        drawn = economize.DecodeConfig(cycle_length=self.cycle, verifier="rejection")

        def decode(request: "Request") -> PeerAnswer:
            import torch

            ids = torch.as_tensor(request.ids, device=setting.model.device)
            selector = _selector(request, setting.model.device)
            answer = model.decode(
                ids,
                request.max_new_tokens,
                decoding=greedy if selector is None else drawn,
                selector=selector,
                stop=sorted(request.eos),
            )
            cost = answer.cost_summary()
            return PeerAnswer(answer.tokens.tolist(), int(cost["exact_calls"]), int(cost["draft_steps"]))

        device = str(setting.model.device)
        return PeerEngine(decode, version_of("economize"), setting.dtype, setting.threads, device, model.detach)


def _selector(request: "Request", device: Any) -> Any:
    """What draws; None is greedy."""
    from talon_core.peers.drawing import drawing_of

    drawing = drawing_of(request)
    if not drawing.temperature:
        return None
    if drawing.top_k:
        raise ValueError(f"top_k is {drawing.top_k}, which economize cannot do; leave it out")
    return imported("economize").TopPSampler(drawing.temperature, drawing.top_p, request.seed or 0, device)
