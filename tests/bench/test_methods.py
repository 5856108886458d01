"""How a method is written."""

import attrs
import pytest

from talon_core.bench.methods import Method, parse_method, parse_methods
from talon_core.defaults import DEFAULT_POLICY
from talon_core.plugins.parts import Parts, Resolved, resolve
from talon_core.plugins.presets import spelled_out
from talon_core.plugins.registry import load_registry

FOLDER = "draft-model:model=./some/folder"


def on_any_device(parts: Parts) -> Resolved:
    """The parts of a method, whose default policy is the preset on every kind of device."""
    return attrs.evolve(resolve(parts, load_registry()), found_on=None)


@pytest.mark.parametrize(
    ("spec", "drafter", "policy", "rule"),
    [
        ("ngram", "ngram", DEFAULT_POLICY, "match"),
        ("ngram/chain", "ngram", "chain", "match"),
        ("ngram/talon:budget=12,mu=0.1", "ngram", "talon:budget=12,mu=0.1", "match"),
        ("ngram/talon:budget=12,mu=0.1/match", "ngram", "talon:budget=12,mu=0.1", "match"),
        ("ngram//match", "ngram", DEFAULT_POLICY, "match"),
        ("/chain", "auto", "chain", "match"),
        (f"{FOLDER} /", FOLDER, DEFAULT_POLICY, "match"),
        (f"{FOLDER} / chain:length=3", FOLDER, "chain:length=3", "match"),
        (f"{FOLDER} / chain / match", FOLDER, "chain", "match"),
        ("ngram/sampled-chain", "ngram", "sampled-chain", "block"),
        ("ngram/sampled-chain/auto", "ngram", "sampled-chain", "block"),
        (f" {FOLDER}/ / chain ", f"{FOLDER}/", "chain", "match"),
        ("draft-model:model=/abs/folder  /  chain", "draft-model:model=/abs/folder", "chain", "match"),
    ],
)
def test_parts_are_separated_by_slashes_and_those_left_out_take_the_defaults(spec, drafter, policy, rule):
    assert parse_method(spec) == Method(spec.strip(), on_any_device(Parts(drafter, policy, rule)))


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        ("ngram/chain@cached", Parts("ngram", "chain", "match", schedule="cached")),
        ("ngram@cached:budget=8@cpu:1", Parts("ngram", schedule="cached:budget=8", draft_on="cpu:1")),
        ("ngram/chain/match @ pearl @ cuda:0", Parts("ngram", "chain", "match", schedule="pearl", draft_on="cuda:0")),
        ("@branch", Parts(schedule="branch")),
        ("draft-model:model=./a@b / chain @ pearl", Parts("draft-model:model=./a@b", "chain", schedule="pearl")),
        ("draft-model:model=./a@b / @ sync", Parts("draft-model:model=./a@b")),
    ],
)
def test_a_schedule_stands_behind_an_at_and_a_place_behind_another(spec, parts):
    assert parse_method(spec) == Method(spec, on_any_device(parts))


def test_methods_that_name_no_place_draft_where_the_run_says():
    methods = parse_methods(["ngram", "ngram@cached", "ngram@pearl@thread"], draft_on="cpu:1")
    assert [method.schedule for method in methods] == [None, None, ("cached", "cpu:1"), ("pearl", "thread")]
    told = [{key: value for key, value in one.as_dict().items() if key in ("schedule", "draft_on")} for one in methods]
    assert told == [{}, {}, {"schedule": "cached", "draft_on": "cpu:1"}, {"schedule": "pearl", "draft_on": "thread"}]


def test_a_place_where_no_method_drafts_is_refused():
    with pytest.raises(ValueError, match=r"draft_on is 'cpu:1', and every method drafts and verifies in turn"):
        parse_methods(["ngram", "generate"], draft_on="cpu:1")
    with pytest.raises(ValueError, match=r"it must be thread, cpu:1"):
        parse_methods(["ngram"], draft_on="beside")


def test_plain_decoding_is_always_among_the_methods():
    assert [method.name for method in parse_methods(["ngram", "generate"])] == ["none", "ngram", "generate"]
    assert [method.name for method in parse_methods(["ngram", "none"])] == ["ngram", "none"]
    assert [method.name for method in parse_methods([])] == ["none"]


def test_the_manifest_has_the_parts_with_their_defaults():
    plain, fast, generate = parse_methods(["ngram", "generate"])
    assert plain.as_dict() == {"name": "none", "drafter": None, "policy": "none", "rule": "match", "lossless": True}
    assert fast.as_dict() == {
        "name": "ngram",
        "drafter": "ngram",
        "policy": spelled_out(load_registry(), DEFAULT_POLICY),
        "rule": "match",
        "lossless": True,
    }
    assert generate.as_dict() == {"name": "generate", "drafter": None, "policy": None, "rule": None, "lossless": True}


