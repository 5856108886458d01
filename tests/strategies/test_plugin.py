import talon_strategies
from talon_core.plugins.registry import load_registry


def test_every_policy_and_rule_is_found_through_the_entry_point():
    registry = load_registry()
    for kind, classes in (
        ("tree policy", talon_strategies.talon_policies()),
        ("rule", talon_strategies.talon_rules()),
        ("schedule", talon_strategies.talon_schedules()),
    ):
        for cls in classes:
            found = registry.get(kind, cls.name)
            assert (found.cls, found.plugin) == (cls, "talon-core:talon-strategies")


def test_every_policy_rule_and_schedule_that_is_exported_is_registered():
    registered = {
        *talon_strategies.talon_policies(),
        *talon_strategies.talon_rules(),
        *talon_strategies.talon_schedules(),
    }
    assert {cls.__name__ for cls in registered} == set(talon_strategies.__all__)
