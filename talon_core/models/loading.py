"""A model and its tokenizer from their files, refused in one sentence where these are damaged."""

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from talon_core.basics.disk import writing
from talon_core.basics.paths import check_folder
from talon_core.errors import first_line, is_whole, of_the_machine
from talon_core.models.folder_faults import fault_of
from talon_core.models.gguf_checks import TOKENS, checked_header
from talon_core.models.gguf_model import GgufModel

OF_GGUF = {"dtype", "gguf_file", "attn_implementation"}
"""Options with which weights can stay in a GGUF file's blocks; with others, transformers reads such a file itself."""

OF_THE_HUB = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")
"""Options that say where files are read from: those of the tokenizer as those of the model."""

NO_TOKENIZER = "Couldn't instantiate the backend tokenizer"
"""What transformers says, in several lines, of files of which it can make none."""

WORTH_SAYING = 0.1
"""What share of a model's bytes has to be outside of blocks."""

_log = logging.getLogger("talon_core.models")


def hide_bars() -> None:
    """Let transformers draw no bars in this process, as where nobody looks at it."""
    from transformers.utils import logging

    logging.disable_progress_bar()


def load_model(
    name: str,
    *,
    trust_remote_code: bool = False,
    trusted_with: str = "--trust-remote-code (from Python: trust_remote_code=True)",
    dequantize: bool = False,
    **options: Any,
) -> tuple[Any, Any]:
    """Load a model and its tokenizer.

    The weights of an embedded model, or of a GGUF file, stay in the file's blocks on a CPU, in layers of
    `talon_core.runtime.blocks`; on a GPU, and in another type than float32, they become numbers of that type. What
    other layers have, such as experts, becomes float32 numbers, of which the log says how many bytes they take.

    Args:
        name: the name of an embedded model, a folder, a GGUF file, or a Hugging Face id.
        trust_remote_code: run code that the folder brings, where transformers has none for such a model. Nobody is
            asked.
        trusted_with: what a user has to give for that, for the sentence that says so.
        dequantize: make plain parameters of all weights in blocks, which then are what they stand for.
        options: for `AutoModelForCausalLM.from_pretrained`; those of `OF_THE_HUB` for the tokenizer as well.

    Raises:
        ValueError: if it cannot be found or read; the sentence says what would be right.
    """
    from talon_core.models import resolve

    if not isinstance(trust_remote_code, bool):  # transformers takes None for leave to ask
        raise ValueError(  # noqa: TRY004 - callers expect a ValueError for every bad option
            f"trust_remote_code is {trust_remote_code!r}; it must be True or False"
        )
    said = options.pop("torch_dtype", None)  # as transformers called it before
    if said is not None:
        options.setdefault("dtype", said)
    path = resolve(name)
    with _refusing(name, path, trust_remote_code, trusted_with):
        stored = GgufModel.at(Path(path), options.get("gguf_file"))
        if stored is not None and not {*options} - OF_GGUF and stored.in_parts:
            loaded = _read_gguf(stored, dequantize, options)
        else:
            if stored is not None:
                path, options = (
                    str(stored.path.parent),
                    {**_plain_numbers(stored), **options, "gguf_file": stored.path.name},
                )
            of_the_hub = {option: options.pop(option) for option in OF_THE_HUB if option in options}
            loaded = _read(path, _where(path, of_the_hub), {**options, "trust_remote_code": trust_remote_code})
    if stored is not None and not dequantize:
        _say_what_is_wide(loaded[0], stored.path)
    return loaded


def export_model(name: str, folder: Path, *, trust_remote_code: bool = False) -> None:
    """Write a model and its tokenizer into a folder as `from_pretrained` reads it, with plain float32 weights.

    Args:
        name: as for `load_model`.
        folder: which is made; it is there whole or not at all.
        trust_remote_code: as for `load_model`.

    Raises:
        ValueError: if the model cannot be loaded, or there is something in the folder's place, or nothing can be made
            there.
        OSError: if it cannot be written.
    """
    import torch

    if os.path.lexists(folder):
        raise ValueError(f"'{folder}' is there already; give the name of a folder that is to be made")
    check_folder(folder, "the folder")
    model, tokenizer = load_model(name, trust_remote_code=trust_remote_code, dequantize=True, dtype=torch.float32)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as unfinished:
        made = Path(unfinished) / "model"
        with writing(f"the folder '{folder}' of '{name}'"):
            model.save_pretrained(made)
            tokenizer.save_pretrained(made)
        made.rename(folder)


