"""Acceptance rules, a file each."""
