"""A policy on a trace has the rounds that it has while one decodes."""

import copy
import json
import re
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from talon_core.candidates import Candidates
from talon_core.choices import Choices
from talon_core.costs import Costs
from talon_core.decoding.loading import decoder_for_model
from talon_core.drafter import Frontier
from talon_core.plugins.parts import Parts, resolve
from talon_core.plugins.registry import load_registry
from talon_core.policy import Growth
from talon_core.retrieval import IndexedVocabulary, Piece, vocabulary_of, write_index
from talon_core.rounds import Round
from talon_core.trace.columns import TextTrace
from talon_core.trace.drafter import TraceDrafter
from talon_core.trace.folder import Trace
from talon_core.trace.methods import parse_method
from talon_core.trace.record import Recorder
from talon_core.trace.replay import Replay
from talon_core.tree import TokenTree
from talon_drafters import Lookahead, Ngram
from talon_drafters.eagle.network import EagleHead
from talon_strategies import Talon
from talon_tests.prices import PricesByLength, PricesOfChains
from talon_tests.trained_heads import KINDS

DETERMINISTIC = {
    "none": "none",
    "chain": "chain:length=5",
    "static": "static",
    "eagle2": "eagle2:budget=12,depth=4",
    "opt-tree": "opt-tree:budget=8,delta=0.1,depth=5",
    "ddtree": "ddtree:budget=8",
    "talon": "talon:budget=14,top_k=4,mu=0.1",
    "talon-gate-only": "talon-gate-only:budget=12,mu=0.1",
    "talon-topk-layers": "talon-topk-layers:budget=12,top_k=3,mu=0.1",
    "talon-absolute": "talon-absolute:budget=12,top_k=4",
    "talon-local": "talon-local:budget=12,top_k=4,mu=0.1",
    "svip": "svip:length=6,h=0.6",
    "adaedl": "adaedl:length=6,threshold=0.2",
    "ddd": "ddd:budget=12,depth=4,checked=1;2;3,threshold=0.05",
    "gammatune": "gammatune:length=6",
    "gammatune-plus": "gammatune-plus:length=6,tau=0.1",
    "heuristic": "heuristic:length=6",
    "specdec-plus-plus": "specdec-plus-plus:length=6",
    "taps": "taps:of=talon[budget=14;top_k=4;mu=0.1]",
}
DRAWN = {
    "talon-sampled": "talon-sampled:budget=8,top_k=4",
    "talon-cost-sampled": "talon-cost-sampled:budget=8,depth=3",
    "sequoia": "sequoia:budget=8,depth=3",
    "dyspec": "dyspec:budget=8,depth=3",
    "specinfer": "specinfer:widths=2;1",
    "sampled-chain": "sampled-chain:length=3",
}
PRICED = {
    "caddtree": "caddtree:budget=12,depth=5",
    "talon-cost": "talon-cost:budget=12,depth=5",
    "bastion": "bastion:budget=12,depth=5",
    "sps": "sps:length=6,start=0.9,weight=9",
    "bandit": "bandit:of=chain[length=1]+chain[length=4]+talon[budget=12;top_k=4;mu=0.1],explore=0.3",
    "speckv": "speckv:gammas=1;2;3;4;5",
}
OF_SMOLLM = (
    "ngram",
    "draft-model:skip=9-20",
    *KINDS,
    "hybrid",
    "conflayers:context=8,every=8",
)
OF_TEXTS = ("pld", "datastore", "lookahead:window=0")
Rounds = list[tuple[list[int], list[int], list[int]]]


def of(rounds: Sequence[Round]) -> Rounds:
    """What tells rounds apart: the tree that was verified, the path, and what was emitted."""
    return [(one.tree.tokens.tolist(), one.path.tolist(), one.tokens.tolist()) for one in rounds]


def replayed(trace: Trace, text: TextTrace, method: str, costs: Costs | None = None) -> tuple[Rounds, int]:
    replay, made = Replay(trace, costs), parse_method(method, trace, load_registry())
    replay.check(made)
    found = replay.text(made, text)
    return of(found.rounds), found.outside


