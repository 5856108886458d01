"""What processors are called. Several generations tell one name, so the numbers of the design belong to it."""

import platform
import re
from collections.abc import Mapping
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")

NUMBERS: tuple[Mapping[str, str], ...] = (
    {"cpu family": "family", "model": "model"},
    {"CPU implementer": "implementer", "CPU part": "part"},
)
"""What Linux tells of the design, of x86 and of Arm, and how it is called here."""

EARLIER = " (noted by an earlier version, which did not tell processors of that name apart)"

_NUMBERED = re.compile(r"(.*) \((?:family|implementer) [^()]*\)", re.DOTALL)


def processor_name() -> str:
    """What this machine's processor is called, such as "AMD EPYC (family 25, model 17)"."""
    try:
        told = CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        told = ""
    return named(told, platform.processor() or platform.machine())


def named(told: str, otherwise: str) -> str:
    """What a processor is called.

    Args:
        told: the text of /proc/cpuinfo; empty where there is none.
        otherwise: its name where the text has none.

    Returns:
        The name, and behind it the numbers of the design where the text has them: those of all cores, where these are
        of several kinds.
    """
    found: dict[str, dict[str, None]] = {}
    for line in told.splitlines():
        field, _, value = line.partition(":")
        found.setdefault(field.strip(), {})[value.strip()] = None
    name = next(filter(None, found.get("model name", ())), otherwise)
    for numbers in NUMBERS:
        if found.keys() >= numbers.keys():
            said = ", ".join(f"{called} {' and '.join(sorted(found[field]))}" for field, called in numbers.items())
            return f"{name} ({said})"
    return name


def of_earlier(noted: object, now: object) -> str:
    """What is said behind a name that a file has, if it is this one as earlier versions noted it; else nothing.

    Args:
        noted: in a file.
        now: as `processor_name` gives it.
    """
    numbered = _NUMBERED.fullmatch(now) if isinstance(now, str) else None
    return EARLIER if numbered is not None and numbered[1] == noted else ""
