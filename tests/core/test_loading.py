"""From names to a decoder: what is unknown, unfit or damaged is refused in one sentence, before anything is loaded."""

import json
import re
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

import talon_core
from talon_core.attention import Accelerator, AttentionBackend
from talon_core.certify.exact import Given
from talon_core.decoding.loading import decoder_for_model
from talon_core.engine.bounds import Bounds
from talon_core.errors import PluginError
from talon_core.models import loading
from talon_core.models import resolve as models_resolve
from talon_core.models.loading import load_model
from talon_core.models.store import PLAIN_NOTE
from talon_core.plugins.backends import attention_backends, choose_accelerator, choose_attention
from talon_core.plugins.parts import Parts, Resolved, choose_drafter, resolve
from talon_core.plugins.registry import KINDS, Registered, Registry, load_registry
from talon_core.runtime.executor import HostExecutor
from talon_core.runtime.weights import weights_hash
from talon_core.testing import TableDrafter
from talon_core.testing.plain_device import PlainDevice
from talon_drafters import Ngram
from talon_kernels import SdpaAttention
from talon_strategies.chain import Chain
from talon_strategies.rules.match import Match
from talon_strategies.rules.typical import Typical
from talon_strategies.sampled_chain import SampledChain
from talon_tests.tiny_models import tiny_model

CPU = torch.device("cpu")


@pytest.fixture(scope="session")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model and its tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    words = Tokenizer(models.WordLevel({f"t{number}": number for number in range(97)}, unk_token="t0"))
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tiny_model("llama").save_pretrained(folder)
    return folder


