"""Reading published drafters: which files there are, which layout they have, what they hold."""
