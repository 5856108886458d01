"""TALON's own schedules: what is prepared while the target verifies."""
