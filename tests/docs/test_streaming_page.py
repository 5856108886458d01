"""The streaming page names every reason for which a text ends."""

import re
from pathlib import Path

from talon_core.request import FINISH_REASONS

PAGE = (Path(__file__).parents[2] / "docs" / "streaming.md").read_text()


def test_the_page_names_every_finish_reason_and_no_other():
    assert re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE) == list(FINISH_REASONS)
