"""Tuning: options of a policy are searched on traces under a profile; other prompts say what they gain."""
