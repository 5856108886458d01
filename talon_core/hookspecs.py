"""The hooks of TALON's plugins. A plugin is a module or object named by an entry point in the group `talon`."""

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from talon_core.attention import Accelerator, AttentionBackend
    from talon_core.drafter import DrafterSpec
    from talon_core.peer import Peer
    from talon_core.policy import TreePolicy
    from talon_core.recipe import Recipe
    from talon_core.rule import AcceptanceRule
    from talon_core.schedule import Schedule

hookspec = pluggy.HookspecMarker("talon")
hookimpl = pluggy.HookimplMarker("talon")
"""Marks a plugin's function as one of TALON's hooks."""


@hookspec
def talon_policies() -> "list[type[TreePolicy]]":  # type: ignore[empty-body]
    """Tree policies: `attrs.frozen` subclasses of `TreePolicy`, not instances."""


@hookspec
def talon_drafters() -> "list[type[DrafterSpec]]":  # type: ignore[empty-body]
    """Drafters: `attrs.frozen` subclasses of `DrafterSpec`, not instances."""


@hookspec
def talon_rules() -> "list[type[AcceptanceRule]]":  # type: ignore[empty-body]
    """Acceptance rules: `attrs.frozen` subclasses of `AcceptanceRule`, not instances."""


@hookspec
def talon_schedules() -> "list[type[Schedule]]":  # type: ignore[empty-body]
    """Schedules: `attrs.frozen` subclasses of `Schedule`, not instances."""


@hookspec
def talon_attention() -> "list[type[AttentionBackend]]":  # type: ignore[empty-body]
    """Backends of tree attention: subclasses of `AttentionBackend`, not instances."""


@hookspec
def talon_accelerators() -> "list[type[Accelerator]]":  # type: ignore[empty-body]
    """Accelerators of model layers: subclasses of `Accelerator`, not instances."""


@hookspec
def talon_recipes() -> "list[type[Recipe]]":  # type: ignore[empty-body]
    """Training recipes for `talon train`: `attrs.frozen` subclasses of `Recipe`, not instances."""


@hookspec
def talon_peers() -> "list[type[Peer]]":  # type: ignore[empty-body]
    """Peers for `talon bench run --peer`: `attrs.frozen` subclasses of `Peer`, not instances."""
