"""What Triton's interpreter cannot tell: how wide an address is, and in which order memory is read and written."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def told():
    pytest.importorskip("triton")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    path = [str(Path(__file__).parents[1]), *filter(None, [environment.get("PYTHONPATH")])]
    environment |= {"PYTHONPATH": os.pathsep.join(path)}
    command = [sys.executable, "-m", "talon_tests.compiled_code"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_offsets_are_64_bits_wide_before_they_are_multiplied(told):
    """In 32 bits the rows of a long prompt, or pages of a large cache, would be beyond what a number holds."""
    kernels = {re.match("[a-z_]+[a-z]", name)[0] for name in told["products"]}
    of_attention, of_norms = {"attend", "merge"}, {"rms_norm", "add_rms_norm"}
    assert kernels == of_attention | of_norms | {"rotary_write", "gated_unit", "commit_path", "greedy_walk_i"}
    for name, found in told["products"].items():
        assert found["every"] >= 1, name
        assert found["narrow"] == [], name


def test_the_commit_reads_all_rows_of_a_tile_before_it_writes_one(told):
    assert {*told["commits"]} == {f"commit_path_{bits}" for bits in (8, 64)}
    for name, order in told["commits"].items():
        assert order == ["ld", "bar", "st"], name
