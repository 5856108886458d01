"""What a certificate is about: a policy and a rule with their options, and the code that they are."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import attrs

import talon_core
from talon_core.basics import records
from talon_core.certificates.code import (
    UntoldError,
    is_held,
    package_of,
    patched,
    running_digest,
    source_file,
)
from talon_core.errors import is_whole, naming, written
from talon_core.policy import TreePolicy
from talon_core.rule import AcceptanceRule

OWN = "talon_strategies"
"""The package of TALON's own policies and rules; its tests certify every one of them."""


@attrs.frozen
class Subject:
    """What a certificate is about.

    Attributes:
        policy: the policy's class and options, without those in `varied`; None without a policy.
        rule: the rule's class and options.
        varied: options of the policy that worlds set, so that any number of them from 1 on is meant.
        code: for each package that is not TALON's, the SHA-256 of its code, see `talon_core.certificates.code.digest`.
        talon: TALON's version, which stands for its code.
    """

    policy: Mapping[str, Any] | None
    rule: Mapping[str, Any]
    varied: tuple[str, ...]
    code: Mapping[str, str]
    talon: str

    @classmethod
    def of(cls, policy: TreePolicy | None, rule: AcceptanceRule, varied: Iterable[str] = ()) -> "Subject":
        """The subject that a policy and a rule are now, by the files that their code is in.

        Raises:
            UntoldError: if a class is not what a module's file says, a file has changed since it was loaded, or an
                option is more than a plain value.
        """
        packages: dict[str, Path] = {}
        told = None if policy is None else _told("tree policy", policy, packages)
        taken: tuple[str, ...] = ()
        if told is not None:
            options = told["options"]
            taken = tuple(sorted(name for name in {*varied} & {*options} if is_variable(options[name])))
            told["options"] = {name: value for name, value in told["options"].items() if name not in taken}
        ruling = _told("rule", rule, packages)
        code = {name: running_digest(name, packages[name]) for name in sorted(packages)}
        return cls(told, ruling, taken, code, talon_core.__version__)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Subject":
        """The subject out of plain data.

        Raises:
            ValueError: if it is none; the sentence names the field and the value.
        """
        found: Subject = records.make(cls, data, READERS, "subject")
        return found


def is_variable(value: Any) -> bool:
    """Whether worlds may set another value in the place of this one: 0 and None may be no numbers but words."""
    return is_whole(value) and bool(value >= 1)


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ValueError(f"is {written(value)}; it must be a list of texts")
    return tuple(value)


READERS: Mapping[str, records.Reader] = {
    "policy": records.maybe(records.dictionary),
    "rule": records.dictionary,
    "varied": _texts,
    "code": records.table(records.words),
    "talon": records.words,
}


def packages_of(cls: type) -> dict[str, Path]:
    """The packages, not TALON's own, that hold the code of a class and of those that it inherits from.

    Returns:
        For each the folder, or the file of a module that is in no package; classes without a file have none.
    """
    found = (_package(base) for base in cls.__mro__)
    return dict(one for one in found if one is not None)


def is_own(part: object) -> bool:
    """Whether a policy or rule came with TALON, so that TALON's own tests certify it.

    That is told by its code: the class is what a module of TALON's own package holds under its name, in a file beside
    this package, and among those that were installed with it. Neither a name nor a subclass is enough, and no method
    may have been replaced while Python ran. Of a part that is made of others, all of them must have come with TALON.
    """
    file, folder = source_file(type(part)), own_folder()
    if file is None or not file.is_relative_to(folder):
        return False
    if _recorded(folder) and file not in _recorded(folder):
        return False
    return patched(part) is None and all(map(is_own, _within(part)))


def _within(part: object) -> Iterator[object]:
    """The parts that a part is made of: its options that are such, alone or in a tuple."""
    cls: Any = type(part)
    for field in attrs.fields(cls) if attrs.has(cls) else ():
        value = getattr(part, field.name)
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, TreePolicy | AcceptanceRule):
                yield one


def own_folder() -> Path:
    """Where TALON's own policies and rules are: beside `talon_core` where it is installed, elsewhere in a checkout."""
    root = Path(talon_core.__file__).resolve().parents[1]
    return root / OWN if (root / OWN).is_dir() else root / "strategies" / OWN


@cache
def _recorded(folder: Path) -> frozenset[Path]:
    """The files of a folder that were installed with TALON; none in a checkout, which keeps no such record."""
    try:
        files = distribution("talon-core").files or []
    except PackageNotFoundError:
        return frozenset()
    found = (Path(str(file.locate())).resolve() for file in files if file.parts[0] == OWN)
    return frozenset(file for file in found if file.is_relative_to(folder))


def _told(kind: str, part: object, packages: dict[str, Path]) -> dict[str, Any]:
    """A part's class and options as plain values; its packages join `packages`."""
    cls = type(part)
    for base in cls.__mro__:
        if source_file(base) is None and not _is_shared(base):
            raise UntoldError(
                f"the code of {naming(kind, part)} cannot be told: {base.__qualname__} is not in a module's file under "
                "that name; move it from the notebook, script or function into a module"
            )
    replaced = patched(part)
    if replaced is not None:
        raise UntoldError(
            f"the code of {naming(kind, part)} cannot be told: {replaced} is not the method of its file; it was "
            "replaced while Python ran"
        )
    packages.update(packages_of(cls))
    options: dict[str, Any] = {}
    for field in attrs.fields(cls) if attrs.has(cls) else ():
        if field.init:
            options[field.alias] = _plain(kind, part, field.alias, getattr(part, field.name), packages)
    return {"class": f"{cls.__module__}.{cls.__qualname__}", "options": options}


def _plain(kind: str, part: object, option: str, value: object, packages: dict[str, Path]) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(kind, part, option, one, packages) for one in value]
    if attrs.has(type(value)):  # a policy around another one
        return _told(kind, value, packages)
    raise UntoldError(
        f"the option '{option}' of {naming(kind, part)} is of type {type(value).__name__}; a certificate can name "
        "numbers, texts, lists of them, and attrs objects of such"
    )


def _package(cls: type) -> tuple[str, Path] | None:
    """The outermost package that a class is in, and where; None for one of TALON's, of Python's, or without a file."""
    return None if _is_shared(cls) else package_of(cls)


def _is_shared(cls: type) -> bool:
    """Whether a class is Python's, or TALON's, whose version stands for it."""
    file = source_file(cls)
    core = Path(talon_core.__file__).resolve().parent
    ours = file is not None and any(file.is_relative_to(own) for own in (core, own_folder()))
    return ours or (is_held(cls) and cls.__module__.partition(".")[0] in sys.stdlib_module_names - {"__main__"})
