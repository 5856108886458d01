"""What goes with which rule: the trees it is for, a policy's default rule, lossy rules, and logits processors."""

import ast
import inspect
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from transformers import LogitsProcessorList
from transformers.generation import logits_process
from transformers.models.higgs_audio_v2 import generation_higgs_audio_v2

from talon_core import AcceptanceRule, Accepted, Request, TableTarget, TreePolicy
from talon_core.certify.exact import Given
from talon_core.decoding.decoder import Decoder
from talon_core.engine.processors import REMEMBERING
from talon_core.plugins.fitting import exact_rules, rule_for
from talon_core.plugins.registry import KINDS, Registered, Registry, load_registry
from talon_core.sampling import Sampling
from talon_core.testing import TableDrafter
from talon_strategies import Block, Chain, Match, RecursiveRejection, SampledChain, Traversal

VOCAB = 4
TARGET = TableTarget(np.random.default_rng(0).normal(size=(VOCAB, VOCAB)))
DRAFTER = Given(TableDrafter(np.full((1, VOCAB), 1 / VOCAB)))


@attrs.frozen
class Cheerful(AcceptanceRule):
    """Draws from the target, and changes the last token of every round."""

    name = "cheerful"
    exact_for = frozenset()
    lossy = True

    def walk(self, tree: Any, laws: Any, choices: Any) -> Accepted:
        return Accepted(np.array([0]), (laws.draw(0, choices) + 1) % VOCAB)


@attrs.frozen
class Curious(Match):
    """`match`, with a look at every node before."""

    name = "curious"
    looks_ahead = True

    def walk(self, tree: Any, laws: Any, choices: Any) -> Accepted:
        for node in range(len(tree)):
            laws.at(node)
        return super().walk(tree, laws, choices)


def request(*processors: Any, do_sample: bool = True) -> Request:
    return Request(np.array([0]), 8, Sampling(do_sample, processors), seed=0)


def registry_of(*rules: type[AcceptanceRule]) -> Registry:
    entries: dict[str, dict[str, Registered]] = {kind: {} for kind in KINDS}
    entries["rule"] = {rule.name: Registered("rule", rule.name, rule, "test") for rule in rules}
    return Registry(entries, {})


# Lossy rules


@pytest.mark.parametrize("policy", [None, Chain(), SampledChain()], ids=["none", "fixed", "drawn"])
def test_a_lossy_rule_works_only_where_the_user_says_so(policy: TreePolicy | None) -> None:
    sentence = r"rule 'cheerful' \(.*Cheerful\) is lossy: .*lossy=True allows it \(--lossy of talon generate and .*\)$"
    with pytest.raises(ValueError, match=sentence):
        Decoder(TARGET, Cheerful(), policy, DRAFTER)
    Decoder(TARGET, Cheerful(), policy, DRAFTER, lossy=True)  # whatever it is exact for


@pytest.mark.parametrize(("rule", "lossless"), [(Match(), True), (Cheerful(), False)])
def test_every_result_says_whether_it_is_the_targets(rule: AcceptanceRule, lossless: bool) -> None:
    decoder = Decoder(TARGET, rule, Chain(), DRAFTER, lossy=True)
    assert decoder.lossless is lossless
    assert [result.lossless for result in decoder.run_all([request(), request()])] == [lossless, lossless]
    generation = decoder.run(request())
    next(generation)
    generation.close()
    assert generation.result().lossless is lossless  # an interrupted one too


def test_the_permission_changes_nothing_for_a_lossless_rule() -> None:
    results = [
        Decoder(TARGET, Match(), Chain(), DRAFTER, lossy=lossy).run_all([request()])[0] for lossy in (False, True)
    ]
    assert results[0].token_ids == results[1].token_ids
    with pytest.raises(ValueError, match=r"'block' .* is not exact for the deterministic trees"):
        Decoder(TARGET, Block(), Chain(), DRAFTER, lossy=True)


# A policy's default rule


@pytest.mark.parametrize("name", load_registry().names("tree policy"))
def test_the_default_rule_of_every_registered_policy_is_exact_for_it(name: str) -> None:
    registry = load_registry()
    policy = registry.get("tree policy", name).cls()
    assert rule_for(registry, policy) in exact_rules(registry, policy)


def test_without_a_policy_the_rule_is_match() -> None:
    assert rule_for(load_registry(), None) == "match"


@pytest.mark.parametrize("default", ["blok", "auto", None, 7, ["match"]])
def test_a_policy_without_such_a_default_rule_is_named_with_the_rules_that_would_do(default: Any) -> None:
    @attrs.frozen
    class Odd(SampledChain):
        name = "odd"

    Odd.default_rule = default
    sentence = r"^tree policy 'odd' \(.*Odd\) has the default rule .*, and there is none; name one.*: block, match$"
    with pytest.raises(LookupError, match=sentence):
        rule_for(registry_of(Match, Block, Cheerful), Odd())