PLAIN_WEIGHTS = "model.safetensors"
"""Where transformers looks for a model's weights."""


def add_plain_weights(name: str, folder: Path, *, verify: bool = False) -> None:
    """Let `from_pretrained` read an embedded model's folder without more: its weights in float32, beside the GGUF file.

    Args:
        name: the model.
        folder: where it is; nothing is done if plain weights are there already, as a note beside them says.
        verify: whether to compare their sha256, too; those without a note are then made anew.

    Raises:
        ValueError: if the model cannot be loaded, or the weights cannot be written.
    """
    from talon_core.models.store import PLAIN_NOTE, is_as_noted, write_note

    weights = folder / PLAIN_WEIGHTS
    if weights.exists() and is_as_noted(name, weights, verify=verify):
        return
    try:
        with TemporaryDirectory(dir=folder.parent, prefix=f".{name}.partial-") as unfinished:
            export_model(name, Path(unfinished) / "plain")
            made, noted = Path(unfinished) / "plain" / PLAIN_WEIGHTS, Path(unfinished) / PLAIN_NOTE
            write_note(made, noted)
            noted.replace(folder / PLAIN_NOTE)
            made.replace(weights)
    except OSError as error:
        raise ValueError(
            f"the float32 weights of '{name}' cannot be written into {folder} ({error.strerror or error}); make room "
            "there, or set TALON_CACHE to a folder on a larger disk"
        ) from error


def load_tokenizer(name: str) -> Any:
    """Load a model's tokenizer without the model. Nothing is fetched, and code that its folder brings is not run.

    Args:
        name: as for `load_model`.

    Raises:
        ValueError: if it is not here, or cannot be read.
    """
    path = _here(name)
    with _refusing(name, path):
        stored = GgufModel.at(Path(path))
        if stored is not None:
            return _tokenizer_of(stored)
        return _tokenizer(path, {} if Path(path).is_dir() else {"local_files_only": True}, False)


def vocabulary_size_of(name: str) -> int | None:
    """How many tokens a model knows, by its configuration; None where that does not tell. Nothing is fetched.

    Its tokenizer may have fewer, and where tokens were added to the tokenizer alone, more.

    Args:
        name: as for `load_model`.

    Raises:
        ValueError: if the model is not here.
    """
    path = _here(name)
    stored = GgufModel.at(Path(path))
    if stored is not None:
        return checked_header(stored.path).lengths.get(TOKENS)
    from transformers import PretrainedConfig

    try:
        said, _ = PretrainedConfig.get_config_dict(path, local_files_only=True)
    except (OSError, ValueError):  # a folder of a tokenizer has none
        return None
    of_text = said.get("text_config")
    size = (of_text if isinstance(of_text, dict) else said).get("vocab_size")
    return size if is_whole(size) and size > 0 else None


def _here(name: str) -> str:
    """As `resolve`, of a model that need not be fetched.

    Raises:
        ValueError: if it would have to be.
    """
    from talon_core.models import MODELS, is_cached, resolve

    if name in MODELS and not is_cached(name):
        raise ValueError(f"{name} is not in the cache; fetch it with: talon models fetch {name}")
    return resolve(name)


@contextmanager
def _refusing(name: str, path: str, trust_remote_code: bool = False, trusted_with: str = "") -> Iterator[None]:
    """Turn what is raised by damaged files into one sentence."""
    try:
        yield
    except Exception as error:  # a damaged file may raise anything
        if of_the_machine(error):
            raise  # nothing is wrong with the model
        if trusted_with and not trust_remote_code and "trust_remote_code=True" in str(error):
            raise ValueError(
                f"model '{name}' comes with code of its own, which is run only where that is asked for: look at the "
                f"code, and if you trust it give {trusted_with}"
            ) from error
        raise ValueError(
            f"model '{name}' cannot be loaded: {_reason(error, Path(path))} "
            "Give the name of an embedded model (talon list models), a folder, a GGUF file, or a Hugging Face id."
        ) from error


