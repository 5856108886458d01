"""Whether tables are decoded and certified where torch cannot be imported: in processes where it is not loaded."""

import json
from typing import Any

import pytest

BLOCKED = """
import json, sys
class Refusing:
    def find_spec(self, name, *_):
        if name.split(".")[0] in {"torch", "transformers"}:
            raise ImportError(f"{name} is refused")
sys.meta_path.insert(0, Refusing())
"""

ENGINES = """
import numpy as np
from talon_core import Engine, Request, TableTarget
from talon_core.plugins.fitting import rule_for
from talon_core.plugins.parts import built, made_policy, made_schedule
from talon_core.plugins.registry import load_registry
from talon_core.sampling import temperature_sampling
from talon_core.testing import TableDrafter

def texts():
    registry, rng, found = load_registry(), np.random.default_rng(0), {}
    logits, laws = 2.0 * rng.normal(size=(7, 7, 7)), rng.dirichlet(np.ones(7), size=5)
    for name, schedule in [(name, None) for name in (*POLICIES, "none")] + [("talon", "pearl")]:
        policy = made_policy(registry, name)
        rule = built(registry, "rule", rule_for(registry, policy))
        drafter = None if policy is None else TableDrafter(laws)
        engine = Engine(TableTarget(logits), rule, policy, drafter, schedule=made_schedule(registry, schedule))
        asked = [temperature_sampling(temperature) for temperature in (0.0, 0.7, 1.0)]
        sequences = [engine.submit(Request(np.array([1, 2]), 12, one, seed=3)) for one in asked]
        while not all(one.finished for one in sequences):
            engine.step()
        assert not any(one.error for one in sequences), [one.error for one in sequences]
        found[f"{name} {rule.name} {schedule}"] = [one.token_ids for one in sequences]
    return found
"""

POLICIES = ("chain", "eagle2", "sequoia", "specinfer", "sps", "talon", "talon-sampled")


def engines() -> str:
    return f"POLICIES = {POLICIES}\n{ENGINES}"


def test_engines_over_tables_decode_the_same_without_torch(process: Any) -> None:
    script = f"{BLOCKED}{engines()}\nprint(json.dumps(texts()))\nassert 'torch' not in sys.modules"
    status, out, err = process(script)
    assert (status, err) == (0, "")
    here: dict[str, Any] = {}
    exec(engines(), here)
    expected = here["texts"]()
    assert json.loads(out) == expected
    assert {name.split()[1] for name in expected} >= {"match", "rrs", "traversal", "hybrid"}
    assert all(len(text) == 12 for texts in expected.values() for text in texts)


@pytest.mark.parametrize("policy", ["talon", "specinfer:widths=2;1"])
def test_certificates_are_made_without_torch(process: Any, policy: str) -> None:
    script = f"""{BLOCKED}
from talon_core.cli import main
status = main(["certify", *sys.argv[1:], "--json"])
assert "torch" not in sys.modules
sys.exit(status)
"""
    status, out, err = process(script, "--policy", policy, "--worlds", "50")
    assert status == 0, err
    assert json.loads(out)["certified"] is True


def test_what_is_refuted_is_explained_without_torch(process: Any) -> None:
    script = f"""{BLOCKED}
from talon_core.certify.certificate import CertificationError
from talon_core.certify.trial import certify
try:
    certify("chain", "typical", worlds=100)
except CertificationError as error:
    print(error)
assert "torch" not in sys.modules
"""
    status, out, err = process(script)
    assert (status, err) == (0, "")
    assert out.startswith("REFUTED: policy chain with rule typical")