@pytest.fixture
def nothing_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading a model fails the test."""

    def loads(*_: object, **__: object) -> None:
        pytest.fail("a model was loaded")

    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", loads)


@attrs.frozen
class NamesAbsent(Chain):
    """A chain that names a rule of a plugin that is not there."""

    name = "names-absent"
    default_rule = "none-such"


@attrs.frozen
class LossyByDefault(Chain):
    name = "lossy-by-default"
    default_rule = "typical"


# Specs


@pytest.mark.usefixtures("nothing_loads")
@pytest.mark.parametrize(
    ("parts", "error", "sentence"),
    [
        ({"drafter": "draft-model"}, ValueError, "needs either model=FOLDER_OR_ID or skip=LAYERS"),
        ({"policy": "tallon"}, LookupError, "no tree policy 'tallon'; did you mean 'talon'?"),
        ({"drafter": "ngrams"}, LookupError, "no drafter 'ngrams'; did you mean 'ngram'?"),
        ({"drafter": "none"}, LookupError, "no drafter 'none'; there are: auto, "),
        ({"rule": "mach"}, LookupError, "no rule 'mach'; did you mean 'match'?"),
        ({"rule": "none"}, LookupError, "no rule 'none'; there are: auto, "),
        ({"schedule": "nix"}, LookupError, "no schedule 'nix'; there are: auto, "),
        ({"schedule": "atuo"}, LookupError, "no schedule 'atuo'; did you mean 'auto'?"),
        ({"policy": "none", "schedule": "cached"}, ValueError, "the schedule is 'cached', and there is no tree policy"),
        ({"attention": "natvie"}, LookupError, "no attention backend 'natvie'; did you mean 'native'?"),
        (
            {"policy": "chain:lenght=3"},
            ValueError,
            "tree policy 'chain' has no option 'lenght'; did you mean 'length'?",
        ),
        ({"policy": "chain:length=0"}, ValueError, "tree policy 'chain': 'length' must be >= 1: 0"),
        (
            {"policy": "talon:budget=1000000000"},
            ValueError,
            r"tree policy 'talon' .* has a budget of 1000000000 nodes; it must be at most 65536",
        ),
        ({"policy": f"chain:length={10**22}"}, ValueError, "must be a whole number of at most 9223372036854775807"),
        (
            {"policy": "eagle2:budget=9999,top_k=100"},
            ValueError,
            "has a draft_budget of 70087 nodes; it must be at most 65536",
        ),
        ({"policy": Chain(length=10**6)}, ValueError, "has a budget of 1000001 nodes; it must be at most 65536"),
        ({"drafter": "draft-model:skip=a"}, ValueError, "drafter 'draft-model': skip is 'a'; it must be layers"),
        ({"policy": Chain}, ValueError, "the tree policy is <class 'talon_strategies.chain.Chain'>; it must be a spec"),
        ({"policy": 7}, ValueError, "the tree policy is 7; it must be a spec, .* or an object of class TreePolicy"),
        ({"drafter": TableDrafter([[1.0]])}, ValueError, "the drafter is TableDrafter.* of class DrafterSpec"),
        ({"drafter": None}, ValueError, "the drafter is None; it must be a spec, .* or an object of class DrafterSpec"),
        ({"rule": None}, ValueError, "the rule is None; it must be a spec, .* or an object of class AcceptanceRule"),
        ({"attention": 7}, ValueError, "the attention backend is 7; .* or an object of class AttentionBackend"),
        ({"rule": "typical"}, ValueError, r"rule 'typical' .* is lossy: it changes what the model says; .*lossy=True"),
        ({"rule": Typical(), "policy": None}, ValueError, r"rule 'typical' .* is lossy"),
        ({"rule": "block"}, ValueError, r"rule 'block' .* is not exact for the deterministic trees of .*'talon-cost'"),
        (
            {"policy": NamesAbsent()},
            LookupError,
            "policy 'names-absent' .* default rule 'none-such', and there is none",
        ),
        ({"policy": LossyByDefault()}, ValueError, r"rule 'typical' .* is lossy"),
    ],
)
def test_a_bad_part_is_refused_before_the_model_is_loaded(
    parts: dict[str, Any], error: type[Exception], sentence: str, good: Path
) -> None:
    with pytest.raises(error, match=sentence):
        talon_core.load(str(good), **parts)


@pytest.mark.parametrize(
    "parts",
    [
        {"policy": Chain(length=2)},
        {"drafter": Ngram(), "policy": "chain"},
        {"rule": Match()},
        {"drafter": "draft-model:skip=1", "policy": Chain(length=1), "rule": Match()},
        {"policy": None, "drafter": "none"},
        {"policy": "none", "drafter": None},
        {"accelerate": False},
    ],
)
def test_objects_do_as_well_as_specs(parts: dict[str, Any], good: Path) -> None:
    expected = talon_core.load(good, policy=None).generate([5, 6, 7], max_new_tokens=8).token_ids
    decoder = talon_core.load(good, **parts)
    assert decoder.generate([5, 6, 7], max_new_tokens=8).token_ids == expected
    for part, attribute in (("policy", "policy"), ("drafter", "drafter_spec"), ("rule", "rule")):
        if part in parts and not isinstance(parts[part], str) and parts[part] is not None:
            assert getattr(decoder, attribute) is parts[part]


def test_a_drafter_that_is_an_object_is_told_how_many_layers_there_are() -> None:
    told: list[int] = []

    @attrs.frozen(eq=False)
    class Curious(Given):
        def features(self, num_layers: int) -> tuple[int, ...]:
            told.append(num_layers)
            return ()

    decoder_for_model(tiny_model("llama"), None, Parts(Curious(TableDrafter([[1.0]])), "chain"))
    assert told == [4]


@pytest.mark.parametrize("features", ["abc", (1.5,), ("a",), 3, None, (True,)])
def test_hidden_states_that_there_are_none_of_are_refused_in_words(features: Any) -> None:
    @attrs.frozen(eq=False)
    class Curious(Given):
        def features(self, num_layers: int) -> Any:
            return features

    with pytest.raises(
        PluginError,
        match=r"^drafter 'given' \(.*\) wants the hidden states .*; it must be a tuple of whole numbers, 0 to 4",
    ):
        decoder_for_model(tiny_model("llama"), None, Parts(Curious(TableDrafter([[1.0]])), "chain"))


# The drafter that is chosen for a model


@pytest.mark.parametrize(
    ("ranks", "chosen"),
    [
        ({"one": 0}, "one"),
        ({"one": 0, "two": 2, "three": 1}, "two"),
        ({"two": 2, "one": 2}, "one"),
        ({"one": 0, "asked-for": None}, "one"),
    ],
)
def test_auto_is_the_ready_drafter_of_the_highest_rank(ranks: dict[str, int | None], chosen: str) -> None:
    assert choose_drafter(drafters_of(ranks), tiny_model("llama")) == chosen


def test_where_no_drafter_is_ready_the_error_says_so() -> None:
    with pytest.raises(LookupError, match="no drafter is ready for this model; name one with its files"):
        choose_drafter(drafters_of({"asked-for": None}), tiny_model("llama"))


@pytest.mark.parametrize(
    ("rank", "why"),
    [
        (KeyError("x"), "raised KeyError in rank_for: 'x'"),
        (ValueError("x"), "raised ValueError in rank_for: x"),
        (SystemExit(0), "raised SystemExit in rank_for: 0"),
        ("high", "says that its rank is 'high'; it must be a whole number, or None"),
        (2.5, "says that its rank is 2.5; it must be a whole number"),
        (True, "says that its rank is True; it must be a whole number"),
    ],
)
def test_a_drafter_that_fails_at_its_rank_is_left_out_with_one_warning(
    rank: Any, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert choose_drafter(drafters_of({"bad": rank, "good": 0}), tiny_model("llama")) == "good"
    (said,) = caplog.records
    assert (said.levelname, said.name.partition(".")[0]) == ("WARNING", "talon_core")
    assert said.getMessage().startswith("left out of the drafters to choose from: drafter 'bad' (")
    assert why in said.getMessage()


def test_a_rank_that_memory_ran_out_at_is_no_fault_of_the_drafter() -> None:
    with pytest.raises(MemoryError):
        choose_drafter(drafters_of({"one": MemoryError()}), tiny_model("llama"))


def test_auto_is_replaced_by_the_drafters_name_once_the_model_is_loaded() -> None:
    model, registry = tiny_model("llama"), load_registry()
    waiting = resolve(Parts(), registry)
    assert waiting.waits
    chosen = waiting.for_model(model)
    assert (chosen.parts.drafter, chosen.drafter) == ("ngram", Ngram())
    assert chosen.for_model(model) is chosen
    for parts in (Parts("draft-model:skip=1", "talon:budget=4"), Parts(policy="none")):
        resolved = resolve(parts, registry)
        assert resolved.for_model(None) is resolved
        assert resolved.parts == attrs.evolve(parts, rule="match", schedule="sync", draft_on="thread")
    decoder = decoder_for_model(model, None, Parts())
    assert decoder.drafter_spec is not None
    assert decoder.drafter_spec.name == "ngram"


# The rule that is chosen for a policy


@pytest.mark.parametrize(
    ("policy", "rule"),
    [
        (None, "match"),
        ("none", "match"),
        ("chain", "match"),
        ("sampled-chain:length=2", "block"),
        (SampledChain(), "block"),
        ("specinfer", "rrs"),
        ("talon-sampled", "hybrid"),
    ],
)
def test_auto_is_the_policys_default_rule(policy: Any, rule: str) -> None:
    resolved = resolve(Parts(policy=policy), load_registry())  # it takes no model to know it
    assert resolved.parts == Parts(policy=policy, rule=rule, schedule="sync", draft_on="thread")
    assert resolved.rule.name == rule
    assert resolve(Parts(policy=policy, rule="typical", lossy=True), load_registry()).rule.name == "typical"
    assert resolve(resolved.parts, load_registry()) == resolved


def test_where_no_rule_is_named_it_is_the_policys_default_rule() -> None:
    model = tiny_model("llama")
    assert talon_core.load(model, policy="sampled-chain").rule.name == "block"
    assert talon_core.load(model, policy="none").rule.name == "match"
    assert talon_core.load(model).rule.name == "match"


def test_a_rule_is_named_where_a_policy_has_no_default_rule() -> None:
    assert talon_core.load(tiny_model("llama"), policy=NamesAbsent(), rule="match").rule.name == "match"


# Lossy rules


def test_a_lossy_rule_is_allowed_by_name_and_every_result_is_marked() -> None:
    model = tiny_model("llama")
    for policy in ("chain", "sampled-chain", "specinfer"):
        decoder = talon_core.load(model, policy=policy, rule="typical", lossy=True)
        stream = decoder.stream([5, 6, 7], max_new_tokens=8)
        list(stream)
        results = [
            stream.result(),
            decoder.generate([5, 6, 7], max_new_tokens=8),
            *decoder.generate([[5, 6], [7]], max_new_tokens=8),
        ]
        assert [result.lossless for result in results] == [False] * 4
    assert talon_core.load(model, policy="chain", lossy=True).generate([5, 6], max_new_tokens=2).lossless


def drafters_of(ranks: dict[str, Any]) -> Registry:
    """Drafters of these names and ranks; an error in the place of a rank is raised."""

    def drafter(called: str, rank: Any) -> type:
        class Spec(Given):
            name = called

            @classmethod
            def rank_for(cls, model: Any) -> int | None:
                if isinstance(rank, BaseException):
                    raise rank
                return rank

        return Spec

    return registry_of("drafter", {name: drafter(name, rank) for name, rank in ranks.items()})


def registry_of(kind: str, classes: Mapping[str, type]) -> Registry:
    """A registry that holds these classes, by name, and nothing else."""
    entries: dict[str, dict[str, Registered]] = {each: {} for each in KINDS}
    entries[kind] = {name: Registered(kind, name, cls, "test") for name, cls in classes.items()}
    return Registry(entries, {})


# Attention backends


PRIORITIES = {"native": 30, "triton": 30, "sdpa": 20, "reference": 10}


def registry_with(priorities: Mapping[str, Any] = PRIORITIES, **unavailable: str | None) -> Registry:
    """Attention backends of these names and priorities, and for each of them why it cannot run; errors are raised."""

    def backend(called: str, why: str | None) -> type:
        class Backend(AttentionBackend):
            name = called

            @classmethod
            def priority(cls, device: Any) -> Any:
                priority = priorities.get(called, 0)
                if isinstance(priority, BaseException):
                    raise priority
                return priority

            def unavailable(self, device: Any, dtype: Any) -> str | None:
                return why

            def attend(self, *_: Any, **__: Any) -> Any:
                raise NotImplementedError

        return Backend

    return registry_of("attention backend", {name: backend(name, why) for name, why in unavailable.items()})


def test_the_first_backend_that_can_run_is_taken_where_none_is_asked_for() -> None:
    registry = registry_with(reference=None, sdpa=None, native="there is no compiler")
    assert choose_attention(registry, None, CPU, torch.float32).name == "sdpa"
    assert choose_attention(registry_with(reference=None), None, CPU, torch.float32).name == "reference"


def test_a_backend_that_was_asked_for_is_never_replaced_in_silence() -> None:
    registry = registry_with(reference=None, native="there is no compiler")
    with pytest.raises(ValueError, match="attention backend 'native' cannot be used here: there is no compiler"):
        choose_attention(registry, "native", CPU, torch.float32)
    with pytest.raises(LookupError, match="no attention backend 'sdpa'; there are: native, reference"):
        choose_attention(registry, "sdpa", CPU, torch.float32)


def accelerators_of(answers: dict[str, Any]) -> Registry:
    """Accelerators of these names, and what each returns from `unavailable`; an error is raised."""

    def accelerator(called: str, answer: Any) -> type:
        class Faster(Accelerator):
            name = called

            def unavailable(self, device: Any, dtype: Any) -> Any:
                if isinstance(answer, BaseException):
                    raise answer
                return answer

            def prepare(self, model: Any) -> Any:
                raise NotImplementedError

        return Faster

    return registry_of("accelerator", {name: accelerator(name, answer) for name, answer in answers.items()})


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (KeyError("x"), "raised KeyError in unavailable: 'x'"),
        (SystemExit(0), "raised SystemExit in unavailable: 0"),
        (False, "returned False from unavailable; it must return why it cannot run here, a text, or None if it can"),
    ],
)
def test_a_backend_that_fails_is_left_out_with_one_warning_unless_it_was_asked_for(
    answer: Any, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    registry = accelerators_of({"bad": answer, "good": None})
    chosen = choose_accelerator(registry, True, CPU, torch.float32)
    assert chosen is not None
    assert chosen.name == "good"
    (said,) = caplog.records
    assert said.getMessage().startswith("left out of the accelerators to choose from: accelerator 'bad' (")
    assert why in said.getMessage()
    with pytest.raises(PluginError, match=rf"^accelerator 'bad' \(.*\) {why}"):
        choose_accelerator(registry, "bad", CPU, torch.float32)


def test_an_attention_backend_that_fails_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    registry = registry_with(sdpa=7, reference=None)  # type: ignore[arg-type]
    assert choose_attention(registry, None, CPU, torch.float32).name == "reference"
    assert "attention backend 'sdpa'" in caplog.text
    with pytest.raises(LookupError, match=r"no attention backend can run in .* \(sdpa: it failed\)"):
        choose_attention(registry_with(sdpa=7), None, CPU, torch.float32)  # type: ignore[arg-type]


def test_a_device_backend_that_fails_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(PlainDevice):
        name = "failing"

        @classmethod
        def priority(cls, device: Any) -> int:
            return 40

        def unavailable(self, device: Any, dtype: Any) -> str | None:
            raise KeyError("x")

    usable = registry_with(reference=None).get("attention backend", "reference").cls
    registry = registry_of("attention backend", {"failing": Failing, "reference": usable})
    assert choose_attention(registry, None, torch.device("cuda"), torch.float32).name == "reference"
    (said,) = caplog.records
    assert said.getMessage().startswith(
        "left out of the attention backends to choose from: attention backend 'failing'"
    )


def test_a_mixture_of_experts_on_a_host_is_told_nothing_of_graphs(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There a pass that is not repeated is no graph that was not captured."""
    monkeypatch.setattr(HostExecutor, "failure", property(lambda self: "a pass had other bits"))
    talon_core.load(tiny_model("qwen3-moe"), drafter="ngram")
    assert not [one for one in caplog.records if "CUDA graphs" in one.getMessage()]


