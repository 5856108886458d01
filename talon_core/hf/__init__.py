"""The adapter to `transformers`: what runs its models, and says what they say.

Elsewhere in the core only `certify.worlds` imports transformers, for its logits processors, and functions that load,
convert or quieten models, when they are called.
"""
