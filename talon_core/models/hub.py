"""Whether the Hugging Face Hub is there to be asked, found out before anything waits for its retries."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any

from talon_core.errors import first_line
from talon_core.models.errors import ModelError
from talon_core.models.network import SECONDS_UNTIL_SILENT, knock

SECONDS_UNTIL_NOTE = SECONDS_UNTIL_SILENT
"""After so long without an answer the user is told what is waited for."""

SECONDS_UNTIL_GIVEN_UP = 10.0
"""As long as the hub's own client waits for one answer; it would ask five times. If nothing at all can be connected to,
nobody waits longer than until the note."""

NOTHING_GIVEN: Mapping[str, Any] = MappingProxyType({})

_log = logging.getLogger("talon_core.models")


def only_local(repo: str, given: Mapping[str, Any] = NOTHING_GIVEN) -> bool:
    """Whether a Hugging Face id must be read from the hub's cache, because the hub does not answer.

    Args:
        repo: the id.
        given: `revision`, `cache_dir`, `subfolder` and `token`, where users gave them to `from_pretrained`.

    Raises:
        ModelError: if the hub does not answer and the cache has no such repository. What the hub has to say about the
            id, such as that there is none, is left to whoever asks for the files.
    """
    from huggingface_hub import constants, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    silence = _silence(repo, given.get("token"))
    if silence is None:
        return False
    where = {option: given[option] for option in ("cache_dir", "revision") if given.get(option) is not None}
    try:
        config = str(PurePosixPath(given.get("subfolder") or "", "config.json"))
        cached = isinstance(try_to_load_from_cache(repo, config, **where), str)
    except HFValidationError:
        cached = False
    if not cached:
        raise ModelError(
            f"there is no folder '{repo}', and {constants.ENDPOINT}, which may know such an id, does not answer "
            f"({silence})"
        )
    return True


def _silence(repo: str, token: str | bool | None) -> str | None:
    """Why the hub does not answer; None if it does, whatever it says."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    outcome: list[str | None] = []

    def ask() -> None:
        try:
            HfApi(token=token).model_info(repo, timeout=SECONDS_UNTIL_GIVEN_UP)
        except (HfHubHTTPError, HFValidationError):
            outcome.append(None)
        except Exception as error:  # its HTTP library has changed before, and the errors with it
            outcome.append(first_line(error))
        else:
            outcome.append(None)

    asking = threading.Thread(target=ask, daemon=True)  # looking a name up may hang for longer than any timeout
    asking.start()
    answered = knock(constants.ENDPOINT)
    asking.join(SECONDS_UNTIL_NOTE)
    if asking.is_alive():
        if not answered.is_set():
            return f"nothing answered within {SECONDS_UNTIL_NOTE:g} seconds"
        _log.warning("waiting for %s to answer", constants.ENDPOINT)
        asking.join(SECONDS_UNTIL_GIVEN_UP - SECONDS_UNTIL_NOTE)
    return outcome[0] if outcome else f"nothing came within {SECONDS_UNTIL_GIVEN_UP:.0f} seconds"
