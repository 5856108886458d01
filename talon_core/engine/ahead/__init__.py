"""Drafting while the target verifies: what is prepared, by whom, and how it is used.

`AheadDrafter` stands before the real drafter and is all that the rest of the engine sees. While a tree is verified a
`Worker` runs a `Preparing`: it asks the real drafter what comes below likely outcomes, and keeps the answers. When the
outcome is known, `AheadDrafter` answers from what was kept for it, and drops the rest.
"""
