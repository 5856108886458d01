"""OpenVINO GenAI, with models that its own tools have converted."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from attrs.validators import ge

from talon_core.basics.option_checks import whole_number
from talon_core.basics.paths import from_home
from talon_core.errors import first_line
from talon_core.peer import Peer, PeerAnswer, PeerEngine, PeerSetting
from talon_core.peers.packages import imported, missing, version_of

if TYPE_CHECKING:
    from talon_core.request import Request

FORMATS = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
"""What OpenVINO calls the formats of numbers, as transformers calls them."""


@attrs.frozen
class OpenVino(Peer):
    """OpenVINO GenAI on a CPU, plainly or with an EAGLE-3 head, both converted by `optimum-cli export openvino`.

    Attributes:
        path: the folder with the converted model.
        head: the folder with a converted EAGLE-3 head; empty decodes plainly.
        tokens: with a head, how many drafted tokens are verified at once.
        depth: with a head, how deep its tree is; 0 drafts a chain.
        branching: with a head, how many children a node of its tree has.
    """

    name = "openvino"
    path: str
    head: str = ""
    tokens: int = attrs.field(default=5, validator=[whole_number, ge(1)])
    depth: int = attrs.field(default=0, validator=[whole_number, ge(0)])
    branching: int = attrs.field(default=3, validator=[whole_number, ge(1)])

    def unavailable(self) -> str | None:
        for folder in filter(None, (self.path, self.head)):
            if not (from_home(folder) / "openvino_model.xml").is_file():
                return f"there is no openvino_model.xml in '{folder}'; optimum-cli export openvino writes one"
        return missing("openvino_genai", "openvino")

    def open(self, setting: PeerSetting) -> PeerEngine:
        openvino_genai = imported("openvino_genai")
        dtype = _main_type(from_home(self.path) / "openvino_model.xml")
        exact = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"} if dtype == "float32" else {}
        options: dict[str, Any] = {**exact, "INFERENCE_NUM_THREADS": setting.threads}
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False
        # a prompt that it reads in parts is lost on its head: it drafts nothing that is accepted, or fails
        scheduler.max_num_batched_tokens = max(scheduler.max_num_batched_tokens, setting.room)
        drafted = {"draft_model": openvino_genai.draft_model(self._head, "CPU", **options)} if self.head else {}
        try:
            pipeline = openvino_genai.LLMPipeline(
                str(from_home(self.path)), "CPU", scheduler_config=scheduler, **drafted, **options
            )
        except RuntimeError as error:
            raise ValueError(f"OpenVINO cannot open '{self.path}': {first_line(error)}") from error

        def decode(request: "Request") -> PeerAnswer:
            if request.sampling.processors:
                raise ValueError("the model's scores are processed, which this peer does not do")
            config = openvino_genai.GenerationConfig(
                max_new_tokens=request.max_new_tokens,
                do_sample=False,
                apply_chat_template=False,
                stop_token_ids=set(request.eos),
            )
            if self.head:
                config.num_assistant_tokens = self.tokens
                if self.depth:
                    config.tree_depth, config.branching_factor = self.depth, self.branching
            answer = pipeline.generate(imported("openvino").Tensor(request.ids[None]), config)
            drafted = answer.extended_perf_metrics.get_num_accepted_tokens() if self.head else 0
            return PeerAnswer(answer.tokens[0], len(answer.tokens[0]) - drafted)  # each pass adds one token to these

        return PeerEngine(decode, version_of("openvino-genai"), dtype, setting.threads)

    @property
    def _head(self) -> str:
        return str(from_home(self.head))


def _main_type(xml: Path) -> str:
    """The format in which a converted model has most of its constants' bytes, such as "float32" or "i8"."""
    from xml.etree import ElementTree

    sizes: dict[str, int] = {}
    for layer in ElementTree.parse(xml).iter("layer"):
        data = layer.find("data")
        if layer.get("type") == "Const" and data is not None:
            kind = data.get("element_type", "")
            sizes[kind] = sizes.get(kind, 0) + int(data.get("size", "0"))
    if not sizes:
        raise ValueError(f"'{xml}' has no weights; give the folder of a converted model")
    most = max(sizes, key=lambda kind: sizes[kind])
    return FORMATS.get(most, most)
