"""What can be asked for by name, and what goes together.

`registry` collects what plugins register, `specs` makes objects of spec strings, `fitting` says which rule goes with
which trees, and `backends` which attention and which accelerator a model is decoded with.
"""
