"""What runs models over draft trees, whoever wrote the model: caches, tree passes, recorded passes, the best tokens.

Nothing here imports transformers. The target's adapter (`hf/`) stands on it, and so does any neural drafter: `passes`
is one forward pass as an attention layer sees it, `inputs` what a model reads in it, `cache` its keys and values,
`device` passes whose every input is in device memory and which can be recorded, `best` the best tokens out of scores,
and `staging` which nodes of a growing tree are in a drafter's cache.
"""
