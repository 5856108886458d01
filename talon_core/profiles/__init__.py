"""Profiles: what the passes of a round take on one machine, measured or worked out, and kept in a file."""
