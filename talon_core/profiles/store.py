"""Where profiles are: the user's own by name, those that come with TALON, and files."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from talon_core.basics.kept import Kept
from talon_core.profiles.profile import Profile

COMPUTED = Path(__file__).parent / "computed"
"""Those that were worked out from datasheets."""

KEPT = Kept("profile", "talon profile", COMPUTED, Profile.from_dict)


def profiles_folder() -> Path:
    """Where the user's own are. Nothing is created here."""
    return KEPT.folder()


def check_name(name: str) -> None:
    """Refuse what is no name.

    Raises:
        ValueError: if it is none, or that of a profile that comes with TALON.
    """
    KEPT.check_name(name)


def known_profiles() -> dict[str, Path]:
    """The files of all profiles that have a name: those that come with TALON, and the user's own."""
    return KEPT.known()


def read_profile(file: Path) -> Profile:
    """Read a file.

    Raises:
        ValueError: if it is no profile, cut off, or of another version; the sentence names it.
        OSError: if it cannot be read.
    """
    return KEPT.read(file)


def find_profile(given: str) -> Profile:
    """A profile by its name, or by its file, which ends in `.json`.

    Raises:
        LookupError: if there is none of that name.
        ValueError: if the file is no profile; see `read_profile`.
        OSError: if it cannot be read.
    """
    return KEPT.find(given)


def save_profile(profile: Profile) -> Path:
    """Keep a profile under its name; one that is there already is replaced.

    Raises:
        ValueError: if its name is none, see `check_name`.
        OSError: if it cannot be written; what was there before stays.
    """
    return KEPT.save(profile.name, as_text(profile))


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


def check_used(profile: Profile, differences: str, other_machine: bool, where: str = "here") -> None:
    """Refuse a profile of another machine, model or drafter, unless it was said that this is meant.

    Args:
        profile: it.
        differences: as `Profile.differences` gives them.
        other_machine: whether that was said.
        where: another one is to be made, for the error.

    Raises:
        ValueError: the sentence names the differences.
    """
    if differences and not other_machine:
        raise ValueError(
            f"the profile '{profile.name}' is of another machine, model or drafter: {differences}; make one {where} "
            "(talon profile measure), or say that this one is meant (--other-machine)"
        )
