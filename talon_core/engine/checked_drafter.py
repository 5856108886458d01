"""What a drafter and its options say of themselves, checked: whatever is wrong is an error that names the drafter."""

import hashlib
from collections.abc import Iterable, Mapping
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from talon_core.drafter import FINAL_STATE, Ahead, AheadDraws, Drafter, DrafterSpec, Proposed, RanOn, Reading
from talon_core.engine.checked_candidates import LOGP_SLACK
from talon_core.errors import PluginError, blaming, blaming_bugs, is_whole, naming, of_the_machine, written
from talon_core.target import Behind

if TYPE_CHECKING:
    from talon_core.target import Target


def opened(spec: DrafterSpec, target: "Target") -> Drafter:
    """The drafter that a spec opens for a target.

    Raises:
        ValueError: if it does not fit the target.
        PluginError: if it fails in another way, or what is opened is no `Drafter`; the message names it.
    """
    with blaming_bugs("drafter", spec, "open"):
        drafter = spec.open(target)
    if not isinstance(drafter, Drafter):
        raise PluginError(f"{naming('drafter', spec)} returned {written(drafter)} from open; it must return a Drafter")
    checked_depth(spec, drafter)
    return drafter


def checked_features(spec: DrafterSpec, num_layers: int) -> tuple[int, ...]:
    """The hidden states that a drafter wants of a target with so many layers.

    Raises:
        PluginError: if they are no whole numbers; the message names the drafter.
    """
    with blaming_bugs("drafter", spec, "features"):
        given = spec.features(num_layers)
    numbers = [*given] if isinstance(given, tuple | list) else [None]
    if not all(map(is_whole, numbers)):
        raise PluginError(
            f"{naming('drafter', spec)} wants the hidden states {written(given)}; it must be a tuple of whole numbers, "
            f"0 to {num_layers} or FINAL_STATE ({FINAL_STATE})"
        )
    return tuple(int(one) for one in numbers if one is not None)


def files_known(cls: type[DrafterSpec], path: str) -> DrafterSpec | None:
    """The options for a drafter of a class whose files are at `path`; None if they are not of its kind.

    Raises:
        ValueError: if there are no files, or they are of its kind and cannot be used.
        PluginError: if it fails in another way, or what it returns are no options; the message names the drafter.
    """
    with blaming_bugs("drafter", cls, "of_files"):
        spec: Any = cls.of_files(path)
    if spec is not None and not isinstance(spec, DrafterSpec):
        raise PluginError(
            f"{naming('drafter', cls)} returned {written(spec)} from of_files; it must return a DrafterSpec, or None"
        )
    return spec


def checked_hash(spec: DrafterSpec) -> str:
    """The hash of the files that a drafter looks things up in.

    Raises:
        ValueError: if there are no such files.
        PluginError: if it fails in another way, or what it returns is no text; the message names the drafter.
    """
    with blaming_bugs("drafter", spec, "files_hash"):
        found: Any = spec.files_hash()
    if not isinstance(found, str):
        raise PluginError(
            f"{naming('drafter', spec)} returned {written(found)} from files_hash; it must return a text, which is "
            "empty where there are no files"
        )
    return found


def told_hash(written: str, spec: DrafterSpec, weights: Iterable[str] = ()) -> str:
    """Tells two drafters apart: by how they are written, the files that they look things up in, and their weights.

    Args:
        written: the drafter, as the user wrote it.
        spec: its options.
        weights: the hashes of the networks that what the options opened holds, in order.

    Raises:
        ValueError: if its files are not there.
        PluginError: if it fails at telling its files; the message names it.
    """
    digest = hashlib.sha256(written.encode())
    digest.update(checked_hash(spec).encode())
    for one in weights:
        digest.update(one.encode())
    return digest.hexdigest()


def described(spec: object, drafter: Drafter) -> dict[str, object]:
    """What a drafter says of its files.

    Args:
        spec: whom errors name: its options, or where there are none, itself.
        drafter: the drafter.

    Raises:
        PluginError: if it fails, or says it in another way than by name; the message names the drafter.
    """
    with blaming("drafter", spec, "describe"):
        said: Any = drafter.describe()
        if isinstance(said, Mapping):
            return dict(said)
    raise PluginError(f"{naming('drafter', spec)} returned {written(said)} from describe; it must return a mapping")


def checked_rank(cls: type[DrafterSpec], model: Any) -> int | None:
    """Where a drafter stands among those that are ready for a model.

    Raises:
        PluginError: if it fails at saying so, or what it says is no rank; the message names the drafter.
    """
    with blaming("drafter", cls, "rank_for", but=of_the_machine):
        rank: Any = cls.rank_for(model)
    if rank is not None and not is_whole(rank):
        raise PluginError(
            f"{naming('drafter', cls)} says that its rank is {written(rank)}; it must be a whole number, or None where "
            "it is not ready"
        )
    return None if rank is None else int(rank)


