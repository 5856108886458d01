"""Text on top of the engine: from names to a decoder, prompts, streams, stop strings."""
