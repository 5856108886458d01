"""Packages whose names are imported on first use: what is loaded when, and that modules do not hide what they hold."""

import subprocess
import sys

import pytest

import talon_core
import talon_core.testing

PACKAGES = [talon_core, talon_core.testing]


def python(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_every_public_name_is_there_and_is_no_module(package):
    for name in package.__all__:
        assert not isinstance(getattr(package, name), type(sys)), name
        assert name in dir(package)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_an_unknown_name_is_an_error_in_pythons_words(package):
    with pytest.raises(AttributeError, match=rf"^module '{package.__name__}' has no attribute 'nonsense'$"):
        package.nonsense  # noqa: B018


def test_neither_package_loads_anything_heavy_before_a_name_is_used():
    loaded = python("import sys, talon_core.testing; print(*sys.modules)")
    assert not {"numpy", "torch", "transformers", "hypothesis", "attrs", "pytest"} & set(loaded)
    loaded = python("import sys; from talon_core.testing import TableDrafter; print(*sys.modules)")
    assert "numpy" in loaded
    assert not {"torch", "transformers", "hypothesis"} & set(loaded)


def test_a_function_is_not_hidden_by_a_module_of_its_name_that_is_imported_first_or_later():
    code = (
        "import talon_core.certify.trial, talon_core.certify.worlds\n"
        "from talon_core.testing.odd_policies import Erratic\n"
        "from talon_core.testing import certify, odd_policies, worlds\n"
        "import talon_core.certify.counterexample\n"
        "from talon_core import testing\n"
        "print(*(type(one).__name__ for one in (certify, odd_policies, worlds)))\n"
        "print(testing.certify is certify, testing.worlds is worlds)"
    )
    assert python(code) == ["function", "function", "function", "True", "True"]