def test_a_lossy_method_is_one_only_where_the_user_says_so():
    sentence = "method 'ngram//typical': rule 'typical' .* is lossy: .*lossy=True allows it"
    with pytest.raises(ValueError, match=sentence):
        parse_method("ngram//typical")
    method = parse_method("ngram//typical:epsilon=0.2", lossy=True)
    assert method.lossless is method.as_dict()["lossless"] is False
    assert [each.lossless for each in parse_methods(["ngram", "generate", "/chain/typical"], lossy=True)] == [
        *(True, True, True, False)
    ]


def test_a_method_with_a_plugins_rule_is_lossless_by_its_own_word(liar):
    method = parse_method("ngram/chain/honest")
    assert method.lossless == method.as_dict()["lossless"] == "claimed"
    assert parse_method("ngram/fixed").lossless is True


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("", "a method is empty"),
        ("n-gram", "method 'n-gram': no drafter 'n-gram'; did you mean 'ngram'?"),
        ("talon-cost", "'talon-cost' is a policy, and a method begins with its drafter: write 'auto/talon-cost'"),
        ("talon:budget=8/match", "a method begins with its drafter: write 'auto/talon:budget=8/match'"),
        ("talon / match", "a method begins with its drafter: write 'auto / talon / match'"),
        ("talon/ngram", "a method begins with its drafter: write 'ngram/talon'"),
        ("default/ngram/match", "a method begins with its drafter: write 'ngram/default/match'"),
        ("chain:length=3/a/b", "no "),
        ("default", "'default' is a policy, and a method begins with its drafter: write 'auto/default'"),
        ("ngram/tallon", "did you mean 'talon'?"),
        ("ngram/talon/mach", "did you mean 'match'?"),
        ("ngram/talon:budgt=3", "did you mean 'budget'?"),
        ("ngram/none", "decoding without drafting is the method 'none'"),
        ("ngram/chain/block", "is not exact for the deterministic trees"),
        ("ngram/chain/match/more", "has 4 parts; at most three are written"),
        (FOLDER, "write ' / ' with spaces between the parts"),
        (f"{FOLDER}/chain", "write ' / ' with spaces between the parts"),
        (f"{FOLDER} / chain / match / more", "has 4 parts"),
        ("none@cached", "'none' drafts nothing; write 'none' alone"),
        ("generate@pearl", "'generate' drafts nothing"),
        ("ngram@cashed", "did you mean 'cached'?"),
        ("ngram@cached@cpu:1@more", "with at most two @"),
        ("ngram/chain@auto", "the schedule is 'auto', which stands for the one that talon tune has kept"),
        ("ngram@", "is written drafter/policy/rule@schedule@place"),
        ("ngram@cached@beside", "draft_on is 'beside'; it must be thread"),
        ("ngram@sync@cpu:1", "the schedule drafts and verifies in turn"),
        ("draft-model:model=./a@b/chain", "write ' @ ' with spaces before the schedule"),
    ],
)
def test_what_is_no_method_gets_a_sentence(spec, sentence):
    with pytest.raises(ValueError, match=r".") as caught:
        parse_method(spec)
    assert sentence in str(caught.value)


HINT = "where an option holds an @, write ' @ ' with spaces before the schedule, or ' @ sync'"


@pytest.mark.parametrize(
    ("spec", "hinted"),
    [
        ("draft-model:model=./a@b/chain", True),
        ("draft-model:model=./a@b@c@d/chain", True),
        ("draft-model:model=a@b@cached", True),
        ("ngram/talon:budget=8@cashed", False),  # a schedule was meant
        ("ngram/talon:bugdet=8@cached", False),  # and it is there
        ("ngram/talon:budget=1@cached", False),
        ("ngram/talon:budget=8@cached:budgt=3", False),
        ("ngram/talon:budget=8@cached@moon", False),
        ("ngram@odd", False),  # there is no option
    ],
)
def test_what_an_at_sign_may_have_meant_is_said_where_it_was_no_schedule(spec, hinted):
    with pytest.raises(ValueError, match=r".") as caught:
        parse_method(spec)
    assert (HINT in str(caught.value)) == hinted


def test_two_names_of_one_method_are_refused():
    with pytest.raises(ValueError, match="'ngram' and 'ngram//match' are the same method"):
        parse_methods(["ngram", "ngram//match"])
    with pytest.raises(ValueError, match="'ngram' and 'ngram@sync' are the same method"):
        parse_methods(["ngram", "ngram@sync"])
    with pytest.raises(ValueError, match="'/sampled-chain' and '/sampled-chain/block' are the same method"):
        parse_methods(["/sampled-chain", "/sampled-chain/block"])
