"""Certificates in files: those of this machine's user, and those that plugins ship."""

import hashlib
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import attrs
from attrs.validators import deep_mapping, ge, instance_of, le

import talon_core
from talon_core.certify.code import UntoldError, running_digest
from talon_core.certify.subject import Subject, loaded_from, packages_of
from talon_core.paths import data_folder, write_whole
from talon_core.policy import TreePolicy
from talon_core.rule import AcceptanceRule

FORMAT = "talon certificate 1"
"""What a file says of itself, so that no other JSON is taken for a certificate."""

WORLDS = 2000
"""How many worlds make a certificate, where nothing else is said; one in fewer is not kept, and counts for nothing."""

TOLERANCE = 1e-12
"""The largest difference of two probabilities that adding in another order may make."""

SHIPPED = "talon_certificates"
"""The folder, inside a plugin's package, of the certificates that it ships."""

LOG = logging.getLogger(__name__)

_text = instance_of(str)
_texts = partial(deep_mapping, _text, _text, instance_of(dict))


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

    policy: str = attrs.field(validator=_text)
    rule: str = attrs.field(validator=_text)
    subject: Subject
    worlds: int = attrs.field(validator=[instance_of(int), ge(WORLDS)])
    accepting: int = attrs.field(validator=[instance_of(int), ge(0)])
    largest_error: float = attrs.field(validator=[instance_of(float), ge(0.0), le(TOLERANCE)])
    seed: int = attrs.field(validator=[instance_of(int), ge(0)])
    date: str = attrs.field(validator=_text)
    versions: Mapping[str, str] = attrs.field(validator=_texts())
    file: Path
    package: str | None


def certificates_folder() -> Path:
    """Where the user's own certificates are."""
    return data_folder() / "certificates"


def write(record: Mapping[str, Any], file: Path) -> None:
    """Write a certificate as a file for people to read, as a whole or not at all; its folder is made.

    Args:
        record: see `talon_core.testing.certify.Certificate.record`.
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
    subject = hashlib.sha256(json.dumps(record["subject"], sort_keys=True).encode()).hexdigest()[:12]
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
    fields = [field.name for field in attrs.fields(Kept) if field.name not in ("subject", "file", "package")]
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise ValueError(f"its format is not '{FORMAT}'")
        kept = Kept(**{name: found[name] for name in fields}, subject=_subject(found), file=file, package=package)
        least = 0 if kept.subject.policy is None else 1  # without a policy nothing is drafted
        if not least <= kept.accepting <= kept.worlds:
            raise ValueError(f"something drafted was accepted in {kept.accepting} of {kept.worlds} worlds")
        return kept
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"'{file}' is no certificate: {error.args[0] if error.args else error}") from error
    except KeyError as error:
        raise ValueError(f"'{file}' is no certificate: it lacks {error}") from error


def _subject(found: Mapping[str, Any]) -> Subject:
    told = found["subject"]
    subject = Subject(told["policy"], told["rule"], tuple(told["varied"]), told["code"], told["talon"])
    if found["drafter"] != RANDOM:
        raise ValueError(f"its drafter is {found['drafter']!r}; one that counts was made with {RANDOM}")
    return subject


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
