"""Pytest fixtures for plugin authors. Every pytest run loads this file, so it imports only what a fixture needs."""

from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from talon_core.certify.certificate import Certificate
    from talon_core.policy import TreePolicy
    from talon_core.rounds import Round
    from talon_core.rule import AcceptanceRule, Accepted
    from talon_core.table import TableDrafter
    from talon_core.testing.benchmarks import Measured, TalonBenchmark
    from talon_core.tree import TokenTree

MEASURED: "pytest.StashKey[list[Measured]]" = pytest.StashKey()
"""What `talon_benchmark` has measured besides time."""

WORLDS = 300
"""How many worlds a test tries where it does not say; `certify` itself tries 2,000."""


def _kit(fixture: str) -> Any:
    """`talon_core.testing`, for a fixture that needs Hypothesis."""
    if find_spec("hypothesis") is None:
        pytest.fail(f"fixture '{fixture}' needs hypothesis: pip install 'talon-core[testing]'", pytrace=False)
    return import_module("talon_core.testing")


def _table(laws: Any) -> "TableDrafter":
    from talon_core.table import TableDrafter

    return laws if isinstance(laws, TableDrafter) else TableDrafter(laws)


def _rule(rule: "AcceptanceRule | str | None", policy: "TreePolicy | None" = None) -> "AcceptanceRule":
    from talon_core.plugins.fitting import rule_for
    from talon_core.plugins.parts import built
    from talon_core.plugins.registry import load_registry

    registry = load_registry()
    made: AcceptanceRule = built(registry, "rule", rule_for(registry, policy) if rule is None else rule)
    return made


@pytest.fixture(scope="session")
def talon_check_policy() -> Callable[..., None]:
    """talon_check_policy(make, *, max_examples): `check_tree_policy`, the contract of tree policies."""
    check: Callable[..., None] = _kit("talon_check_policy").check_tree_policy
    return check


@pytest.fixture(scope="session")
def talon_check_rule() -> Callable[..., None]:
    """talon_check_rule(make, *, max_examples): `check_rule`, the contract of acceptance rules."""
    check: Callable[..., None] = _kit("talon_check_rule").check_rule
    return check


@pytest.fixture(scope="session")
def talon_check_drafter() -> Callable[..., None]:
    """talon_check_drafter(drafter, target, *, prompts, max_examples, tolerance): `check_drafter`, for drafters."""
    check: Callable[..., None] = _kit("talon_check_drafter").check_drafter
    return check


@pytest.fixture(scope="session")
def talon_certify() -> Callable[..., "Certificate"]:
    """talon_certify(policy, rule=None, *, drafter, worlds, seed, vary): `certify` in 300 worlds.

    Fails with the counterexample and the seed if the output does not have the target's law.
    """
    kit = _kit("talon_certify")

    def certify(
        policy: "TreePolicy | str", rule: "AcceptanceRule | str | None" = None, *, worlds: int = WORLDS, **options: Any
    ) -> "Certificate":
        __tracebackhide__ = True
        try:
            certificate: Certificate = kit.certify(policy, rule, worlds=worlds, **options)
        except kit.CertificationError as error:
            raise error.with_traceback(None) from None  # the message says more than the search's frames
        return certificate

    return certify


@pytest.fixture(scope="session")
def talon_draft() -> Callable[..., "TokenTree"]:
    """talon_draft(policy, laws, *, root=0, max_depth=10, ends=(), seed=0): one tree that a policy drafts.

    `laws` is a table as of `TableDrafter`, or one: a single row is the law of the next token whatever came before.
    Nothing is drafted deeper than `max_depth`, nor after the tokens `ends`. The seed is for policies that draw.
    """
    from talon_core.choices import SeededChoices
    from talon_core.engine.checked_policy import begun
    from talon_core.engine.drafting import DraftLimits, draft_tree
    from talon_core.policy import SequenceInfo

    def draft(
        policy: "TreePolicy", laws: Any, *, root: int = 0, max_depth: int = 10, ends: Iterable[int] = (), seed: int = 0
    ) -> "TokenTree":
        drafter = _table(laws)
        limits = DraftLimits(drafter.vocab_size, max_depth, frozenset(ends))
        own = begun(policy, SequenceInfo(prompt_length=1, max_new_tokens=max_depth + 1, temperature=1.0))
        return draft_tree(own, drafter, root, limits, SeededChoices(seed)).tree

    return draft


