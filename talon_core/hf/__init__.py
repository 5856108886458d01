"""The adapter to `transformers`: what runs its models, and says what they say.

Elsewhere in the core only functions that load, convert or quieten models import transformers, when they are called.
"""
