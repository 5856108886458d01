"""Write the table of docs/peers.md from docs/figures/peers.json: `python tools/peers_table.py`.

The figures are what `talon bench compare FOLDER --out docs/figures/peers.json` has written. `--check` writes nothing,
and fails if the page has another table.
"""

import argparse
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "peers.md"
FIGURES = DOCS / "figures" / "peers.json"

HEAD = "| program | tokens/s | over TALON's plain decoding | MAT |\n|---|---|---|---|\n"
TABLE = re.compile(re.escape(HEAD) + r"(?:\|.*\n)*")

PROGRAMS = {
    "assistant": "transformers, assistant",
    "economize": "economize, TALON's head",
    "llama-cpp": "llama.cpp",
    "openvino": "OpenVINO",
    "prompt-lookup": "transformers, prompt lookup",
}
"""What the page calls peers."""


def program(method: Mapping[str, Any]) -> str:
    """What the page calls a method."""
    name = str(method["name"])
    if "peer" in method:
        peer, _, options = name.partition(":")
        tree = ", TALON's head as a tree" if peer == "openvino" and "depth=" in options else ""
        draft = re.search(r"draft=([\w-]+)", options)
        return PROGRAMS[peer] + tree + (f", `{draft[1]}`" if draft is not None else "")
    return {"none": "TALON, plain", "generate": "transformers, `generate`"}.get(name, f"TALON, `{name}`")


def table(compared: Mapping[str, Any]) -> str:
    """The table of a comparison, a row for each method, as `talon bench compare` has written it."""
    rows = []
    for method in compared["settings"]["methods"]:
        figures = compared["all"][method["name"]]
        ratio, mat = figures["ratio"], figures["mat"]
        between = f" ({ratio['low']:.2f} to {ratio['high']:.2f})" if method["name"] != compared["baseline"] else ""
        per_pass = f" {mat['median']:.2f}" if mat is not None else ""
        rows.append(
            f"| {program(method)} | {figures['tokens_per_second']:.1f} | {ratio['median']:.2f}{between} |{per_pass} |\n"
        )
    return HEAD + "".join(rows)


def main() -> int:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page has another table")
    check = parser.parse_args().check
    page = PAGE.read_text(encoding="utf-8")
    made = TABLE.sub(lambda _: table(json.loads(FIGURES.read_text(encoding="utf-8"))), page)
    if check and made != page:
        print(f"{PAGE.name} has another table than {FIGURES.name}; run python tools/peers_table.py")
        return 1
    if not check:
        PAGE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
