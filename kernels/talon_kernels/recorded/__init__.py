"""Passes over trees on a CPU, written down once and walked by C, without Python between the steps."""
