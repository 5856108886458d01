"""Every drafter with a real network: the exact law of several rounds is the target's own, every draw enumerated."""

from typing import Any

import numpy as np
import pytest
import torch

from talon_core.certify.exact import ancestral_law, distance
from talon_core.decoding.decoder import Decoder
from talon_core.decoding.loading import decoder_for_model
from talon_core.plugins.parts import Parts
from talon_core.request import Request
from talon_core.sampling import Sampling
from talon_tests.begun_texts import begun_law
from talon_tests.random_drafters import DRAFTERS, VOCAB, drafter_specs, random_target

POLICIES = ("talon:budget=7,top_k=2,mu=0.1", "eagle2:budget=5,depth=2,top_k=2", "chain:length=2")
WITH_EVERY_POLICY = ("eagle3", "medusa", "datastore")
"""One that reads the paths of the tree, one that guesses for places, and one that looks texts up."""

COMBINATIONS = [
    pytest.param(drafter, policy, id=f"{policy.partition(':')[0]}-{drafter}", marks=marks)
    for policy in POLICIES
    for drafter in DRAFTERS
    for marks in [() if policy == POLICIES[0] or drafter in WITH_EVERY_POLICY else pytest.mark.matrix]
]
"""Every drafter with the policy that asks most of it, and every policy with each kind of drafter; the others are the
matrix."""


@pytest.fixture(scope="module")
def model() -> Any:
    return random_target()


@pytest.fixture(scope="module")
def specs(model: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return drafter_specs(model, tmp_path_factory.mktemp("heads"))


class Plain:
    """The model alone, as `ancestral_law` asks for it."""

    context_length = None

    def __init__(self, model: Any) -> None:
        self._model = model

    def after(self, prefix: list[int]) -> np.ndarray:
        with torch.inference_mode():
            return self._model(input_ids=torch.tensor([prefix]), use_cache=False).logits[0, -1].numpy()


REQUEST = Request(ids=np.array([0, 2, 1, 0, 2]), max_new_tokens=4, sampling=Sampling(do_sample=True))


@pytest.fixture(scope="module")
def truth(model: Any) -> Any:
    return ancestral_law(Plain(model), REQUEST)  # type: ignore[arg-type]


def decoder_of(model: Any, spec: str, policy: str) -> Decoder:
    return decoder_for_model(model, None, Parts(spec, policy))


@pytest.mark.parametrize(("drafter", "policy"), COMBINATIONS)
def test_the_law_of_several_rounds_is_the_targets(
    model: Any, specs: dict[str, str], truth: Any, drafter: str, policy: str
) -> None:
    law = begun_law(decoder_of(model, specs[drafter], policy), REQUEST)
    assert len(law) == VOCAB**4
    assert distance(law, truth) <= 1e-12


def test_so_it_is_where_a_policy_chooses_who_drafts(model: Any, specs: dict[str, str], truth: Any) -> None:
    law = begun_law(decoder_of(model, specs["hybrid"], "bandit:of=chain[length=1],drafters=true"), REQUEST)
    assert len(law) == VOCAB**4
    assert distance(law, truth) <= 1e-12


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_something_is_accepted_and_something_is_not(model: Any, specs: dict[str, str], drafter: str) -> None:
    """Otherwise the enumeration above would show little."""
    decoder, missing = decoder_of(model, specs[drafter], POLICIES[0]), {"something", "nothing more"}
    for seed in range(6):
        for round_ in decoder.run(Request(REQUEST.ids, 20, REQUEST.sampling, seed=seed)):
            if round_.accepted > 0:
                missing.discard("something")
            if round_.accepted < len(round_.tree) - 1:
                missing.discard("nothing more")
        if not missing:
            break
    assert not missing


def test_every_built_in_drafter_is_here() -> None:
    from talon_core.plugins.registry import load_registry

    entries = load_registry().entries["drafter"].values()
    ours = {entry.name for entry in entries if entry.plugin.startswith("talon-core:")}
    assert ours == {drafter.partition(":")[0].removesuffix("-prefix") for drafter in DRAFTERS}
