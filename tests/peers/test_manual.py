"""The manual's table of peers, and the figures that it is made of."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_table_of_the_manual_is_made_of_its_figures():
    command = [sys.executable, str(ROOT / "tools/peers_table.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
