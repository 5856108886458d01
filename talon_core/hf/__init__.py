"""The adapter to `transformers`: the only part of the core that imports it."""
