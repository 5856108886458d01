"""Peers that come with TALON: what people would take otherwise, as methods of `talon bench run`.

A plugin like anybody's: nothing of the core imports it, and each other program is imported when it is opened.
"""

from talon_core.hookspecs import hookimpl
from talon_core.peer import Peer
from talon_core.peers.assistant import Assistant
from talon_core.peers.economize import Economize
from talon_core.peers.llama_cpp import LlamaCpp
from talon_core.peers.openvino import OpenVino
from talon_core.peers.prompt_lookup import PromptLookup

__all__ = ["Assistant", "Economize", "LlamaCpp", "OpenVino", "PromptLookup"]


@hookimpl
def talon_peers() -> list[type[Peer]]:
    return [Assistant, Economize, LlamaCpp, OpenVino, PromptLookup]
