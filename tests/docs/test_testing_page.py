"""The tests that the manual shows to plugin authors pass, as pytest runs them."""

import re
import subprocess
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "testing-a-plugin.md"


def test_the_tests_on_the_page_pass_under_pytest(tmp_path, forked_python):
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    shown = [block for block in blocks if "def test_" in block]
    (tmp_path / "test_page.py").write_text("\n\n".join(shown))
    warnings = ("-W", "error", "-W", "ignore:Module already imported so cannot be rewritten")  # which a fork has
    off = ("-p", "no:cacheprovider", "-p", "no:xdist")
    done = subprocess.run(
        [forked_python, "-m", "pytest", "-q", *warnings, *off, "--benchmark-disable"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    compared = 2  # besides the page's own policy, in the test of speed
    assert f"{''.join(shown).count('def test_') + compared} passed" in done.stdout


def test_the_page_names_every_fixture_with_its_arguments():
    shown = re.findall(r"^\| `(talon_\w+)", PAGE.read_text(), re.MULTILINE)
    fixtures = (PAGE.parents[1] / "talon_core" / "testing" / "fixtures.py").read_text()
    assert shown == re.findall(r"^def (talon_\w+)\(", fixtures, re.MULTILINE)