def test_the_rules_for_a_tree_are_the_lossless_ones_that_are_exact_for_it() -> None:
    registry = registry_of(Block, Cheerful, Curious, Match, RecursiveRejection, Traversal)
    assert exact_rules(registry, Chain()) == ["curious", "match"]
    assert exact_rules(registry, SampledChain()) == ["block", "curious", "match", "rrs", "traversal"]
    assert exact_rules(registry, SampledChain(), looking_ahead=False) == ["match", "rrs"]


def test_a_rule_that_does_not_say_what_it_is_exact_for_is_for_nothing() -> None:
    @attrs.frozen
    class Silent(AcceptanceRule):
        name = "silent"

        def walk(self, tree: Any, laws: Any, choices: Any) -> Accepted:
            raise NotImplementedError

    assert exact_rules(registry_of(Match, Silent), Chain()) == ["match"]


# Logits processors that remember


def remembering(name: str) -> Any:
    """A processor of this name that is called as those of transformers are."""
    called = type(name, (), {"__call__": lambda self, ids, scores: scores})
    return called()


@pytest.mark.parametrize("name", sorted(REMEMBERING))
@pytest.mark.parametrize("do_sample", [False, True])
def test_a_rule_that_looks_ahead_is_refused_with_a_processor_that_remembers(name: str, do_sample: bool) -> None:
    decoder = Decoder(TARGET, Block(), SampledChain(), DRAFTER)
    sentence = rf"^logits processor '{name}' remembers .* rule 'block' .* instead: .*match.*rrs"
    with pytest.raises(ValueError, match=sentence) as caught:
        decoder.run(request(lambda ids, scores: scores, remembering(name), do_sample=do_sample))
    assert "traversal" not in str(caught.value)
    with pytest.raises(ValueError, match=name):
        decoder.run(request(LogitsProcessorList([remembering(name)])))
    with pytest.raises(ValueError, match=name):
        decoder.run_all([request(), request(remembering(name))])


def test_a_subclass_of_a_processor_that_remembers_remembers() -> None:
    class Mine(logits_process.SynthIDTextWatermarkLogitsProcessor):
        def __init__(self) -> None:
            pass

    with pytest.raises(ValueError, match=r"^logits processor 'Mine'"):
        Decoder(TARGET, Curious(), Chain(), DRAFTER).run(request(Mine()))


@pytest.mark.parametrize(
    ("rule", "policy"), [(Match(), SampledChain()), (RecursiveRejection(), SampledChain()), (Block(), None)]
)
def test_where_nothing_is_looked_at_ahead_any_processor_will_do(
    rule: AcceptanceRule, policy: TreePolicy | None
) -> None:
    for name in REMEMBERING:
        list(Decoder(TARGET, rule, policy, DRAFTER).run(request(remembering(name))))


def test_a_processor_that_answers_by_the_text_alone_goes_with_every_rule() -> None:
    def no_repetition(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores[:, ids[0, -1]] = -torch.inf
        return scores

    for decoder in (
        Decoder(TARGET, Block(), SampledChain(), DRAFTER),
        Decoder(TARGET, Curious(), Chain(), DRAFTER),
    ):
        done = decoder.run_all([request(no_repetition, logits_process.RepetitionPenaltyLogitsProcessor(1.3))])[0]
        assert all(one != other for one, other in zip(done.token_ids, done.token_ids[1:], strict=False))


HARMLESS = {
    "RepetitionPenaltyLogitsProcessor",  # moves a tensor to the scores' device
    "ExponentialDecayLengthPenalty",  # likewise
    "SequenceBiasLogitsProcessor",  # prepares, once, what depends on its options alone
    "WhisperNoSpeechDetection",  # writes a probability down, and changes no score
}


def changes_itself(cls: ast.ClassDef) -> bool:
    """Whether a method that decoding calls writes into the object or into something that it holds."""
    for method in cls.body:
        if not isinstance(method, ast.FunctionDef) or method.name == "__init__" or method.name.startswith("set_"):
            continue
        for node in ast.walk(method):
            targets = node.targets if isinstance(node, ast.Assign) else []
            targets = [node.target] if isinstance(node, ast.AugAssign | ast.AnnAssign) else targets
            for target in targets:
                while isinstance(target, ast.Attribute | ast.Subscript):
                    target = target.value
                    if isinstance(target, ast.Name) and target.id == "self":
                        return True
    return False


def test_every_processor_of_transformers_that_changes_itself_is_known() -> None:
    found = set()
    for module in (logits_process, generation_higgs_audio_v2):
        for cls in ast.parse(inspect.getsource(module)).body:
            if isinstance(cls, ast.ClassDef) and cls.name.endswith(("Processor", "Warper", "Penalty", "Detection")):
                found |= {cls.name} if changes_itself(cls) else set()
    assert found - HARMLESS == REMEMBERING
    assert found >= HARMLESS
