"""What runs networks over draft trees, whoever wrote them. Nothing here imports transformers.

The target's adapter (`hf/`) stands on it, and so does any neural drafter:

- `network` is what a drafter sees of its target, and `sharing` what both may use;
- `executor` runs passes, on a host or a device (`device`, `recording`);
- `modules` and `states` look into a network: what it is made of, and what its layers give;
- `cache` holds keys and values, `passes` is a pass as an attention layer sees it, `inputs` what a network reads in it;
- `staging` says which nodes of a growing tree are in a drafter's cache, and `best` makes candidates out of scores.
"""
