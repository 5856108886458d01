"""How much a decoder takes on at a time, said once where it is made."""

import attrs
import numpy as np
import pytest

from talon_core import Bounds, BusyError, Request, TableTarget
from talon_core.decoding.decoder import Decoder
from talon_core.testing import TableDrafter
from talon_strategies import Match, Talon

TABLE = np.random.default_rng(0).normal(size=(4, 4, 4)) * 2
LAWS = np.random.default_rng(1).dirichlet(np.ones(4), size=5)
POLICY = Talon(budget=4, top_k=2)


def decoder(**bounds):
    return Decoder(TableTarget(TABLE), Match(), POLICY, TableDrafter(LAWS), bounds=Bounds(**bounds))


def requests(*lengths):
    return [Request(np.array([0, 1, 2]), length) for length in lengths]


@pytest.mark.parametrize("bounds", [{"slots": 1}, {"rows": 2 * 15}, {"prompt_tokens": 1}, {"keep": False}, {}])
def test_a_list_comes_out_the_same_whatever_the_bounds(bounds):
    wanted = [decoder().run_all(requests(length))[0].token_ids for length in (8, 3, 5)]
    assert [result.token_ids for result in decoder(**bounds).run_all(requests(8, 3, 5))] == wanted


def test_of_a_list_that_cannot_fit_nothing_is_decoded(monkeypatch):
    verified = []
    monkeypatch.setattr(TableTarget, "verify", lambda *args, **more: verified.append(args))
    own = decoder(rows=20)
    with pytest.raises(ValueError, match="40 new ones are asked for, and a tree may have 4 nodes: 27 rows"):
        own.run_all(requests(8, 40))
    assert not verified


@pytest.mark.parametrize("bounds", [{"slots": 1}, {"rows": 15}])
def test_who_would_wait_for_a_text_that_nobody_decodes_is_told_so(bounds):
    own = decoder(**bounds)
    (held,), (other,) = requests(8), requests(3)
    first, second = own.run(held), own.run(other)
    next(first)
    with pytest.raises(BusyError, match="other texts have the slots or the rows of keys and values that this one need"):
        next(second)
    first.finish()
    second.finish()
    assert second.token_ids == decoder().run_all([other])[0].token_ids


@pytest.mark.parametrize("bounds", [None, {"rows": 20}, 20, Bounds])
def test_what_is_no_bounds_is_refused(bounds):
    with pytest.raises(ValueError, match=r"^bounds is .*; it must be an object of class Bounds"):
        Decoder(TableTarget(TABLE), Match(), bounds=bounds)


def test_bounds_are_those_of_an_engine():
    assert {*attrs.fields_dict(Bounds)} == {"slots", "rows", "prompt_tokens", "keep"}
    for name in attrs.fields_dict(Bounds):
        with pytest.raises(ValueError, match=f"{name} is 0; it must be "):
            Bounds(**{name: 0})
