"""llama.cpp, through the package `xllamacpp`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from attrs.validators import ge, in_, lt

from talon_core.basics.option_checks import number, whole_number, yes_or_no
from talon_core.basics.paths import from_home
from talon_core.heads import GivesHead
from talon_core.peer import Peer, PeerAnswer, PeerEngine, PeerSetting
from talon_core.peers.packages import imported, missing, version_of

if TYPE_CHECKING:
    from talon_core.request import Request

DRAFT_MODEL, DRAFT_HEAD = "draft-simple", "draft-eagle3"
DRAFTS = (
    *("none", "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache"),
    *(DRAFT_MODEL, DRAFT_HEAD),
)
"""llama.cpp's own names of what drafts."""
RIGHT = "give the GGUF file of a model of the same vocabulary, or of a head for this one, with draft_file="


@attrs.frozen
class LlamaCpp(Peer):
    """llama.cpp on a CPU with the same weights in the same format, or with a GGUF file of one's own.

    Attributes:
        file: a GGUF file; empty for the one that the loaded model came from, or else one that is made of the model,
            once, in the user's cache.
        widened: of a model that came from a GGUF file, make one of the float32 numbers that its blocks stand for.
        draft: what drafts: "none", one of llama.cpp's own lookups, such as "ngram-simple", a small model,
            "draft-simple", or an EAGLE-3 head, "draft-eagle3".
        draft_file: the GGUF file of the model or head that drafts; of a head, empty for one that is made of `head`,
            once, in the user's cache.
        head: the drafter whose head is given to llama.cpp, with its options in brackets, as in
            `eagle3[path=FOLDER]`.
        tokens: the most tokens that a model or head drafts for a pass (llama.cpp's `n_max`).
        confidence: it stops before a token that it gives a smaller probability (`p_min`); 0 for none.
    """

    name = "llama-cpp"
    draws = True
    file: str = ""
    widened: bool = attrs.field(default=False, validator=yes_or_no)
    draft: str = attrs.field(default="none", validator=in_(DRAFTS))
    draft_file: str = ""
    head: str = "eagle3"
    tokens: int = attrs.field(default=3, validator=[whole_number, ge(1)])
    confidence: float = attrs.field(default=0.0, validator=[number, ge(0), lt(1)])

    def unavailable(self) -> str | None:
        for file in filter(None, (self.file, self.draft_file)):
            if not from_home(file).is_file():
                return f"there is no file '{file}'"
        if self.draft == DRAFT_MODEL and not self.draft_file:
            return f"draft={DRAFT_MODEL} drafts with a small model; give its GGUF file with draft_file="
        if self.draft_file and self.draft not in (DRAFT_MODEL, DRAFT_HEAD):
            return f"draft={self.draft} takes no draft_file; leave it out, or set draft={DRAFT_MODEL}"
        if self.draft == DRAFT_HEAD:
            try:
                head_giver(self.head)
            except ValueError as error:
                return str(error)
        return missing("xllamacpp", "llama-cpp")

    def open(self, setting: PeerSetting) -> PeerEngine:
        from torch import set_num_threads

        from talon_core.models.gguf_model import gguf_file_of
        from talon_core.peers.gguf_file import gguf_of, main_type

        set_num_threads(1)  # where a process has more threads of OpenMP than cores, all of them sleep between two tasks
        came_from = None if self.widened else gguf_file_of(setting.model)
        path = from_home(self.file) if self.file else came_from or gguf_of(setting)
        dtype = main_type(path)
        params = _params(path, dtype, setting)
        params.speculative.types = [_kind(self.draft)]
        drafting = self._drafting(setting, path, made_up=not self.file and came_from is None)
        if drafting is not None:
            self._draft_with(drafting, params)
            if self.confidence:  # without it, one that never drafts is told from one that is never sure
                _Server(params, must_draft=True).close()
                params.speculative.draft.p_min = self.confidence
        server = _Server(params, must_draft=drafting is not None and not self.confidence)
        return PeerEngine(server.decode, version_of("xllamacpp"), dtype, setting.threads, "cpu", server.close)

    def _drafting(self, setting: PeerSetting, target: Path, made_up: bool) -> Path | None:
        """The file of the model or head that drafts; None if there is none.

        Args:
            setting: what the peer is opened for.
            target: the target's file.
            made_up: the vocabulary of the target's file is.
        """
        from talon_core.peers.gguf_copy import with_made_up_vocabulary
        from talon_core.peers.gguf_head import check_target, gguf_of_head

        own = from_home(self.draft_file)
        if self.draft == DRAFT_MODEL:
            return with_made_up_vocabulary(own, setting.eos) if made_up else own
        if self.draft == DRAFT_HEAD:
            check_target(target)
            return own if self.draft_file else gguf_of_head(head_giver(self.head).head_weights(setting.model), setting)
        return None

    def _draft_with(self, path: Path, params: Any) -> None:
        draft = params.speculative.draft
        draft.mparams.path = str(path)
        draft.n_max, draft.p_min = self.tokens, 0.0
        draft.n_gpu_layers = 0
        draft.cache_type_k, draft.cache_type_v = params.cache_type_k, params.cache_type_v
        draft.cpuparams.n_threads = draft.cpuparams_batch.n_threads = params.cpuparams.n_threads


