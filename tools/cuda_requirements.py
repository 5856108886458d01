"""Write tools/cuda_requirements.txt: what PyTorch's build for CUDA asks for, `python tools/cuda_requirements.py`.

Resolves the development environment with that build and the pins of constraints.txt, on Linux, and fails where they
conflict. Needs the network, and installs and downloads nothing but the metadata of packages.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RECORD = ROOT / "tools" / "cuda_requirements.txt"
EXTRA = "extra =="


def resolved(torch: str) -> Sequence[Mapping[str, Any]]:
    """The metadata of all packages that would be installed.

    Args:
        torch: the version, for which the build without a local label is taken: a CPU build has one.

    Raises:
        CalledProcessError: if the pins conflict with it; pip has said which.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        options = ["--dry-run", "--ignore-installed", "--quiet", "--use-feature=fast-deps", "--report", str(report)]
        wanted = ["-c", "constraints.txt", f"torch==={torch}", "--group", "dev"]
        subprocess.run([sys.executable, "-m", "pip", "install", *options, *wanted], cwd=ROOT, check=True)
        return [each["metadata"] for each in json.loads(report.read_text())["install"]]


def record(packages: Sequence[Mapping[str, Any]]) -> str:
    """What the file says."""
    torch = next(each for each in packages if each["name"] == "torch")
    needed = sorted(line for line in torch["requires_dist"] if EXTRA not in line)
    by = "`python tools/cuda_requirements.py` writes it"
    head = f"# What the build of torch {torch['version']} for CUDA asks for; {by}."
    return "\n".join([head, *needed, ""])


def main() -> None:
    """Write the file, and say how much was resolved."""
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line[:40])
    packages = resolved(pins["torch"])
    RECORD.write_text(record(packages), encoding="utf-8")
    print(f"{len(packages)} packages hold together with the build of torch {pins['torch']} for CUDA")


if __name__ == "__main__":
    main()
