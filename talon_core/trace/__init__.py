"""Traces: what a drafter proposed at every position of the target's own text, so that any policy can be tried on it.

`record` makes a folder, `replay` tries policies on it without either model, `oracle` says what was to be won.
"""
