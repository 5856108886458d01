"""The loop: sequences in slots, and a round over those that are ready.

`engine` lets sequences in and out and runs rounds, `stages` is one round, `slots` says who is where and what is kept,
and `plain` is decoding without drafting.
"""
