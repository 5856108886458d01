"""Processors of one name are told apart, and what earlier versions noted is taken for none of them."""

import platform
from pathlib import Path

import pytest

from talon_core.basics import processors
from talon_core.basics.processors import EARLIER, named, of_earlier, processor_name
from talon_core.runtime.machine import describe_machine

EPYC = """\
processor	: 0
vendor_id	: AuthenticAMD
cpu family	: 25
model		: 17
model name	: AMD EPYC
stepping	: 1

processor	: 1
vendor_id	: AuthenticAMD
cpu family	: 25
model		: 17
model name	: AMD EPYC
stepping	: 1
"""

ARM = """\
processor	: 0
BogoMIPS	: 243.75
Features	: fp asimd
CPU implementer	: 0x41
CPU architecture: 8
CPU variant	: 0x1
CPU part	: {}
CPU revision	: 1

"""


def test_generations_that_tell_one_name_are_told_apart() -> None:
    zen4, zen3 = named(EPYC, ""), named(EPYC.replace(": 17\n", ": 1\n"), "")
    assert (zen4, zen3) == ("AMD EPYC (family 25, model 17)", "AMD EPYC (family 25, model 1)")
    assert named(EPYC.replace(": 25\n", ": 26\n"), "") == "AMD EPYC (family 26, model 17)"


def test_of_arm_which_tells_no_name_there_is_the_maker_and_the_design() -> None:
    assert named(ARM.format("0xd0c"), "aarch64") == "aarch64 (implementer 0x41, part 0xd0c)"
    both = ARM.format("0xd05") + ARM.format("0xd05") + ARM.format("0xd0b")
    assert named(both, "aarch64") == "aarch64 (implementer 0x41, part 0xd05 and 0xd0b)"
    old = "model name\t: ARMv7 Processor rev 3 (v7l)\n" + ARM.format("0xd08")
    assert named(old, "armv7l") == "ARMv7 Processor rev 3 (v7l) (implementer 0x41, part 0xd08)"


@pytest.mark.parametrize(
    "told", ["", "model name\t:\n", "cpu family\t: 25\n", "model\t\t: IBM pSeries\n", "CPU part\t: 0xd0c\n", "\x00: :"]
)
def test_where_numbers_are_not_told_the_name_stands_alone(told: str) -> None:
    assert named(told, "here") == "here"
    assert named(f"{told}\nmodel name\t: Some: Processor\n", "here") == "Some: Processor"


def test_this_machine_is_named_so_everywhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(processors, "CPUINFO", tmp_path / "cpuinfo")
    assert processor_name() == describe_machine()["cpu"] == (platform.processor() or platform.machine())
    (tmp_path / "cpuinfo").write_bytes(EPYC.encode() + b"address sizes\t: \xff\n")
    assert processor_name() == describe_machine()["cpu"] == "AMD EPYC (family 25, model 17)"


@pytest.mark.parametrize(
    ("noted", "now", "earlier"),
    [
        ("AMD EPYC", "AMD EPYC (family 25, model 17)", True),
        ("aarch64", "aarch64 (implementer 0x41, part 0xd05 and 0xd0b)", True),
        ("Xeon (Skylake, IBRS)", "Xeon (Skylake, IBRS) (family 6, model 85)", True),
        ("AMD EPYC", "AMD EPYC", False),
        ("AMD EPYC (family 25, model 1)", "AMD EPYC (family 25, model 17)", False),
        ("Xeon", "Xeon (Skylake, IBRS)", False),
        ("Xeon", "Xeon (Skylake, IBRS) (family 6, model 85)", False),
        ("Intel Xeon", "AMD EPYC (family 25, model 17)", False),
        (None, "AMD EPYC (family 25, model 17)", False),
        ("AMD EPYC", None, False),
        (1, 2, False),
        (["AMD EPYC"], ["AMD EPYC (family 25, model 17)"], False),
    ],
)
def test_a_name_without_numbers_is_one_of_an_earlier_version_where_the_rest_is_the_same(
    noted: object, now: object, earlier: bool
) -> None:
    assert of_earlier(noted, now) == (EARLIER if earlier else "")
