"""A model loaded once for a command, quietly, and what the commands do with it."""

import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs
from rich.console import RenderableType

from talon_core.cli.output import debugging, stderr
from talon_core.decoding.loading import decoder_for_model
from talon_core.decoding.source import Source
from talon_core.engine.bounds import Bounds
from talon_core.models.loading import load_model, token_text
from talon_core.pictures.render import render_tree, what_came_of
from talon_core.plugins.parts import Resolved

if TYPE_CHECKING:
    from talon_core.decoding.decoder import Decoder
    from talon_core.profiles.profile import Profile
    from talon_core.request import Result


@attrs.frozen(eq=False)
class Session:
    """A loaded model.

    Attributes:
        name: as the user gave it.
        model: a transformers causal LM.
        tokenizer: its tokenizer.
        options: that it was loaded with, as for `load_model`.
    """

    name: str
    model: Any
    tokenizer: Any
    options: Mapping[str, Any] = attrs.field(factory=dict)

    @property
    def source(self) -> Source:
        """What it was loaded by."""
        return Source(self.name, self.options)

    def decoder(
        self,
        resolved: Resolved,
        profile: "Profile | None" = None,
        other_machine: bool = False,
        bounds: Bounds = Bounds(),  # noqa: B008 - it is frozen
    ) -> "Decoder":
        """A decoder over the model; several may share it.

        Args:
            resolved: what else it is made of.
            profile: what passes take; measured while it decodes by default.
            other_machine: take a profile of another machine, too.
            bounds: how much is taken on at a time.

        Raises:
            ValueError: if the profile is of another machine, and that was not said; the sentence names what differs.
        """
        decoder = decoder_for_model(self.model, self.tokenizer, resolved, profile, self.source, bounds)
        if profile is not None:
            from talon_core.bench.environment import describe_environment
            from talon_core.profiles.store import check_used

            here = describe_environment(self.model, self.tokenizer, decoder.target)
            drafter = resolved.parts.drafter if isinstance(resolved.parts.drafter, str) and resolved.policy else None
            check_used(profile, profile.differences(here, here["weights_sha256"], drafter), other_machine)
        return decoder

    def token_text(self, token: int) -> str:
        """One token as text, special tokens by their names, and with the space it starts with."""
        return token_text(self.tokenizer, token)

    def picture(self, result: "Result") -> RenderableType | None:
        """The tree of one round, None if nothing was drafted.

        It is the one that accepted most, or one at least half as successful of which a part was rejected as well.
        """
        rounds = [round_ for round_ in result.rounds if len(round_.tree) > 1]
        if not rounds:
            return None
        most = max(round_.accepted for round_ in rounds)
        telling = [round_ for round_ in rounds if 2 * round_.accepted >= most and len(round_.tree) > len(round_.path)]
        best = max(telling or rounds, key=lambda round_: (round_.accepted, len(round_.tree)))
        path, own = what_came_of(best)
        number = next(number for number, round_ in enumerate(result.rounds, start=1) if round_ is best)
        return render_tree(best.tree, path, self.token_text, own, number)


def check_model_name(name: str) -> None:
    """Find a misspelt embedded model before anybody asks the network for it.

    Raises:
        LookupError: if `name` resembles an embedded model's name and cannot be anything else.
        ValueError: if it is empty.
    """
    from talon_core.models import MODELS, suggest

    if not name.strip():
        names = ", ".join(MODELS)
        raise ValueError(f"the model's name is empty; there are {names}, folders, GGUF files, and Hugging Face ids")
    near = suggest(name)
    if name not in MODELS and "/" not in name and near and not os.path.exists(name):
        raise LookupError(
            f"no model '{name}'; did you mean '{near[0]}'? There are also folders, GGUF files, and Hugging Face ids "
            "(owner/model)"
        )


def open_session(name: str, **options: Any) -> Session:
    """Load a model and its tokenizer without a word from the libraries; on a terminal, say what is being waited for.

    Args:
        name: as the user gave it.
        options: as for `load_model`.

    Raises:
        LookupError: for a misspelt embedded model.
        ValueError: if the model cannot be found, fetched or read.
    """
    from talon_core.models import MODELS, resolve

    check_model_name(name)
    path = resolve(name) if name in MODELS else name  # fetching shows its own progress, on stderr
    with stderr().status(f"loading {name}"):
        quieten_libraries()
        model, tokenizer = load_model(path, **options)
    return Session(name, model, tokenizer, options)


def torch_dtype(name: str) -> Any:
    """A format of numbers by its name, as in "float32"."""
    import torch

    return getattr(torch, name)


def quieten_libraries() -> None:
    """Switch off the bars and the advice of transformers and of the hub, unless `TALON_DEBUG` is set."""
    if debugging():
        return
    from huggingface_hub.utils.tqdm import disable_progress_bars
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    disable_progress_bars()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it tells each of its retries without a network