def decoded(
    model: tuple[Any, Any],
    trace: Trace,
    text: TextTrace,
    policy: str,
    make: Any,
    costs: Costs | None = None,
    drafter: str | None = None,
) -> Rounds:
    settings = trace["settings"]
    decoder = make(*model, Parts(drafter or trace["drafter"]["spec"], policy, "auto"), costs)
    options = {"max_new_tokens": settings["max_new_tokens"], "temperature": settings["temperature"]}
    result = decoder.generate(text.ids[: text.prompt_tokens], **options, seed=settings["seed"] + text.prompt)
    assert result.token_ids == text.ids[text.prompt_tokens :].tolist()
    return of(result.rounds)


def test_every_built_in_policy_and_drafter_is_tried() -> None:
    registry = load_registry()
    assert {*DETERMINISTIC, *DRAWN, *PRICED} == {*registry.names("tree policy"), "none"}
    assert {spec.partition(":")[0] for spec in (*OF_SMOLLM, *OF_TEXTS)} == {*registry.names("drafter")}


@pytest.mark.parametrize("policy", DETERMINISTIC.values(), ids=DETERMINISTIC.keys())
def test_the_rounds_are_those_of_greedy_decoding(
    tiny: Any, shared_target: Any, recorded: Callable[..., Trace], policy: str
) -> None:
    trace = recorded(tiny)
    for text in trace:
        assert replayed(trace, text, policy) == (decoded(tiny, trace, text, policy, shared_target), 0)


def test_whether_costs_are_lacking_is_told_by_each_answer_alone(tiny: Any, recorded: Callable[..., Trace]) -> None:
    trace = recorded(tiny)
    text = trace.text(*trace.texts()[0])
    asks, asks_not = (parse_method(spec, trace, load_registry()) for spec in (PRICED["talon-cost"], "chain:length=2"))
    replay = Replay(trace)
    assert [replay.lacks_costs(one, text) for one in (asks, asks_not, asks)] == [True, False, True]
    costs = replay.costs_of(asks)
    assert costs is replay.costs_of(asks)
    replay.text(asks, text)
    assert getattr(costs, "asked")  # noqa: B009 - costs in general do not tell
    assert not replay.lacks_costs(asks_not, text)
    assert getattr(costs, "asked")  # noqa: B009 - what was found out before stands
    assert not Replay(trace, PricesByLength()).lacks_costs(asks, text)


@pytest.mark.parametrize("policy", PRICED.values(), ids=PRICED.keys())
def test_so_are_those_of_policies_that_ask_what_passes_take_by_the_same_costs(
    tiny: Any, shared_target: Any, recorded: Callable[..., Trace], policy: str
) -> None:
    trace = recorded(tiny)
    sizes = set()
    for text in trace:
        found = replayed(trace, text, policy, PricesByLength())
        assert found == (decoded(tiny, trace, text, policy, shared_target, PricesByLength()), 0)
        sizes |= {len(tokens) for tokens, _, _ in found[0]}
    assert len(sizes) > 2
    assert max(sizes) > 3


@pytest.mark.parametrize("policy", DRAWN.values(), ids=DRAWN.keys())
def test_so_are_those_of_policies_that_draw_where_whole_laws_were_recorded(
    small: Any, shared_target: Any, recorded: Callable[..., Trace], policy: str
) -> None:
    trace = recorded(small, laws=True, max_new_tokens=8, width=11, nodes=121, depth=3, least=0.0)
    for text in trace:
        found = replayed(trace, text, policy, PricesByLength())
        assert found == (decoded(small, trace, text, policy, shared_target, PricesByLength()), 0)


@pytest.mark.parametrize("policy", [*DETERMINISTIC, *PRICED])
def test_a_text_that_was_drawn_is_replayed_by_sample_and_match(
    tiny: Any, shared_target: Any, recorded: Callable[..., Trace], policy: str
) -> None:
    trace, spec, costs = recorded(tiny, temperature=0.7, seed=3), {**DETERMINISTIC, **PRICED}[policy], PricesByLength()
    texts = [*trace]
    assert len({tuple(text.ids[text.prompt_tokens :].tolist()) for text in texts}) > 1
    for text in texts:
        assert replayed(trace, text, spec, costs) == (decoded(tiny, trace, text, spec, shared_target, costs), 0)