def _where(path: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Options for everything that is read of a model: those that were given, and one of a hub that does not answer.

    Args:
        path: a folder, or a Hugging Face id.
        given: of `OF_THE_HUB`.
    """
    from talon_core.models.hub import only_local

    if Path(path).is_dir() or given.get("local_files_only"):
        return {**given}
    return {**given, "local_files_only": only_local(path, given)}


def _read_gguf(stored: GgufModel, dequantize: bool, options: dict[str, Any]) -> tuple[Any, Any]:
    import torch

    from talon_core.models.sizes import check_sizes

    on_cpu = not torch.cuda.is_available()
    dtype = options.get("dtype", torch.float32)
    dtype = torch.float32 if dtype == "auto" else getattr(torch, dtype) if isinstance(dtype, str) else dtype
    model, info = stored.load(
        check_sizes,
        in_blocks=on_cpu and not dequantize and dtype == torch.float32,
        **{**options, "gguf_file": None, "dtype": dtype},
    )
    _check_weights(info)
    return model.eval().to("cpu" if on_cpu else "cuda"), _tokenizer_of(stored)


def _say_what_is_wide(model: Any, file: Path) -> None:
    """Log how much of a model is not in its file's blocks, where a share of it is not that could be meant to be."""
    import torch

    from talon_core.runtime.blocks import Held

    if model.device.type != "cpu" or model.dtype != torch.float32:
        return  # in another type, or elsewhere, nothing stays in blocks
    held, size = Held.by(model), file.stat().st_size
    if held.whole - held.in_blocks > WORTH_SAYING * held.whole and held.whole > size:
        _log.warning("%s: %s (the file has %s bytes)", file.name, held, f"{size:,}")


def _plain_numbers(stored: GgufModel) -> dict[str, Any]:
    """Options with which transformers makes numbers of a file that it may also keep in blocks, in a way of its own."""
    if stored.in_parts:
        return {}
    from transformers import GgufConfig

    return {"quantization_config": GgufConfig(dequantize=True)}


def _tokenizer_of(stored: GgufModel) -> Any:
    place, more = stored.source
    return _tokenizer(str(place), more, False)


def _read(path: str, where: Mapping[str, Any], options: dict[str, Any]) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForCausalLM, PretrainedConfig

    from talon_core.models.sizes import check_sizes

    if Path(path).is_dir() and "gguf_file" not in options:  # with one there need be no config.json
        check_sizes(PretrainedConfig.get_config_dict(path, **where)[0])
    on_cpu = not torch.cuda.is_available()
    options.setdefault("dtype", torch.float32 if on_cpu else "auto")
    if not on_cpu:
        options.setdefault("device_map", "cuda")
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        path, **where, **options, ignore_mismatched_sizes=True, output_loading_info=True
    )
    model, info = loaded
    _check_weights(info)
    of_file = {"gguf_file": options["gguf_file"]} if options.get("gguf_file") is not None else {}
    return model.eval(), _tokenizer(path, {**where, **of_file}, options["trust_remote_code"])


def _tokenizer(path: str, where: Mapping[str, Any], trust_remote_code: bool) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(path, **where, trust_remote_code=trust_remote_code)
    except KeyError as error:
        if "gguf_file" not in where:
            raise
        raise ValueError(
            f"its metadata has no tokenizer.ggml.{error.args[0]}, which its kind of tokenizer is made of; give a file "
            "with its whole tokenizer"
        ) from error
    except ValueError as error:
        if not str(error).startswith(NO_TOKENIZER):
            raise
        raise ValueError(
            "no tokenizer can be made of its files; put a tokenizer.json there, as a tokenizer's save_pretrained does, "
            "or install sentencepiece or tiktoken if its tokenizer is of another kind"
        ) from error


def token_text(tokenizer: Any, token: int) -> str:
    """One token as text, special tokens by their names, and with the space it starts with."""
    text = str(tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False))
    piece = tokenizer.convert_ids_to_tokens(token)
    begins = isinstance(piece, str) and piece.startswith("▁")  # SentencePiece loses a leading space alone
    return " " + text if begins and not text.startswith(" ") else text


def _check_weights(info: Mapping[str, Any]) -> None:
    """transformers fills weights that are missing, or of another shape, with random numbers."""
    for weight, found, wanted in sorted(info["mismatched_keys"], key=str):
        raise ValueError(
            f"its weight {weight} has shape {tuple(found)} where its configuration asks for {tuple(wanted)}."
        )
    missing = sorted(info["missing_keys"])
    if missing:
        raise ValueError(
            f"it lacks {len(missing)} of the weights that its configuration asks for, such as {missing[0]}."
        )


def _reason(error: Exception, path: Path) -> str:
    """A fault of the folder's files, or the first line of what an error says, with its type if that is no sentence."""
    fault = fault_of(path)
    if fault is not None:
        return f"{fault}."
    first = first_line(error)
    if first.endswith(":"):
        first = " ".join(line.strip() for line in str(error).strip().splitlines()[:2])
    said = first if isinstance(error, OSError | ValueError) else f"{type(error).__name__}: {first}"
    return f"{said.rstrip('.')}."
