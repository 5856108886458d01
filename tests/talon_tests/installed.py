"""The manual's examples, installed as a user would install them, in a virtual environment of their own."""

import json
import os
import shutil
import subprocess
import sysconfig
import venv
from pathlib import Path
from typing import Any

import attrs
import pytest

DOCS = Path(__file__).parents[2] / "docs"
TALON = "import sys; from talon_core.cli import main; sys.exit(main())"


@attrs.frozen
class Environment:
    """A virtual environment that sees this one's packages and has some of its own.

    Attributes:
        folder: where it is.
        forked_python: the fixture, for what would import torch and transformers.
    """

    folder: Path
    forked_python: str

    @property
    def site_packages(self) -> Path:
        return Path(sysconfig.get_path("purelib", "venv", vars={"base": str(self.folder)}))

    def python(self, *arguments: str, check: bool = True, **options: Any) -> Any:
        python = Path(sysconfig.get_path("scripts", "venv", vars={"base": str(self.folder)})) / "python"
        return run(str(python), *arguments, check=check, **options)

    def fork(self, code: str, *arguments: str, check: bool = True, **options: Any) -> Any:
        """Run code as this environment's interpreter would, in a process that has imported the models' libraries."""
        own = f"import site; site.addsitedir({str(self.site_packages)!r})\n"
        return run(self.forked_python, "-c", own + code, *arguments, check=check, **options)

    def talon(self, *arguments: str, check: bool = True) -> Any:
        return self.python("-c", TALON, *arguments, check=check)

    def json(self, *arguments: str) -> Any:
        return json.loads(self.talon(*arguments, "--json").stdout)

    def generated(self, *arguments: str) -> Any:
        """What `talon generate` gives as JSON."""
        return json.loads(self.fork(TALON, "generate", *arguments, "--json").stdout)

    def own_tests(self, folder: Path) -> Any:
        """Run the tests of a distribution's folder there."""
        code = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
        return self.fork(code, "-q", "-p", "no:cacheprovider", str(folder / "tests"), cwd=folder, check=False)


def run(*command: str, check: bool, **options: Any) -> Any:
    """Run a command offline; with `check` it must succeed."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    offline = {**own, "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}
    done = subprocess.run(command, capture_output=True, text=True, env=offline, **options)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def copied(example: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of an example of the manual, so that building it leaves nothing in the checkout."""
    copy = tmp_path_factory.mktemp("plugin") / example
    return shutil.copytree(DOCS / example, copy, ignore=shutil.ignore_patterns("__pycache__", ".*", "dist", "build"))


def environment_with(folder: Path, tmp_path_factory: pytest.TempPathFactory, forked_python: str) -> Environment:
    """An environment in which pip has installed a folder, offline."""
    made = Environment(tmp_path_factory.mktemp("environment"), forked_python)
    venv.create(made.folder, symlinks=os.name != "nt")
    ours = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    # addsitedir also reads the .pth files there, by which an editable install of TALON is found
    lines = [f"import site; site.addsitedir({path!r})\n" for path in ours]
    (made.site_packages / "parent.pth").write_text("".join(lines))
    made.python(
        *("-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
        *("--no-deps", "--no-build-isolation", "--no-index", str(folder)),
    )
    return made