@pytest.mark.parametrize("policy", [DETERMINISTIC["talon"], DETERMINISTIC["static"]])
def test_a_drafter_of_texts_is_asked_again(
    tiny: Any, shared_target: Any, recorded: Callable[..., Trace], policy: str
) -> None:
    trace = recorded(tiny, "ngram")
    assert all(text.rows is None for text in trace)
    for text in trace:
        assert replayed(trace, text, policy) == (decoded(tiny, trace, text, policy, shared_target), 0)
    other = recorded(tiny)
    for text, same in zip(trace, other, strict=True):
        assert replayed(trace, text, policy) == replayed(other, same, f"ngram/{policy}")


def test_drafters_that_look_up_are_asked_again_where_their_files_are(
    tiny: Any, shared_target: Any, recorded: Callable[..., Trace], tmp_path: Path
) -> None:
    ngram = recorded(tiny, "ngram")
    texts = [Piece(text.ids) for text in ngram]
    write_index(tmp_path / "index", texts[:2], vocabulary_of(tiny[1], "tiny"))
    for drafter in ("pld", f"datastore:path={tmp_path / 'index'}"):
        trace = recorded(tiny, drafter)
        found = [replayed(trace, text, "talon") for text in trace]
        assert found == [(decoded(tiny, trace, text, "talon", shared_target), 0) for text in trace]
        assert found == [replayed(ngram, text, f"{drafter} / talon") for text in ngram]


def test_files_that_were_changed_since_are_not_taken_for_those_of_the_trace(
    tiny: Any, recorded: Callable[..., Trace], tmp_path: Path
) -> None:
    texts, vocabulary = [Piece(text.ids) for text in recorded(tiny, "ngram")], vocabulary_of(tiny[1], "tiny")
    drafter = f"datastore:path={tmp_path / 'index'}"
    write_index(tmp_path / "index", texts[:1], vocabulary)
    trace = recorded(tiny, drafter)
    before = [replayed(trace, text, "talon") for text in trace]
    shutil.rmtree(tmp_path / "index")
    write_index(tmp_path / "index", texts[1:], vocabulary)
    refused = (
        rf"^method 'talon': the files of '{re.escape(drafter)}' are not those that the trace .* record it anew, or"
    )
    with pytest.raises(ValueError, match=refused):
        parse_method("talon", trace, load_registry())
    assert [
        replayed(trace, text, f"{drafter} / talon") for text in trace
    ] != before  # what is named is what is there now


def test_files_of_another_vocabulary_are_refused_as_while_one_decodes(
    tiny: Any, shared_target: Any, recorded: Callable[..., Trace], recorder: Callable[..., Any], tmp_path: Path
) -> None:
    trace = recorded(tiny, "ngram")
    drafter = f"datastore:path={tmp_path / 'index'}"
    write_index(tmp_path / "index", [Piece(text.ids) for text in trace], IndexedVocabulary("parrot", 97, "another"))
    refused = r"the datastore '.*index' was made with the tokenizer of 'parrot', and the target has another one: build"
    with pytest.raises(ValueError, match=refused):
        shared_target(*tiny, Parts(drafter, "talon"))
    with pytest.raises(ValueError, match=refused):
        recorder(tiny, drafter)
    for method in (f"{drafter} / talon", f"hybrid:of=ngram+datastore[path={tmp_path / 'index'}] / talon"):
        made = parse_method(method, trace, load_registry())
        with pytest.raises(ValueError, match=f"^method '{re.escape(method)}': {refused}"):
            Replay(trace).check(made)
        with pytest.raises(ValueError, match=f"^{refused}"):
            Replay(trace).text(made, trace.text(*trace.texts()[0]))
    told = {name: value for name, value in trace["environment"].items() if name != "tokenizer_sha256"}
    earlier = Trace(trace.folder, {**trace.manifest, "environment": told})
    assert all(replayed(earlier, text, f"{drafter} / talon")[0] for text in earlier)  # such a trace does not tell