def test_native_attention_is_refused_for_a_dtype_it_does_not_know(good: Path) -> None:
    with pytest.raises(ValueError, match="attention backend 'native' cannot be used here: "):
        talon_core.load(good, attention="native", dtype=torch.float64)
    assert talon_core.load(good, dtype=torch.float64).target.attention.name != "native"  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["reference", "sdpa"])
def test_the_backend_that_was_asked_for_is_used(name: str, good: Path) -> None:
    assert talon_core.load(good, attention=name).target.attention.name == name  # type: ignore[attr-defined]


def test_a_backend_may_be_an_object() -> None:
    made = load_registry().get("attention backend", "reference").cls()
    assert decoder_for_model(tiny_model("llama"), None, Parts(attention=made)).target.attention is made  # type: ignore[attr-defined]


def test_a_backend_of_another_plugin_is_taken_where_none_of_ours_can_run() -> None:
    registry = registry_with(odd=None, a="it is asleep", native="there is no compiler")
    assert choose_attention(registry, None, CPU, torch.float32).name == "odd"
    registry = registry_with(a=None, reference=None)
    assert choose_attention(registry, None, CPU, torch.float32).name == "reference"


def test_where_nothing_can_run_the_error_says_why() -> None:
    registry = registry_with(odd="it is asleep", native="there is no compiler")
    sentence = "no attention backend can run in torch.float32 on cpu (native: there is no compiler; odd: it is asleep)"
    with pytest.raises(LookupError, match=f"^{re.escape(sentence)}$"):
        choose_attention(registry, None, CPU, torch.float32)
    with pytest.raises(LookupError, match=r"can run in torch.float32 on cpu \(none is registered\)$"):
        choose_attention(registry_with(), None, CPU, torch.float32)


