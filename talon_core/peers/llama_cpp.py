"""llama.cpp, through the package `xllamacpp`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from attrs.validators import in_

from talon_core.peer import Peer, PeerAnswer, PeerEngine, PeerSetting
from talon_core.peers.packages import imported, missing, version_of

if TYPE_CHECKING:
    from talon_core.request import Request

DRAFTS = ("none", "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
"""llama.cpp's own names of what drafts without a model."""


@attrs.frozen
class LlamaCpp(Peer):
    """llama.cpp on a CPU with the same weights in the same format, or with a GGUF file of one's own.

    Attributes:
        file: a GGUF file; empty for the one that the loaded model came from, or else one that is made of the model,
            once, in the user's cache.
        widened: of a model that came from a GGUF file, make one of the float32 numbers that its blocks stand for.
        draft: what drafts: "none", or one of llama.cpp's own lookups, such as "ngram-simple".
    """

    name = "llama-cpp"
    draws = True
    file: str = ""
    widened: bool = False
    draft: str = attrs.field(default="none", validator=in_(DRAFTS))

    def unavailable(self) -> str | None:
        if self.file and not Path(self.file).expanduser().is_file():
            return f"there is no file '{self.file}'"
        return missing("xllamacpp", "llama-cpp")

    def open(self, setting: PeerSetting) -> PeerEngine:
        from torch import set_num_threads

        from talon_core.models.gguf_model import gguf_file_of
        from talon_core.peers.gguf_file import gguf_of, main_type

        set_num_threads(1)  # where a process has more threads of OpenMP than cores, all of them sleep between two tasks
        came_from = None if self.widened else gguf_file_of(setting.model)
        path = Path(self.file).expanduser() if self.file else came_from or gguf_of(setting)
        dtype = main_type(path)
        server = _Server(_params(path, dtype, self.draft, setting), path, drafts=self.draft != "none")
        return PeerEngine(server.decode, version_of("xllamacpp"), dtype, setting.threads, "cpu", server.close)


def _params(path: Path, dtype: str, draft: str, setting: PeerSetting) -> Any:
    """One sequence, the whole prompt each time, keys and values as exact as the weights."""
    xllamacpp = imported("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx = setting.room + 8
    params.fit_params = False
    params.n_parallel = 1
    params.n_gpu_layers = 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = setting.threads
    params.verbosity = 0
    if dtype == "float32":  # its flash attention sums in float16, and takes float32 keys at half the speed
        params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    kind = f"COMMON_SPECULATIVE_TYPE_{draft.upper().replace('-', '_')}"
    params.speculative.types = [getattr(xllamacpp.common_speculative_type, kind)]
    return params


class _Server:
    """llama.cpp's server in this process; it is asked without going through its port."""

    def __init__(self, params: Any, path: Path, drafts: bool) -> None:
        try:
            self._server = imported("xllamacpp").Server(params)
        except RuntimeError as error:
            raise ValueError(f"llama.cpp cannot open '{path}'; give another GGUF file with file=") from error
        self._drafts = drafts
        # one that is closed before its loop has begun waits for ever
        self._server.handle_completions({"prompt": [0], "n_predict": 1, "cache_prompt": False})

    def decode(self, request: "Request") -> PeerAnswer:
        from talon_core.peers.drawing import drawing_of

        drawing = drawing_of(request)
        answer = self._server.handle_completions(
            {
                "prompt": request.ids.tolist(),
                "n_predict": request.max_new_tokens,
                "temperature": drawing.temperature,
                "top_k": drawing.top_k,
                "top_p": drawing.top_p,
                "samplers": ["temperature", "top_k", "top_p"],
                "cache_prompt": False,
                "return_tokens": True,
                "verbose": True,  # the tokens are told nowhere else
                **({} if request.seed is None else {"seed": request.seed % 2**32}),
            }
        )
        if "error" in answer:
            raise ValueError(answer["error"]["message"])
        told = answer["__verbose"]
        return PeerAnswer(told["tokens"], None if self._drafts else int(told["tokens_predicted"]))

    def close(self) -> None:
        del self._server
