"""Certificates are made here; what is kept of them is in `talon_core.certificates`.

`trial` makes one: `worlds` are small, the law of the text in them is exact (`exact`, and `composed` of its rounds), and
what is wrong is told as a `counterexample`. `greedy` holds a real model's output against its own.
"""
