"""The GPU's figures come from a script that nobody may be able to run today; it must work when somebody can."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("gpu_speed.py")


@pytest.mark.slow
@pytest.mark.models
def test_the_script_goes_through_all_its_measurements(smollm, tmp_path):
    pytest.importorskip("triton")
    out = tmp_path / "figures.json"
    subprocess.run([sys.executable, str(SCRIPT), "--smoke", "--out", str(out)], check=True, timeout=600)
    figures = json.loads(out.read_text())
    assert figures["manifest"]["smoke"] is True
    (attention,) = figures["attention"]
    assert attention["triton_microseconds"] > 0
    assert figures["model"]["verify_over_step"] > 0
    assert figures["model"]["draft_over_step"] > 0
    assert [row["batch"] for row in figures["batches"]] == [1, 2]