def checked_for_model(spec: DrafterSpec, model: Any) -> DrafterSpec:
    """A drafter's options for a model, with what is to be chosen for it chosen.

    Raises:
        ValueError: if nothing is ready for it, or they do not fit it.
        PluginError: if they fail in another way, or what they return are no options; the message names the drafter.
    """
    with blaming_bugs("drafter", spec, "for_model"):
        chosen: Any = spec.for_model(model)
    if not isinstance(chosen, DrafterSpec):
        raise PluginError(
            f"{naming('drafter', spec)} returned {written(chosen)} from for_model; it must return a DrafterSpec"
        )
    return chosen


def checked_sources(spec: object, drafter: Drafter) -> tuple[str, ...]:
    """A drafter's `sources`.

    Raises:
        PluginError: if they are no names; the message names the drafter.
    """
    with blaming("drafter", spec, "sources"):
        given: Any = drafter.sources
        sources: tuple[Any, ...] = (*given,) if isinstance(given, tuple | list) else (None,)
    if not all(isinstance(one, str) for one in sources):
        raise PluginError(f"{naming('drafter', spec)} has the sources {written(given)}; they must be a tuple of names")
    return sources


def checked_rows(spec: object, drafter: Drafter, rooms: Mapping[int, int]) -> int:
    """A drafter's `rows` for slots with so much room.

    Raises:
        PluginError: if it fails, or what it returns is no number of rows; the message names the drafter.
    """
    with blaming("drafter", spec, "rows"):
        rows: Any = drafter.rows(rooms)
    if not is_whole(rows) or rows < 0:
        raise PluginError(
            f"{naming('drafter', spec)} returned {written(rows)} from rows; it must be a whole number of at least 0"
        )
    return int(rows)


def checked_depth(spec: object, drafter: Drafter) -> int | None:
    """A drafter's `max_depth`.

    Raises:
        PluginError: if it is no number of tokens; the message names the drafter.
    """
    with blaming("drafter", spec, "max_depth"):
        depth: Any = drafter.max_depth
    if depth is None:
        return None
    if not is_whole(depth) or depth < 0:
        raise PluginError(
            f"{naming('drafter', spec)} has a max_depth of {written(depth)}; it must be a whole number of at least 0, "
            "or None where there is no limit"
        )
    return int(depth)


def checked_resume(drafter: object, given: object, length: int) -> int:
    """What a drafter has answered to `resume`: of how many tokens it knows all that it needs.

    Args:
        drafter: who has answered, for the message.
        given: the answer.
        length: tokens that the target has taken over.

    Raises:
        PluginError: if it is no number of tokens, or larger than `length`; the message names the drafter.
    """
    if not is_whole(given) or not 0 <= given <= length:
        raise PluginError(
            f"{naming('drafter', drafter)} returned {written(given)} from resume; it must be a number of tokens, at "
            f"most {length}"
        )
    return int(given)


def checked_ahead(drafter: object, given: object, vocab_size: int, most: int, drawn: bool) -> Ahead | None:
    """What a drafter says was run ahead, as a new object.

    Args:
        drafter: whom errors name.
        given: what it says.
        vocab_size: the target's.
        most: drafted tokens that there may be.
        drawn: whether they were to be drawn.

    Raises:
        PluginError: if it is no `Ahead` of such a chain; the message names the drafter.
    """
    if given is None:
        return None

    def fail(what: str) -> PluginError:
        return PluginError(f"{naming('drafter', drafter)} {what}")

    if not isinstance(given, Ahead):
        raise fail(f"returned {written(given)} from ahead; it must return an Ahead, or None")
    with blaming("drafter", drafter, "ahead"):
        tokens: Any = [*given.drafted]
        logp: Any = given.logp
        seconds = [checked_seconds(drafter, each, "ahead") for each in given.seconds]
    if not isinstance(logp, np.ndarray) or logp.dtype != np.float64 or logp.ndim != 2:
        raise fail("gave no log-probabilities of candidates from ahead; they must be float64, of shape (layers, width)")
    if not len(seconds) == len(logp) >= max(len(tokens), 1) or not logp.shape[1]:
        raise fail(
            f"gave {len(tokens)} tokens, log-probabilities of shape {logp.shape} and {len(seconds)} times from ahead; "
            "each layer has a time and candidates, and at most one token"
        )
    if len(tokens) > most:
        raise fail(f"drafted {len(tokens)} tokens ahead; at most {most} fit the round")
    if not all(is_whole(token) and 0 <= token < vocab_size for token in tokens):
        raise fail(f"drafted {written(tokens)} ahead; the target's vocabulary has ids 0 to {vocab_size - 1}")
    if not logp.max() <= LOGP_SLACK or not logp[: len(tokens), 0].min(initial=0.0) > -np.inf:  # NaN if there is one
        raise fail("gave a candidate a log-probability from ahead that is not a finite number of at most 0")
    if tokens and (given.draws is not None) is not drawn:
        raise fail(
            "says from ahead that tokens were drawn, and the likeliest were asked for"
            if given.draws is not None
            else "does not say from ahead how tokens were drawn that were to be"
        )
    if given.draws is None:
        return Ahead(tokens, np.minimum(logp, 0.0), seconds)
    with blaming("drafter", drafter, "ahead"):
        by_law: Any = [*given.draws.logp]
    if len(by_law) != len(tokens) or not all(isinstance(one, float) and -np.inf < one <= LOGP_SLACK for one in by_law):
        raise fail(
            f"gave the log-probabilities {written(by_law)} of {len(tokens)} tokens that were drawn ahead; each has "
            "a finite number of at most 0"
        )
    draws = AheadDraws([min(one, 0.0) for one in by_law], given.draws.law)
    return Ahead(tokens, np.minimum(logp, 0.0), seconds, draws)