@pytest.fixture(scope="session")
def talon_rounds() -> Callable[..., "list[Round]"]:
    """talon_rounds(policy, target, drafter, *, rule=None, prompt=(0,), tokens=8, ends=(), temperature=0.0, seed=0).

    The rounds of one generation. `target` has the law after each token, shape `(vocab, vocab)`, or one for all, shape
    `(1, vocab)`; `drafter` is a table as for `talon_draft`. By default the rule is the policy's default rule.
    """
    import numpy as np

    from talon_core.certify.exact import Given
    from talon_core.decoding.decoder import Decoder
    from talon_core.request import Request
    from talon_core.sampling import temperature_sampling
    from talon_core.table import TableTarget

    def rounds(
        policy: "TreePolicy",
        target: Any,
        drafter: Any,
        *,
        rule: "AcceptanceRule | str | None" = None,
        prompt: Iterable[int] = (0,),
        tokens: int = 8,
        ends: Iterable[int] = (),
        temperature: float = 0.0,
        seed: int = 0,
    ) -> "list[Round]":
        laws = np.array(target, dtype=np.float64, ndmin=2)
        with np.errstate(divide="ignore"):
            logits = np.log(np.broadcast_to(laws, (laws.shape[1],) * 2))
        chosen = _rule(rule, policy)
        request = Request(
            ids=np.array([*prompt], dtype=np.int64),
            max_new_tokens=tokens,
            sampling=temperature_sampling(temperature),
            eos=frozenset(ends),
            seed=seed,
        )
        decoder = Decoder(TableTarget(logits), chosen, policy, Given(_table(drafter)), lossy=chosen.lossy)
        return list(decoder.run(request))

    return rounds


@pytest.fixture(scope="session")
def talon_walks() -> Callable[..., "list[tuple[float, Accepted]]"]:
    """talon_walks(rule, tree, target, *, end=None): every way in which a rule may walk through a tree.

    Pairs of a probability and what is accepted. `target` is a table of the target's laws, as for `talon_draft`; the
    text ends with the token `end`.
    """
    from talon_core.choices import enumerate_outcomes
    from talon_core.testing.table import TableLaws

    def walks(
        rule: "AcceptanceRule | str", tree: "TokenTree", target: Any, *, end: int | None = None
    ) -> "list[tuple[float, Accepted]]":
        made, table = _rule(rule), _table(target)
        return list(enumerate_outcomes(lambda choices: made.walk(tree, TableLaws(table, tree, end), choices)))

    return walks


@pytest.fixture
def talon_benchmark(request: pytest.FixtureRequest) -> "TalonBenchmark":
    """talon_benchmark.grow(policy), .rounds(policy) or .replay(policy): times a tree policy; one of them a test."""
    if not request.config.pluginmanager.hasplugin("benchmark"):
        missing = "fixture 'talon_benchmark' needs pytest-benchmark: pip install 'talon-core[testing]'"
        pytest.fail(missing, pytrace=False)
    from talon_core.testing.benchmarks import TalonBenchmark

    return TalonBenchmark(request.getfixturevalue("benchmark"), request.config.stash.setdefault(MEASURED, []))


def pytest_itemcollected(item: pytest.Item) -> None:
    """`--benchmark-only` and `--benchmark-skip` look for the fixture `benchmark` among those that a test names."""
    names = getattr(item, "fixturenames", [])
    if "talon_benchmark" in names and "benchmark" not in names and item.config.pluginmanager.hasplugin("benchmark"):
        names.append("benchmark")


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Tell what `talon_benchmark` has measured besides time, which pytest-benchmark stores and does not show."""
    measured = config.stash.get(MEASURED, [])
    if measured:
        from talon_core.testing.benchmarks import summary

        terminalreporter.write_sep("-", "talon_benchmark")
        for line in summary(measured):
            terminalreporter.write_line(line)
