"""What can be asked for by name, and what goes together.

`registry` collects what plugins register, `specs` makes objects of spec strings, and `presets` are specs under names of
their own. `parts` makes what a decoder consists of besides its model; it asks `fitting` which rule goes with which
trees. `backends` says which attention and which accelerator a model is decoded with.
"""
