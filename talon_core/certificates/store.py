"""Certificates in files: those of this machine's user, and those that plugins ship."""

import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import attrs

import talon_core
from talon_core.basics import records
from talon_core.basics.paths import data_folder, small_text, write_whole
from talon_core.certificates.code import UntoldError, loaded_from, running_digest
from talon_core.certificates.subject import Subject, packages_of
from talon_core.errors import written
from talon_core.policy import TreePolicy
from talon_core.rule import AcceptanceRule

FORMAT = "talon certificate 1"
"""What a file says of itself, so that no other JSON is taken for a certificate."""

WORLDS = 2000
"""How many worlds make a certificate, where nothing else is said; one in fewer is not kept, and counts for nothing."""

LARGEST = 2**20
"""Bytes of a file that may be a certificate; they are about two thousand."""

TOLERANCE = 1e-12
"""The largest difference of two probabilities that adding in another order may make."""

SHIPPED = "talon_certificates"
"""The folder, inside a plugin's package, of the certificates that it ships."""

LOG = logging.getLogger(__name__)


@attrs.frozen
class Kept:
    """A certificate that was read from a file.

    Attributes:
        policy: as a spec, for people; `subject` decides what it is about.
        rule: likewise.
        subject: what it is about.
        worlds: in how many worlds the law was computed; at least `WORLDS`.
        accepting: in how many of them a drafted token could be accepted.
        largest_error: the largest difference of two probabilities.
        seed: of the worlds.
        date: when it was made, ISO 8601.
        versions: of Python and the packages that matter.
        file: where it was read.
        package: the package that ships it; None if it is the user's own.
    """

    policy: str
    rule: str
    subject: Subject
    worlds: int
    accepting: int
    largest_error: float
    seed: int
    date: str
    versions: Mapping[str, str]
    file: Path
    package: str | None


def certificates_folder() -> Path:
    """Where the user's own certificates are."""
    return data_folder() / "certificates"


def write(record: Mapping[str, Any], file: Path) -> None:
    """Write a certificate as a file for people to read, as a whole or not at all; its folder is made.

    Args:
        record: see `talon_core.certify.trial.Certificate.record`.
        file: where to; what was there before is replaced.

    Raises:
        OSError: if it cannot be written.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, json.dumps({"format": FORMAT, **record}, indent=2, ensure_ascii=False) + "\n")


def keep(record: Mapping[str, Any]) -> Path:
    """Write a certificate where TALON looks for them; one about the same subject is replaced.

    Returns:
        The file.

    Raises:
        OSError: if it cannot be written.
    """
    subject = records.sha256_of(record["subject"])[:12]
    name = "-".join(re.sub(r"[^a-z0-9-]", "", str(record[part]).partition(":")[0]) for part in ("policy", "rule"))
    file = certificates_folder() / f"{name}-{subject}.json"
    write(record, file)
    return file


def read(file: Path, package: str | None = None) -> Kept:
    """Read a certificate.

    Args:
        file: where it is.
        package: the package that ships it.

    Raises:
        ValueError: if it is none; the sentence says why.
        OSError: if it cannot be read.
    """
    text = small_text(file, LARGEST)
    try:
        return _kept(records.parsed(text), file, package)
    except ValueError as error:
        raise ValueError(f"'{file}' is no certificate: {error}") from error


def _kept(found: Any, file: Path, package: str | None) -> Kept:
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise ValueError(f"its format is not '{FORMAT}'")
    if found.get("drafter") != RANDOM:
        raise ValueError(f"its 'drafter' is {written(found.get('drafter'))}; one that counts was made with {RANDOM!r}")
    told = {name: found[name] for name in READERS if name in found}
    as_they_are: Mapping[str, records.Reader] = {"file": lambda file: file, "package": lambda package: package}
    kept: Kept = records.make(
        Kept, {**told, "file": file, "package": package}, {**READERS, **as_they_are}, "certificate"
    )
    least = 0 if kept.subject.policy is None else 1  # without a policy nothing is drafted
    if not least <= kept.accepting <= kept.worlds:
        raise ValueError(f"something drafted was accepted in {kept.accepting} of {kept.worlds} worlds")
    return kept


def _error(value: Any) -> float:
    found = records.amount(value)
    if found > TOLERANCE:
        raise ValueError(f"is {found}; it must be at most {TOLERANCE}")
    return found


READERS: Mapping[str, records.Reader] = {
    "policy": records.words,
    "rule": records.words,
    "subject": records.one(Subject.from_dict),
    "worlds": partial(records.whole, least=WORLDS),
    "accepting": records.whole,
    "largest_error": _error,
    "seed": records.whole,
    "date": records.words,
    "versions": records.table(records.words),
}


RANDOM = "random tables"
"""What drafts in the worlds of a certificate that says something of every drafter."""


def in_folder(folder: Path, package: str | None = None) -> Iterator[Kept]:
    """The certificates of a folder; what cannot be read is left out, with a warning."""
    try:
        files = sorted(folder.glob("*.json"))
    except OSError as error:
        LOG.warning("certificates in '%s' are left out: %s", folder, error.strerror or error)
        return
    for file in files:
        try:
            yield read(file, package)
        except ValueError as error:
            LOG.warning("%s; it is left out", error)
        except OSError as error:
            LOG.warning("certificate '%s' cannot be read: %s; it is left out", file, error.strerror or error)


def every_certificate(classes: Iterable[type]) -> Iterator[Kept]:
    """The user's own certificates, then those that the packages of some classes ship."""
    yield from in_folder(certificates_folder())
    packages: dict[str, Path] = {}
    for cls in classes:
        packages.update(packages_of(cls))
    yield from _shipped(packages)


def why_not(kept: Kept) -> str | None:
    """Why a certificate counts for nothing now; None if it counts for those policies and rules that it is about."""
    if kept.subject.talon != talon_core.__version__:
        return f"it is about TALON {kept.subject.talon}, and this is {talon_core.__version__}"
    for package, code in kept.subject.code.items():
        where = loaded_from(package)
        if where is None:
            return f"'{package}' is not loaded"
        try:
            if running_digest(package, where) != code:
                return f"the code of '{package}' is another one"
        except UntoldError as error:
            return str(error)
    return None


def _shipped(packages: Mapping[str, Path]) -> Iterator[Kept]:
    for name, where in packages.items():
        if where.is_dir():
            yield from in_folder(where / SHIPPED, name)


def find(policy: TreePolicy | None, rule: AcceptanceRule) -> Kept | None:
    """The certificate of a policy and a rule, as they are now; None if there is none."""
    now: dict[tuple[str, ...], Subject] = {}
    try:
        for kept in every_certificate(type(part) for part in (policy, rule) if part is not None):
            varied = kept.subject.varied
            if varied not in now:
                now[varied] = Subject.of(policy, rule, varied)
            if now[varied] == kept.subject:
                return kept
    except UntoldError:
        pass  # no certificate can belong to it
    return None