def test_a_backend_that_cannot_serve_a_model_is_named_with_the_model_and_a_way_out() -> None:
    class Narrow(AttentionBackend):
        name = "narrow"

        def unavailable(self, device: Any, dtype: Any) -> str | None:
            return None

        def attend(self, *_: Any, **__: Any) -> Any:
            raise ValueError("key and value differ in their last axis")

    sentence = (
        "LlamaForCausalLM cannot verify a tree of 7 nodes with attention backend 'narrow' "
        "(key and value differ in their last axis); choose another target, or another backend"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        decoder_for_model(tiny_model("llama"), None, Parts(attention=Narrow()))


@pytest.mark.parametrize(
    ("device", "tried"),
    [
        ("cpu", ["native", "sdpa", "reference", "triton"]),
        ("cuda", ["native", "triton", "sdpa", "reference"]),
        ("meta", ["native", "sdpa", "reference", "triton"]),
    ],
)
def test_our_own_backends_are_tried_the_fastest_first(
    device: str, tried: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in tried:  # what else keeps one from running on a device is the backend's own affair
        cls = load_registry().get("attention backend", name).cls
        monkeypatch.setattr(cls, "unavailable", lambda self, device, dtype: None)
    found = attention_backends(load_registry(), None, torch.device(device), torch.float32)
    assert [backend.name for backend in found] == tried


def test_a_backend_of_a_higher_priority_is_tried_before_ours() -> None:
    priorities = {**PRIORITIES, "odd": 31, "even": 31, "late": -1}
    registry = registry_with(priorities, native=None, odd=None, even=None, late=None)
    found = attention_backends(registry, None, CPU, torch.float32)
    assert [backend.name for backend in found] == ["even", "odd", "native", "late"]


@pytest.mark.parametrize(
    ("priority", "why"),
    [
        ("high", "says that its priority is 'high'; it must be a whole number"),
        (2.5, "says that its priority is 2.5; it must be a whole number"),
        (True, "says that its priority is True; it must be a whole number"),
        (None, "says that its priority is None; it must be a whole number"),
        (KeyError("x"), "raised KeyError in priority: 'x'"),
        (SystemExit(0), "raised SystemExit in priority: 0"),
    ],
)
def test_a_backend_that_fails_at_its_priority_is_left_out_with_one_warning(
    priority: Any, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    registry = registry_with({"bad": priority}, bad=None, good=None)
    assert choose_attention(registry, None, CPU, torch.float32).name == "good"
    (said,) = caplog.records
    assert (said.levelname, said.name.partition(".")[0]) == ("WARNING", "talon_core")
    assert said.getMessage().startswith("left out of the attention backends to choose from: attention backend 'bad' (")
    assert why in said.getMessage()
    assert choose_attention(registry, "bad", CPU, torch.float32).name == "bad"  # by name it needs no priority


def test_an_accelerator_of_a_higher_priority_is_taken_first() -> None:
    def accelerator(called: str, first: int) -> type:
        class Faster(accelerators_of({called: None}).get("accelerator", called).cls):  # type: ignore[misc]
            @classmethod
            def priority(cls, device: Any) -> int:
                return first

        return Faster

    registry = registry_of("accelerator", {name: accelerator(name, first) for name, first in {"a": 1, "b": 2}.items()})
    chosen = choose_accelerator(registry, True, CPU, torch.float32)
    assert chosen is not None
    assert chosen.name == "b"


class BeforeAllOthers(AttentionBackend):
    @classmethod
    def priority(cls, device: Any) -> int:
        return 99


class Fails(BeforeAllOthers, PlainDevice):
    """A backend for devices that lacks what the model needs."""

    name = "fails"

    def attend_packed(self, *_: Any, **__: Any) -> Any:
        raise ValueError("heads of 12 numbers are too small")


def resolved_with(attention: str | None, *classes: type[AttentionBackend]) -> Resolved:
    registry = load_registry()
    backends = registry_of("attention backend", {cls.name: cls for cls in classes}).entries["attention backend"]
    return resolve(
        Parts(policy=None, attention=attention), Registry({**registry.entries, "attention backend": backends}, {})
    )


def test_a_backend_that_takes_the_place_of_another_is_told_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    decoder = decoder_for_model(tiny_model("llama"), None, resolved_with(None, Fails, PlainDevice))
    assert decoder.target.attention.name == "plain-device"  # type: ignore[attr-defined]
    (said,) = caplog.messages
    assert said == "attention backend 'plain-device' takes the place of 'fails': heads of 12 numbers are too small"


@pytest.mark.parametrize(("attention", "classes"), [("fails", [Fails, PlainDevice]), (None, [Fails])])
def test_a_backend_that_fails_is_an_error_where_it_was_asked_for_or_is_the_last(
    attention: str | None, classes: list[type[AttentionBackend]]
) -> None:
    with pytest.raises(ValueError, match="cannot verify a tree of 7 nodes with attention backend 'fails'"):
        decoder_for_model(tiny_model("llama"), None, resolved_with(attention, *classes))


TOO_LARGE = "out of resource: shared memory, Required: 294912, Hardware limit: 101376"


class HasNoRoom(BeforeAllOthers, PlainDevice):
    """A backend whose kernel for large trees needs more shared memory than there is."""

    name = "has-no-room"

    def attend_packed(self, query: Any, *rest: Any, **options: Any) -> Any:
        if query.shape[1] > 8:
            raise RuntimeError(TOO_LARGE)
        return super().attend_packed(query, *rest, **options)


@pytest.mark.parametrize(
    ("policy", "taken"),
    [("talon:budget=24", "plain-device"), ("talon:budget=8", "has-no-room"), (None, "has-no-room")],
)
def test_the_largest_tree_of_the_policy_is_tried_when_a_model_is_loaded(
    caplog: pytest.LogCaptureFixture, policy: str | None, taken: str
) -> None:
    parts = attrs.evolve(resolved_with(None, HasNoRoom, PlainDevice).parts, policy=policy, drafter="ngram")
    registry = resolved_with(None, HasNoRoom, PlainDevice).registry
    decoder = decoder_for_model(tiny_model("llama"), None, resolve(parts, registry))
    assert decoder.target.attention.name == taken  # type: ignore[attr-defined]
    told = (
        [] if taken == "has-no-room" else ["out of resource: shared memory, Required: 294912, Hardware limit: 101376"]
    )
    found = [said.partition("takes the place of 'has-no-room': ")[2] for said in caplog.messages]
    assert [why for why in found if why] == told


def test_why_a_backend_for_devices_cannot_be_used_on_a_gpu_is_told(caplog: pytest.LogCaptureFixture) -> None:
    class WithoutCompiler(BeforeAllOthers, PlainDevice):
        name = "without-compiler"

        def unavailable(self, device: Any, dtype: Any) -> str | None:
            return "there is no compiler"

    registry = resolved_with(None, WithoutCompiler, SdpaAttention).registry
    for device in ("cpu", "cuda:0"):
        assert choose_attention(registry, None, torch.device(device), torch.float32).name == "sdpa"
    assert caplog.messages == [
        "attention backend 'without-compiler' cannot be used on cuda:0, so passes over trees may be slower, and not "
        "recorded as CUDA graphs: there is no compiler"
    ]


class FailsOnTheHost(BeforeAllOthers, SdpaAttention):
    name = "fails-on-the-host"

    def attend(self, *_: Any, **__: Any) -> Any:
        raise ValueError("it is tired")


def test_a_plain_backend_that_nobody_asked_for_is_replaced_as_well(caplog: pytest.LogCaptureFixture) -> None:
    decoder = decoder_for_model(tiny_model("llama"), None, resolved_with(None, FailsOnTheHost, SdpaAttention))
    assert decoder.target.attention.name == "sdpa"  # type: ignore[attr-defined]
    assert "attention backend 'sdpa' takes the place of 'fails-on-the-host': it is tired" in caplog.messages


class Elsewhere(SdpaAttention):
    def unavailable(self, device: Any, dtype: Any) -> str | None:
        return "the sun is out"


def test_a_backend_that_is_given_as_an_object_is_asked_whether_it_can_run() -> None:
    with pytest.raises(ValueError, match=r"Elsewhere\) cannot be used here: the sun is out$"):
        talon_core.load(tiny_model("llama"), policy=None, attention=Elsewhere())


def test_an_accelerator_that_fails_at_a_model_is_left_out_unless_it_was_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    entries = {**load_registry().entries, "accelerator": accelerators_of({"bad": None}).entries["accelerator"]}
    model, why = tiny_model("llama"), r"accelerator 'bad' \(.*\) raised NotImplementedError in prepare"
    decoder = decoder_for_model(model, None, resolve(Parts(policy=None), Registry(entries, {})))
    (said,) = caplog.messages
    assert re.search(f"the model's own layers run without an accelerator: {why}", said)
    assert (
        decoder.generate([1, 2], max_new_tokens=4).token_ids
        == talon_core.load(model, policy=None).generate([1, 2], max_new_tokens=4).token_ids
    )
    with pytest.raises(PluginError, match=why):
        decoder_for_model(model, None, resolve(Parts(policy=None, accelerate="bad"), Registry(entries, {})))


# Models


@pytest.mark.parametrize("model", [5, None, ["tiny"], Match()])
def test_what_is_no_model_is_refused(model: Any) -> None:
    with pytest.raises(ValueError, match=r"^the model is .*; it must be the name of an embedded model, a folder"):
        talon_core.load(model)


@pytest.mark.parametrize("tokenizer", [3, "parrot", [], object(), torch.nn.Linear(1, 1)])
def test_what_is_no_tokenizer_is_refused_before_anything_is_loaded(tokenizer: Any) -> None:
    for model in (tiny_model("llama"), "nowhere"):
        with pytest.raises(ValueError, match=r"^the tokenizer is .*; it must be a tokenizer, as AutoTokenizer.from_p"):
            talon_core.load(model, tokenizer=tokenizer)


def test_a_misspelt_option_is_refused_for_a_model_that_is_an_object() -> None:
    with pytest.raises(ValueError, match=r"load has no option 'polciy' .*; did you mean 'policy'\? it has: drafter, "):
        talon_core.load(tiny_model("llama"), polciy="none")
    with pytest.raises(ValueError, match=r"load has no option 'dtype' for a model that is an object; it has: "):
        talon_core.load(tiny_model("llama"), dtype=torch.float64)


def test_a_misspelt_option_is_refused_for_a_model_that_is_loaded(good: Path) -> None:
    with pytest.raises(ValueError, match="polciy"):
        talon_core.load(good, polciy="none")


def test_a_tokenizer_that_is_given_takes_the_place_of_the_models_own(good: Path) -> None:
    _, tokenizer = load_model(str(good))
    assert talon_core.load(good, tokenizer=tokenizer).target.tokenizer is tokenizer  # type: ignore[attr-defined]


def weights(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        file = folder / "model.safetensors"
        save_file(change(load_file(file)), file, metadata={"format": "pt"})

    return damage


def content(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).write_bytes(change((folder / name).read_bytes()))

    return damage


def config(**changes: Any) -> Callable[[Path], None]:
    return content("config.json", lambda old: json.dumps({**json.loads(old), **changes}).encode())


def without(*names: str) -> Callable[[Path], None]:
    return lambda folder: [(folder / name).unlink() for name in names] and None


def shards(index: object) -> Callable[[Path], None]:
    """The weights are in a file of several, and this is what the index of these says."""

    def damage(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
        (folder / "model.safetensors.index.json").write_text(index if isinstance(index, str) else json.dumps(index))

    return damage


OBJECT = "; it must be a JSON object"

DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "truncated weights": (content("model.safetensors", lambda old: old[:5000]), "SafetensorError: "),
    "weights cut by a byte": (content("model.safetensors", lambda old: old[:-1]), "SafetensorError: "),
    "weights that are none": (content("model.safetensors", lambda old: b"\xff" * 5000), "SafetensorError: "),
    "empty weights": (content("model.safetensors", lambda old: b""), "SafetensorError: "),
    "no weights": (without("model.safetensors"), "no file named model.safetensors"),
    "a weight missing": (
        weights(lambda old: {name: weight for name, weight in old.items() if name != "model.norm.weight"}),
        "it lacks 1 of the weights that its configuration asks for, such as model.norm.weight",
    ),
    "weights of another layout": (
        weights(lambda old: {f"net.{name}": weight for name, weight in old.items()}),
        "it lacks 39 of the weights",
    ),
    "fewer layers than configured": (config(num_hidden_layers=5), "it lacks 9 of the weights .* model.layers.4"),
    "other sizes than configured": (
        config(hidden_size=64),
        r"its weight lm_head.weight has shape \(97, 48\) where its configuration asks for \(97, 64\)",
    ),
    "half a configuration": (
        content("config.json", lambda old: old[:20]),
        r"its config\.json cannot be read \(it is not JSON: .*\); fetch it again",
    ),
    "a configuration that is a list": (content("config.json", lambda old: b"[]"), rf"its config\.json is \[\]{OBJECT}"),
    "generation settings of nothing": (
        content("generation_config.json", lambda old: b"null"),
        rf"its generation_config\.json is None{OBJECT}",
    ),
    "tokenizer settings that are a list": (
        content("tokenizer_config.json", lambda old: b"[]"),
        rf"its tokenizer_config\.json is \[\]{OBJECT}",
    ),
    "half a tokenizer": (
        content("tokenizer.json", lambda old: old[:20]),
        r"its tokenizer\.json cannot be read \(it is not JSON: .*\); fetch it again",
    ),
    "an index that is empty": (shards(""), r"its model\.safetensors\.index\.json cannot be read \(it is not JSON: "),
    "an index without a map": (
        shards({"metadata": {}}),
        rf"its model\.safetensors\.index\.json has None as its weight_map{OBJECT}",
    ),
    "an index of no files": (
        shards({"metadata": {}, "weight_map": {"lm_head.weight": 3}}),
        r"its model\.safetensors\.index\.json has 'lm_head\.weight' in 3; it must be the name of a file of the folder",
    ),
    "a configuration of nothing": (content("config.json", lambda old: b"{}"), "`model_type`"),
    "a configuration of something unknown": (config(model_type="llamma"), "`llamma`"),
    "a configuration of no causal LM": (config(model_type="vit"), "AutoModelForCausalLM"),
    "a configuration that cannot be": (config(num_attention_heads=0), "ZeroDivisionError: "),
    "a configuration of wrong types": (config(num_hidden_layers="four"), "'num_hidden_layers' expected int, got str"),
    "no configuration": (without("config.json"), "`model_type`"),
    "no tokenizer": (
        without("tokenizer.json", "tokenizer_config.json"),
        r"no tokenizer can be made of its files; put a tokenizer.json there, .* of another kind\. Give",
    ),
    "a damaged tokenizer": (content("tokenizer.json", lambda old: b"{}"), "KeyError: "),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_model_gets_one_sentence(case: str, good: Path, tmp_path: Path) -> None:
    damage, sentence = DAMAGE[case]
    folder = tmp_path / "damaged"
    shutil.copytree(good, folder)
    damage(folder)
    with pytest.raises(ValueError, match=sentence) as caught:
        load_model(str(folder))
    said = str(caught.value)
    assert said.startswith(f"model '{folder}' cannot be loaded: ")
    assert said.endswith(
        "Give the name of an embedded model (talon list models), a folder, a GGUF file, or a Hugging Face id."
    )
    assert "\n" not in said


@pytest.mark.usefixtures("nothing_loads")
@pytest.mark.parametrize("make", [lambda folder: folder / "missing", lambda folder: folder / "file.txt"])
def test_a_path_that_is_no_folder_is_refused(make: Callable[[Path], Path], tmp_path: Path) -> None:
    (tmp_path / "file.txt").write_text("hello")
    with pytest.raises(ValueError, match=str(make(tmp_path))):
        talon_core.load(make(tmp_path))


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, torch.OutOfMemoryError])
def test_what_is_not_the_models_fault_is_not_blamed_on_it(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch, good: Path
) -> None:
    def stops(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", stops)
    with pytest.raises(error):
        load_model(str(good))


def test_an_option_that_is_not_known_is_named(good: Path) -> None:
    with pytest.raises(ValueError, match="unexpected keyword argument 'dtpe'"):
        load_model(str(good), dtpe=torch.float32)


def test_a_good_folder_is_read_as_transformers_reads_it(good: Path) -> None:
    model, tokenizer = load_model(str(good))
    plain = AutoModelForCausalLM.from_pretrained(good, dtype=torch.float32)
    assert not model.training
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    for name, weight in plain.state_dict().items():
        assert torch.equal(model.state_dict()[name], weight)
    assert len(tokenizer) == 97


# Prompts and options


@pytest.mark.parametrize(
    ("prompt", "sentence"),
    [
        ([], "the prompt is empty; it must have at least one token"),
        (torch.tensor([]), "the prompt is empty; it must have at least one token"),
        ("", "the prompt is empty; it must have at least one character"),
        ([5, 97], "the prompt holds token 97; the target's vocabulary has ids 0 to 96"),
        ([5] * 256, "the prompt has 256 tokens; the target's context holds 256"),
        (torch.ones(2, 3, dtype=torch.int64), r"the prompt's token ids have shape \(2, 3\) and type int64"),
        ([0.5], r"the prompt's token ids have shape \(1,\) and type float64; they must be one sequence of integers"),
        (["t5", 5], r"the prompt's token ids have shape \(2,\) and type <U"),
        (5, r"the prompt's token ids have shape \(\)"),
        (None, r"the prompt's token ids have shape \(\) and type object"),
        ([{"role": "user", "content": "t5"}], "chat messages need a chat template"),
    ],
)
def test_a_bad_prompt_is_refused_in_words(prompt: Any, sentence: str, good: Path) -> None:
    decoder = talon_core.load(good)
    with pytest.raises(ValueError, match=sentence):
        decoder.generate(prompt, max_new_tokens=2)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens is 0; it must be a whole number and at least 1"),
        ({"max_new_tokens": "5"}, "max_new_tokens is '5'; it must be a whole number"),
        ({"max_new_tokens": 2.5}, "max_new_tokens is 2.5; it must be a whole number"),
        ({"seed": -1}, "seed is -1; it must be a whole number and at least 0"),
        ({"seed": "lucky"}, "seed is 'lucky'; it must be a whole number"),
        ({"temperature": -1.0}, r"temperature is -1.0; it must be 0 \(greedy\), or a finite number of at least 1e-30"),
        ({"temperature": 5e-324}, "temperature is 5e-324; it must be"),
        ({"temperature": True}, "temperature is True; it must be"),
        ({"max_new_tokens": True}, "max_new_tokens is True; it must be a whole number"),
        ({"seed": True}, "seed is True; it must be a whole number"),
        ({"max_time": True}, "max_time is True; it must be a number"),
        ({"temperature": float("nan")}, "temperature is nan; it must be"),
        ({"temperature": "warm"}, "temperature is 'warm'; it must be"),
        ({"temprature": 1.0}, "temprature"),
        ({"num_beams": 3}, "num_beams is 3|a batch of 3 prompts"),
    ],
)
def test_a_bad_option_is_refused_in_words(options: dict[str, Any], sentence: str, good: Path) -> None:
    decoder = talon_core.load(good)
    with pytest.raises(ValueError, match=sentence):
        decoder.generate([5, 6], **options)


def test_token_ids_may_come_in_any_sequence(good: Path) -> None:
    decoder = talon_core.load(good)
    expected = decoder.generate(torch.tensor([5, 6, 7]), max_new_tokens=6).token_ids
    for prompt in ([5, 6, 7], torch.tensor([[5, 6, 7]]), torch.tensor([5, 6, 7], dtype=torch.int32).numpy()):
        assert decoder.generate(prompt, max_new_tokens=6).token_ids == expected


@pytest.mark.parametrize(
    ("prompts", "options", "sentence"),
    [
        ([[5, 6], [], [7]], {}, r"^prompt 2 of 3: the prompt is empty"),
        ([[5, 6], [7], [5, 97]], {}, r"^prompt 3 of 3: the prompt holds token 97"),
        ([[5, 6], [7] * 60], {"max_length": 50}, r"^prompt 2 of 2: "),
        ([[5, 6], [7] * 9999], {}, r"^prompt 2 of 2: the prompt has 9999 tokens"),
        ([[5, 97]], {}, r"^the prompt holds token 97"),
        ([[5, 6], [7]], {"temperature": -1.0}, r"^temperature"),
        ([[5, 6], []], {"seed": -1}, r"^seed"),
    ],
)
def test_a_bad_prompt_among_many_is_named_and_a_bad_option_is_not_blamed_on_one(
    good: Path, monkeypatch: pytest.MonkeyPatch, prompts: list[list[int]], options: dict[str, Any], sentence: str
) -> None:
    decoder = talon_core.load(good)
    monkeypatch.setattr(decoder.engine, "step", lambda *_: pytest.fail("something was decoded"))
    with pytest.raises(ValueError, match=sentence):
        decoder.generate([list(prompt) for prompt in prompts], **options)


def test_a_prompt_among_many_that_needs_too_many_rows_is_named(good: Path) -> None:
    decoder = talon_core.load(good, policy="none", bounds=Bounds(rows=50))
    with pytest.raises(ValueError, match=r"^prompt 2 of 2: the prompt has 40 tokens, 20 new ones are asked for"):
        decoder.generate([[5, 6], [7] * 40], max_new_tokens=20)


# Plain weights beside a GGUF file


@pytest.fixture
def export(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Plain weights of any model are a word; the names of those that were exported."""
    written: list[str] = []

    def export_model(name: str, folder: Path) -> None:
        written.append(name)
        folder.mkdir()
        (folder / "model.safetensors").write_text("weights")

    monkeypatch.setattr(loading, "export_model", export_model)
    return written


@pytest.mark.parametrize(
    ("damage", "verify", "says"),
    [
        (lambda folder: None, True, None),
        (lambda folder: (folder / "model.safetensors").write_text("wEights"), False, None),
        (lambda folder: (folder / "model.safetensors").write_text("wEights"), True, "the contents changed"),
        (lambda folder: (folder / "model.safetensors").write_text("weigh"), False, "has 5 bytes where 7 are right"),
        (lambda folder: (folder / PLAIN_NOTE).unlink(), False, None),
        (
            lambda folder: (folder / PLAIN_NOTE).unlink(),
            True,
            "there is no note of their sha256, as an earlier version",
        ),
        (lambda folder: (folder / PLAIN_NOTE).write_text("[]"), False, f"{PLAIN_NOTE} is not readable"),
        (lambda folder: (folder / PLAIN_NOTE).write_text("{"), True, f"{PLAIN_NOTE} is not readable"),
    ],
)
def test_plain_weights_are_compared_with_their_note_and_made_anew(
    tmp_path: Path,
    export: list[str],
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[Path], Any],
    verify: bool,
    says: str | None,
) -> None:
    folder = tmp_path / "some"
    folder.mkdir()
    loading.add_plain_weights("some", folder)
    noted = (folder / PLAIN_NOTE).read_text()
    damage(folder)
    loading.add_plain_weights("some", folder, verify=verify)
    assert export == ["some"] * (1 if says is None else 2)
    told = capsys.readouterr().err
    if says is None:
        assert not told
        return
    assert told.startswith("some: the float32 weights in ")
    assert says in told
    assert (folder / "model.safetensors").read_text() == "weights"
    assert (folder / PLAIN_NOTE).read_text() == noted
    assert sorted(path.name for path in folder.iterdir()) == ["model.safetensors", PLAIN_NOTE]
    assert [path.name for path in tmp_path.iterdir()] == ["some"]


def test_plain_weights_are_added_once(tmp_path, monkeypatch):
    written = []

    def export(name, folder):
        written.append(name)
        folder.mkdir()
        (folder / "model.safetensors").write_text("weights")
        (folder / "model.safetensors").chmod(0o600)  # as safetensors does

    monkeypatch.setattr(loading, "export_model", export)
    folder = tmp_path / "some"
    folder.mkdir()
    for _ in range(2):
        loading.add_plain_weights("some", folder)
    assert written == ["some"]
    assert (folder / "model.safetensors").read_text() == "weights"
    (tmp_path / "usual").touch()
    usual = (tmp_path / "usual").stat().st_mode
    assert (folder / "model.safetensors").stat().st_mode == usual  # users may share a cache
    (tmp_path / "usual").unlink()
    assert [path.name for path in tmp_path.iterdir()] == ["some"]


def test_plain_weights_that_cannot_be_written_are_told_in_words(tmp_path, monkeypatch):
    def export(name, folder):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(loading, "export_model", export)
    (tmp_path / "some").mkdir()
    with pytest.raises(ValueError, match=r"float32 weights of 'some' cannot be written .*No space left.*TALON_CACHE"):
        loading.add_plain_weights("some", tmp_path / "some")
    assert [path.name for path in tmp_path.iterdir()] == ["some"]


def test_the_folder_of_an_embedded_model_is_read_by_transformers_alone(smollm):
    folder = Path(models_resolve("smollm2-135m"))
    loading.add_plain_weights("smollm2-135m", folder)
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert weights_hash(plain) == weights_hash(smollm[0])


def test_a_disk_that_takes_no_more_weights_is_told_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refused:
        def save_pretrained(self, folder: Path) -> None:
            save_file({"weight": torch.zeros(1)}, folder.parent / "missing" / "model.safetensors")

    monkeypatch.setattr(loading, "load_model", lambda *_, **__: (Refused(), None))
    with pytest.raises(OSError, match=r"the folder '.*out' of 'm' cannot be written: .*os error"):
        loading.export_model("m", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