def head_giver(drafter: str) -> GivesHead:
    """The options of a drafter whose head other programs can be given.

    Args:
        drafter: its name, with options in brackets.

    Raises:
        ValueError: if there is no such drafter.
    """
    from talon_core.plugins.several import made_parts

    (spec,) = made_parts("drafter", [drafter], {}, "head")
    if not isinstance(spec, GivesHead):
        raise ValueError(  # noqa: TRY004 - the option is wrong
            f"head is '{drafter}', a drafter without a head that llama.cpp could be given; eagle3 has one"
        )
    return spec


def _kind(draft: str) -> Any:
    """What llama.cpp's Python package calls a way of drafting."""
    kinds = imported("xllamacpp").common_speculative_type
    found = getattr(kinds, f"COMMON_SPECULATIVE_TYPE_{draft.upper().replace('-', '_')}", None)
    if found is None:
        raise ValueError(
            f"{version_of('xllamacpp')} cannot draft with '{draft}'; install a newer one, or leave draft= out"
        )
    return found


def _params(path: Path, dtype: str, setting: PeerSetting) -> Any:
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
    return params


class _Server:
    """llama.cpp's server in this process; it is asked without going through its port.

    Args:
        params: llama.cpp's.
        must_draft: one that decodes plainly is refused: of a drafter that it cannot use it says so nowhere.

    Raises:
        ValueError: if it cannot use the files.
    """

    def __init__(self, params: Any, must_draft: bool) -> None:
        drafting = params.speculative.draft.mparams.path
        try:
            self._server = imported("xllamacpp").Server(params)
        except RuntimeError as error:
            raise ValueError(
                f"llama.cpp cannot open '{params.model.path}' and draft with '{drafting}'; {RIGHT}"
                if drafting
                else f"llama.cpp cannot open '{params.model.path}'; give another GGUF file with file="
            ) from error
        # one that is closed before its loop has begun waits for ever
        answer = self._server.handle_completions(
            {"prompt": [0], "cache_prompt": False, "n_predict": 4 if must_draft else 1, "ignore_eos": True}
        )
        if must_draft and not answer.get("timings", {}).get("draft_n"):
            raise ValueError(f"llama.cpp does not draft for '{params.model.path}' with '{drafting}'; {RIGHT}")

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
        times = told["timings"]
        # all but the last token of prompt and answer are kept, with what was accepted beyond the end of the text
        decoded = told["tokens_cached"] + 1 - told["tokens_evaluated"]
        passes = int(decoded - times.get("draft_n_accepted", 0))
        return PeerAnswer(told["tokens"], passes, prefill_seconds=times["prompt_ms"] / 1000)

    def close(self) -> None:
        del self._server