def checked_ran_on(drafter: object, given: object) -> RanOn:
    """What a drafter says of `run_on`.

    Raises:
        PluginError: if it is no `RanOn`; the message names the drafter.
    """
    if not isinstance(given, RanOn):
        raise PluginError(f"{naming('drafter', drafter)} returned {written(given)} from run_on; it must return a RanOn")
    return RanOn(checked_seconds(drafter, given.seconds, "run_on"), _checked_reading(drafter, given.reading))


def _checked_reading(drafter: object, given: object) -> Reading | None:
    if given is not None and not isinstance(given, Reading):
        raise PluginError(
            f"{naming('drafter', drafter)} says that it has read {written(given)}; it must be a Reading, or None "
            "where it has read nothing"
        )
    return given


def checked_likeliest(drafter: object, given: object) -> float | None:
    """How likely a drafter says that its best guess is, as a natural log-probability; None where it cannot tell.

    Args:
        drafter: whom errors name.
        given: what it says.

    Raises:
        PluginError: if it is none; the message names the drafter.
    """
    if given is None or (isinstance(given, float) and given <= LOGP_SLACK):
        return given
    raise PluginError(
        f"{naming('drafter', drafter)} returned {written(given)} from likeliest; it must return a log-probability, a "
        "float of at most 0, or None"
    )


def checked_guessable(drafter: object, given: object) -> Behind | None:
    """Where a drafter may have a guess that is likely enough; None where it does not say.

    Args:
        drafter: whom errors name.
        given: what it says.

    Raises:
        PluginError: if it is no `Behind`; the message names the drafter.
    """
    if given is None or (isinstance(given, Behind) and all(map(_is_list_of_ids, (given.tokens, given.pairs)))):
        return given
    raise PluginError(
        f"{naming('drafter', drafter)} returned {written(given)} from guessable; it must return None, or a Behind "
        "whose tokens and pairs are contiguous arrays of shape (n,), int64"
    )


def _is_list_of_ids(given: object) -> bool:
    return isinstance(given, np.ndarray) and given.ndim == 1 and given.dtype == np.int64 and given.flags.c_contiguous


def checked_proposal(drafter: object, given: object, frontiers: int) -> Proposed:
    """What a drafter has answered to so many frontiers, as a new object; the candidates are not looked at.

    Raises:
        PluginError: if it is no `Proposed` with as many candidates; the message names the drafter.
    """
    if not isinstance(given, Proposed):
        raise PluginError(
            f"{naming('drafter', drafter)} returned {type(given).__name__} from propose; it must return a Proposed"
        )
    with blaming("drafter", drafter, "propose"):
        candidates: Any = given.candidates
        passes: Any = given.draft_passes
        reading: Any = given.reading
        prepared: Any = given.prepared
        ran_in: Any = given.ran_in
    if not isinstance(candidates, (list, tuple)) or len(candidates) != frontiers:
        count = f"{len(candidates)} items" if isinstance(candidates, list | tuple) else type(candidates).__name__
        raise PluginError(
            f"{naming('drafter', drafter)} proposed {count}; it must propose a list of {frontiers} Candidates, one per "
            "frontier"
        )
    if not is_whole(passes) or passes < 0:
        raise PluginError(
            f"{naming('drafter', drafter)} says that it took {written(passes)} draft passes; it must be a whole number "
            "of at least 0"
        )
    _checked_reading(drafter, reading)
    if not isinstance(prepared, bool):
        raise PluginError(
            f"{naming('drafter', drafter)} says {written(prepared)} of whether its passes were being recorded; it must "
            "be True or False"
        )
    if ran_in != 0.0:
        ran_in = checked_seconds(drafter, ran_in, "propose")
    return Proposed(list(candidates), int(passes), reading, prepared, ran_in)


def checked_seconds(drafter: object, given: object, method: str) -> float:
    """Seconds that a drafter has spent, by its own clock.

    Raises:
        PluginError: if they are none; the message names it.
    """
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0.0 <= given < inf:
        raise PluginError(
            f"{naming('drafter', drafter)} says in {method} that {written(given)} seconds were spent; that must be a "
            "number of at least 0"
        )
    return float(given)
