"""Where profiles are: the user's own by name, those that come with TALON, and files."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from talon_core import records
from talon_core.paths import data_folder, small_text, write_whole
from talon_core.profiles.profile import Profile
from talon_core.suggestions import did_you_mean

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
ENDING = ".json"
COMPUTED = Path(__file__).parent / "computed"
"""Those that were worked out from datasheets."""


def profiles_folder() -> Path:
    """Where the user's own are. Nothing is created here."""
    return data_folder() / "profiles"


def check_name(name: str) -> None:
    """Refuse what is no name.

    Raises:
        ValueError: if it is none, or that of a profile that comes with TALON.
    """
    if not NAME.fullmatch(name) or name.endswith(ENDING):
        raise ValueError(
            f"the name '{name}' is none; it must be of letters, digits, dots, dashes and underscores, begin with a "
            f"letter or a digit, and not end in {ENDING}"
        )
    if (COMPUTED / f"{name}{ENDING}").exists():
        raise ValueError(f"the profile '{name}' comes with TALON; take another name")


def known_profiles() -> dict[str, Path]:
    """The files of all profiles that have a name: those that come with TALON, and the user's own."""
    folders = [COMPUTED, profiles_folder()]
    return {file.name.removesuffix(ENDING): file for folder in folders for file in sorted(folder.glob(f"*{ENDING}"))}


def read_profile(file: Path) -> Profile:
    """Read a file.

    Raises:
        ValueError: if it is no profile, cut off, or of another version; the sentence names it.
        OSError: if it cannot be read.
    """
    try:
        return Profile.from_dict(records.parsed(small_text(file)))
    except ValueError as error:
        raise ValueError(f"'{file}' is no profile of talon profile: {error}") from error


def find_profile(given: str) -> Profile:
    """A profile by its name, or by its file, which ends in `.json`.

    Raises:
        LookupError: if there is none of that name.
        ValueError: if the file is no profile; see `read_profile`.
        OSError: if it cannot be read.
    """
    if given.endswith(ENDING) or "/" in given or os.sep in given:
        return read_profile(Path(given))
    known = known_profiles()
    if given not in known:
        raise LookupError(f"no profile '{given}'; {did_you_mean(given, [*known])}there are: {', '.join(known)}")
    return read_profile(known[given])


def save_profile(profile: Profile) -> Path:
    """Keep a profile under its name; one that is there already is replaced.

    Raises:
        ValueError: if its name is none, see `check_name`.
        OSError: if it cannot be written; what was there before stays.
    """
    check_name(profile.name)
    file = profiles_folder() / f"{profile.name}{ENDING}"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, as_text(profile))
    return file


def as_text(profile: Profile) -> str:
    """A profile as its file has it: a line for each field, and one for each point."""
    return _lines(profile.as_dict())


def _lines(fields: Mapping[str, Any]) -> str:
    parts = []
    for name, value in fields.items():
        if isinstance(value, list) and value and isinstance(value[0], list):
            inner = ",\n".join(f"    {json.dumps(point)}" for point in value)
            parts.append(f"  {json.dumps(name)}: [\n{inner}\n  ]")
        else:
            parts.append(f"  {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def check_used(profile: Profile, differences: str, other_machine: bool) -> None:
    """Refuse a profile of another machine, model or drafter, unless it was said that this is meant.

    Args:
        profile: it.
        differences: as `Profile.differences` gives them.
        other_machine: whether that was said.

    Raises:
        ValueError: the sentence names the differences.
    """
    if differences and not other_machine:
        raise ValueError(
            f"the profile '{profile.name}' is of another machine, model or drafter: {differences}; make one here "
            "(talon profile measure), or say that this one is meant (--other-machine)"
        )
