"""Rounds of chains that are run ahead: what is made once for all of them."""

import threading

import numpy as np

from talon_core.runtime import chain_rounds
from talon_core.tree import read_only


def test_a_path_that_two_threads_make_at_a_time_is_right_and_so_are_longer_ones(monkeypatch):
    lengths = [3001, 3002, 3003]
    began = []

    def meanwhile(array):
        if not began:
            began.append(threading.Thread(target=chain_rounds._path, args=(lengths[0],)))
            began[0].start()
            began[0].join(60)
        return read_only(array)

    monkeypatch.setattr(chain_rounds, "read_only", meanwhile)
    for nodes in lengths:
        assert np.array_equal(chain_rounds._path(nodes), np.arange(nodes))
    assert began