def test_tokens_that_were_added_to_a_tokenizer_and_not_to_the_model_make_no_other_vocabulary(
    tiny: Any, recorder: Callable[..., Recorder], tmp_path: Path
) -> None:
    (model, tokenizer), drafter = tiny, f"datastore:path={tmp_path / 'index'}"
    write_index(tmp_path / "index", [Piece([1, 2, 3])], vocabulary_of(tokenizer, "tiny"))
    added = copy.deepcopy(tokenizer)
    added.add_special_tokens({"pad_token": "[PAD]"})
    assert len(added) == len(tokenizer) + 1
    decoder_for_model(model, added, Parts(drafter, "talon"))
    own = Recorder(recorder(tiny, "ngram").wanted, model, added, Ngram(), "ngram")
    trace = Trace(tmp_path, own.manifest())
    Replay(trace).check(parse_method(f"{drafter} / talon", trace, load_registry()))


def test_layers_that_follow_the_text_are_replayed_and_a_window_beside_the_trees_is_refused(
    tiny: Any, shared_target: Any, recorded: Callable[..., Trace]
) -> None:
    trace = recorded(tiny, "conflayers:context=8,every=8", width=8, nodes=2, depth=6)
    for text in trace:
        policy = DETERMINISTIC["chain"]
        assert replayed(trace, text, policy) == (decoded(tiny, trace, text, policy, shared_target), 0)
    with pytest.raises(ValueError, match="drafter 'lookahead' with these options asks the target beside every tree"):
        recorded(tiny, "lookahead")
    with pytest.raises(ValueError, match="'lookahead' needs the model"):
        parse_method("lookahead/talon", trace, load_registry())
    assert parse_method("lookahead:window=0/talon", trace, load_registry()).drafter == Lookahead(window=0)


SMOLLM = [
    *((drafter, "talon") for drafter in OF_SMOLLM),
    *(("eagle3", policy) for policy in (*DETERMINISTIC, *PRICED) if policy != "talon"),
]
"""Every drafter and every policy at least once; the others are the matrix."""


@pytest.mark.models
@pytest.mark.slow
@pytest.mark.parametrize(
    ("drafter", "policy"),
    [
        pytest.param(drafter, policy, marks=[] if (drafter, policy) in SMOLLM else [pytest.mark.matrix])
        for drafter in OF_SMOLLM
        for policy in (*DETERMINISTIC, *PRICED)
    ],
)
def test_the_rounds_are_those_of_decoding_smollm(
    smollm: tuple[Any, Any],
    shared_target: Any,
    recorded: Callable[..., Trace],
    english: Any,
    eagle: str,
    drafter: str,
    policy: str,
) -> None:
    tokens = 10 if drafter == "eagle3" else 6
    made = eagle if drafter == "eagle" else drafter
    trace = recorded(smollm, made, prompts=english, max_new_tokens=tokens, nodes=48, depth=6)
    (text,) = trace
    spec, costs = {**DETERMINISTIC, **PRICED}[policy], PricesByLength()
    expected = decoded(smollm, trace, text, spec, shared_target, costs)
    assert replayed(trace, text, spec, costs) == (expected, 0)
    none_pays = policy == "none" or (drafter, policy) == ("eagle", "talon-cost")  # that head has random weights
    assert none_pays or any(len(tree) > 1 for tree, _, _ in expected)
    if (drafter, policy) == ("eagle3", "talon"):
        assert len(expected) < 8


@pytest.mark.models
@pytest.mark.slow
@pytest.mark.parametrize("beside", [0.05, 0.0], ids=["chains", "branches"])
def test_so_are_those_whose_passes_are_run_ahead(
    smollm: tuple[Any, Any], shared_target: Any, recorded: Callable[..., Trace], english: Any, beside: float
) -> None:
    trace = recorded(smollm, "eagle3", prompts=english, max_new_tokens=40, nodes=48, depth=6)
    (text,) = trace
    spec, costs = "talon-cost:depth=6", PricesOfChains(beside)
    expected = decoded(smollm, trace, text, spec, shared_target, costs)
    if not shared_target(*smollm, Parts("eagle3", spec, "auto"), costs).engine.parts.chains_on:
        pytest.skip("no pass is run ahead here")
    assert replayed(trace, text, spec, costs) == (expected, 0)
    drafted = [
        one
        for one in Replay(trace, costs).text(parse_method(spec, trace, load_registry()), text).rounds
        if len(one.tree) > 1
    ]
    assert all(len(one.tree) == 1 + one.tree.depths.max() for one in drafted) is (beside > 0.0)
    assert len(drafted) > 5


