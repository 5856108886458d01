"""Training drafters for a target: its own answers to prompts, a head that learns to foresee them, an export."""
