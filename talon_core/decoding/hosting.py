"""Opening a drafter in a process beside the one that decodes."""

import os
import sys
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from multiprocessing.connection import Connection
from threading import local
from typing import TYPE_CHECKING

import attrs

from talon_core.decoding.source import Source
from talon_core.defaults import CHECK_POLICY
from talon_core.drafter import Drafter, DrafterSpec
from talon_core.engine.ahead.host import Opened, serve, take_cores
from talon_core.engine.ahead.patience import Patience
from talon_core.engine.ahead.place import Place, check_usable, check_uses
from talon_core.engine.ahead.process import ProcessWorker, python
from talon_core.engine.ahead.shelf import Shelf
from talon_core.engine.text_target import TextTarget
from talon_core.errors import naming, one_line
from talon_core.inquiry import Inquirer

if TYPE_CHECKING:
    from talon_core.target import Target


@attrs.frozen
class Opening:
    """What the process is told first.

    Attributes:
        spec: the drafter's options.
        vocab_size: the target's.
        tokenizer_sha256: likewise, for drafters of texts; None if not known.
        place: where it runs.
        source: what the target's model is loaded by, for drafters that look into it; None for those of texts.
        dtype: the format of the target's weights, as "float32".
    """

    spec: DrafterSpec
    vocab_size: int
    tokenizer_sha256: str | None
    place: Place
    source: Source | None
    dtype: str


def process_worker(
    spec: object, target: "Target", place: Place, source: Source | None, patience: Patience | None = None
) -> ProcessWorker:
    """Start the process, and open the drafter there.

    Args:
        spec: the drafter's options.
        target: what it drafts for.
        place: where it runs.
        source: what the target's model was loaded by; None where nobody knows.
        patience: how long an answer may take.

    Returns:
        The worker. Where something is decoded with it, the cores that it has are taken from the threads of that.

    Raises:
        ValueError: if the drafter cannot be opened there.
    """
    if not isinstance(spec, DrafterSpec):
        raise ValueError(  # noqa: TRY004 - callers expect a ValueError for every bad part
            f"{naming('drafter', spec)} was given opened, and cannot be opened in another process; give its options"
        )
    if not spec.reads_texts and source is None:
        raise ValueError(
            f"{naming('drafter', spec)} reads more than texts, so that a process beside would have to load the model, "
            "too; give talon_core.load the model's name or path, and not an object, or draft on a thread"
        )
    dtype = str(getattr(getattr(target, "model", None), "dtype", "float32")).removeprefix("torch.")
    tokenizer, loaded = (target.tokenizer_sha256, None) if spec.reads_texts else (None, source)
    opening = Opening(spec, target.vocab_size, tokenizer, place, loaded, dtype)
    check_usable(place)
    check_uses(place, naming("drafter", spec), spec.reads_texts)
    command = python("talon_core.decoding.hosting", "host")
    lends = partial(Loan, place.number) if place.device == "cpu" else nullcontext
    try:
        return ProcessWorker(command, opening, spec, target.vocab_size, patience, lends)
    except Exception as error:  # a plugin's options may not even be sent
        raise ValueError(f"{naming('drafter', spec)} cannot be opened in another process: {one_line(error)}") from error


class _Lent(local):
    """Cores that processes beside have of one thread's, whichever of them gives its own back first."""

    def __init__(self) -> None:
        self._cores = 0
        self._threads = 0  # without any of them

    def lend(self, cores: int) -> None:
        """Compute with so many threads less."""
        import torch

        if not self._cores:
            self._threads = torch.get_num_threads()
        self._cores += cores
        torch.set_num_threads(max(1, self._threads - self._cores))

    def give_back(self, cores: int) -> None:
        """One that had so many needs them no more."""
        import torch

        self._cores -= cores
        torch.set_num_threads(max(1, self._threads - self._cores))


LENT = _Lent()


class Loan(AbstractContextManager[None]):
    """While it is entered, passes of this thread compute with so many threads less.

    Args:
        cores: how many.
    """

    def __init__(self, cores: int) -> None:
        self._cores = cores

    def __enter__(self) -> None:
        LENT.lend(self._cores)

    def __exit__(self, *error: object) -> None:
        LENT.give_back(self._cores)


def host() -> None:
    """What the process does; the last three of its arguments are the socket, the memory and the parent's number."""
    connection, shelf, parent = map(int, sys.argv[-3:])
    serve(Connection(connection), Shelf(shelf), parent, _opened)
    os._exit(0)  # whatever a plugin has started


def _opened(opening: Opening) -> Opened:
    """The drafter, for a stand-in of the target, or for its model, which is loaded here once more."""
    from talon_core.engine.checked_drafter import opened

    place = opening.place
    if place.device == "cpu":
        take_cores(place.number)
    if opening.source is None:
        target = TextTarget(opening.vocab_size, opening.tokenizer_sha256)
        drafter = _asking_nothing(opened(opening.spec, target))
        return Opened(drafter, drafter.session(), "cpu")
    import torch

    from talon_core.decoding.loading import decoder_for_model
    from talon_core.models.loading import hide_bars, load_model
    from talon_core.plugins.parts import Parts

    hide_bars()  # the target's own has shown one
    device = torch.device("cpu") if place.device == "cpu" else torch.device("cuda", place.number)
    source = opening.source
    if device.type == "cuda":
        torch.cuda.set_device(device)  # where it is loaded; else all of it would lie on the first GPU for a while
    model, tokenizer = load_model(source.name, **source.options, dtype=getattr(torch, opening.dtype))
    decoder = decoder_for_model(model.to(device), tokenizer, Parts(opening.spec, CHECK_POLICY))
    assert decoder.drafter is not None
    return Opened(_asking_nothing(decoder.drafter), decoder.engine.session(), device)


def _asking_nothing(drafter: Drafter) -> Drafter:
    if isinstance(drafter, Inquirer):
        raise ValueError(  # noqa: TRY004 - the options are wrong
            "it asks the target beside its trees, which it can do in a thread alone; draft on a thread"
        )
    return drafter