@pytest.mark.models
@pytest.mark.slow
@pytest.mark.parametrize("drafter", OF_TEXTS)
def test_so_are_those_of_drafters_that_look_up_on_smollm(
    smollm: tuple[Any, Any],
    shared_target: Any,
    recorded: Callable[..., Trace],
    english: Any,
    tmp_path: Path,
    drafter: str,
) -> None:
    trace = recorded(smollm, "ngram", prompts=english, max_new_tokens=6, nodes=16, depth=6)  # the text is any drafter's
    (text,) = trace
    if drafter == "datastore":
        vocabulary = vocabulary_of(smollm[1], "smollm2-135m")
        write_index(tmp_path / "index", [Piece(text.ids)], vocabulary)
        drafter += f":path={tmp_path / 'index'}"
    expected = decoded(smollm, trace, text, DETERMINISTIC["talon"], shared_target, drafter=drafter)
    assert replayed(trace, text, f"{drafter} / {DETERMINISTIC['talon']}") == (expected, 0)


@pytest.fixture(scope="module")
def eagle(smollm: tuple[Any, Any], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The spec of a head with random weights: nobody has trained one of this kind for the model."""
    model, folder = smollm[0], tmp_path_factory.mktemp("eagle")
    torch.manual_seed(1)
    head = EagleHead(model.config, 1, True, model.get_output_embeddings())
    save_file(head.state_dict(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(model.config.to_dict()), encoding="utf-8")
    return f"eagle:path={folder}"


@pytest.mark.models
@pytest.mark.slow
@pytest.mark.parametrize("policy", DRAWN.values(), ids=DRAWN.keys())
def test_so_are_those_of_policies_that_draw_on_smollm(
    smollm: tuple[Any, Any], shared_target: Any, recorded: Callable[..., Trace], english: Any, policy: str
) -> None:
    trace = recorded(smollm, "eagle3", prompts=english, raw=True, max_new_tokens=6, nodes=8, depth=3, laws=True)
    (text,) = trace
    for seed in range(100):  # until all that is drawn was recorded
        seeded = Trace(trace.folder, {**trace.manifest, "settings": {**trace["settings"], "seed": seed}})
        rounds, outside = replayed(seeded, text, policy, PricesByLength())
        if not outside:
            break
    assert (rounds, outside) == (decoded(smollm, seeded, text, policy, shared_target, PricesByLength()), 0)


@pytest.mark.models
@pytest.mark.slow
def test_so_is_a_text_that_was_drawn_from_smollm_by_sample_and_match(
    smollm: tuple[Any, Any], shared_target: Any, recorded: Callable[..., Trace], english: Any
) -> None:
    drawn = {"temperature": 1.3, "seed": 5}
    trace, costs = (
        recorded(smollm, "eagle3", prompts=english, max_new_tokens=8, nodes=48, depth=6, **drawn),
        PricesByLength(),
    )
    (text,) = trace
    greedy = recorded(smollm, "eagle3", prompts=english, max_new_tokens=8, nodes=48, depth=6)
    assert not np.array_equal(text.ids, next(iter(greedy)).ids)
    for policy in (DETERMINISTIC["talon"], DETERMINISTIC["eagle2"], PRICED["talon-cost"]):
        expected = decoded(smollm, trace, text, policy, shared_target, costs)
        assert replayed(trace, text, policy, costs) == (expected, 0)


@pytest.fixture(scope="module")
def english(tmp_path_factory: pytest.TempPathFactory) -> Any:
    file = tmp_path_factory.mktemp("english") / "one.txt"
    file.write_text("One, two, three,")
    return file


def test_questions_outside_the_superset_are_counted(
    tiny: Any, shared_target: Any, recorded: Callable[..., Trace]
) -> None:
    trace = recorded(tiny, width=2, nodes=1, depth=2)
    text = next(iter(trace))
    _, outside = replayed(trace, text, "talon:budget=14,top_k=4")
    assert outside > 0
    rounds, outside = replayed(trace, text, "chain:length=2")
    assert (rounds, outside) == (decoded(tiny, trace, text, "chain:length=2", shared_target), 0)


def with_rules() -> list[tuple[str, str]]:
    """Every policy that draws, with every rule that is exact for it and tests probabilities."""
    registry, found = load_registry(), []
    for policy in DRAWN.values():
        for rule in registry.names("rule"):
            with suppress(ValueError):
                made = resolve(Parts(policy=policy, rule=rule), registry).rule
                if not (made.lossy or made.follows_target):  # which follows the text
                    found.append((policy, rule))
    return found


@pytest.mark.parametrize(("policy", "rule"), with_rules())
def test_at_a_temperature_a_rule_tests_the_laws_that_were_recorded(
    small: Any, shared_target: Any, recorded: Callable[..., Trace], policy: str, rule: str
) -> None:
    sizes = {"max_new_tokens": 8, "width": 11, "nodes": 121, "depth": 3, "least": 0.0}
    trace, costs = recorded(small, temperature=0.7, laws=True, **sizes), PricesByLength()
    text, lengths = next(iter(trace)), set()
    decoder = shared_target(*small, Parts(trace["drafter"]["spec"], policy, rule), costs)
    for seed in range(16):
        seeded = Trace(trace.folder, {**trace.manifest, "settings": {**trace["settings"], "seed": seed}})
        rounds, _ = replayed(seeded, text, f"{policy}/{rule}", costs)
        assert sum(len(tokens) for _, _, tokens in rounds) == text.positions
        decoder.engine.forget()
        options = {"max_new_tokens": 8, "temperature": 0.7, "seed": seed + text.prompt}
        expected = of(decoder.generate(text.ids[: text.prompt_tokens], **options).rounds)
        assert rounds[0][:2] == expected[0][:2]  # of the rounds behind it the text is another one
        lengths.add(len(rounds[0][1]))
    assert len(lengths) > 1


@attrs.frozen
class Writing(Talon):
    """Makes arrays that it is shown writeable, if it can, and writes into them."""

    name = "writing"

    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        growth = super().grow(tree, candidates, choices)
        shown = [candidates.frontier, candidates.tokens, candidates.logp, candidates.path_logp, tree.tokens]
        for array in shown:
            for own in (array,) if array.base is None else (array.base, array):
                with suppress(ValueError):
                    own.flags.writeable = True
                    own[...] = 1
        return growth


def test_a_policy_cannot_change_what_it_is_shown(tiny: Any, recorded: Callable[..., Trace]) -> None:
    trace = recorded(tiny)
    replay, made = Replay(trace), parse_method("talon", trace, load_registry())
    text = next(iter(trace))
    found = [replay.text(attrs.evolve(made, policy=policy), text) for policy in (Talon(), Writing())]
    assert of(found[0].rounds) == of(found[1].rounds)


def test_a_question_outside_is_counted_in_its_own_round_alone(tiny: Any, recorded: Callable[..., Trace]) -> None:
    text = next(iter(recorded(tiny, width=2, nodes=1, depth=2)))
    drafter, root = TraceDrafter(text, None), TokenTree.root(0)
    drafter.open(0, text.ids[: text.prompt_tokens], len(text.ids))
    (offered,) = drafter.propose([Frontier(0, root, np.array([0]), 1)]).candidates
    child = root.extend(np.array([96]), np.array([0]), offered.path_logp[0])
    drafter.propose([Frontier(0, child, np.array([1]), 1)])
    assert drafter.outside(child) == 1
    drafter.go_on(1)
    assert drafter.outside(root) == 0  # the next tree may be a root from which nothing is drafted
