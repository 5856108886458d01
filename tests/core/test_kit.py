"""What the test kit says where what it needs is not installed."""

import json
import subprocess
import sys

import pytest

from talon_core import testing

ASKING = """
import json, sys
sys.modules["hypothesis"] = None
from talon_core import testing
said = {}
for name in testing.__all__:
    try:
        getattr(testing, name)
    except ModuleNotFoundError as error:
        said[name] = [str(error), error.name]
print(json.dumps(said))
"""
WITHOUT = {"TableDrafter", "TableLaws", "TalonBenchmark"}
"""Names that need nothing more."""


def test_without_hypothesis_a_name_of_the_kit_says_which_extra_brings_it():
    done = subprocess.run([sys.executable, "-c", ASKING], capture_output=True, text=True, check=True)
    missing = "needs hypothesis, which is not installed: pip install 'talon-core[testing]'"
    assert json.loads(done.stdout) == {
        name: [f"talon_core.testing.{name} {missing}", "hypothesis"] for name in {*testing.__all__} - WITHOUT
    }


def test_a_name_that_there_is_not_is_no_matter_of_an_extra():
    with pytest.raises(AttributeError, match=r"module 'talon_core\.testing' has no attribute 'chek_rule'"):
        testing.chek_rule  # noqa: B018
