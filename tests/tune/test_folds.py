"""Prompts are dealt out so that every fold has some of every set."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from talon_core.tune.folds import dealt


@given(st.integers(2, 5), st.data(), st.integers(0, 2**32 - 1))
def test_each_text_is_in_one_fold_and_each_fold_has_of_every_set(folds: int, data: st.DataObject, seed: int) -> None:
    sizes = data.draw(st.lists(st.integers(folds, 9), min_size=1, max_size=4))
    sets = {name: [(name, number) for number in range(size)] for name, size in enumerate(sizes)}
    found = dealt(sets, folds, seed)
    assert sorted(text for fold in found for text in fold) == sorted(text for texts in sets.values() for text in texts)
    for name, texts in sets.items():
        counts = [sum(each[0] == name for each in fold) for fold in found]
        assert min(counts) >= len(texts) // folds >= 1
        assert max(counts) - min(counts) <= 1
    assert max(map(len, found)) - min(map(len, found)) <= 1
    assert found == dealt(sets, folds, seed)


def test_fewer_prompts_than_folds_get_a_sentence() -> None:
    with pytest.raises(
        ValueError, match=r"the set 'b' has 3 prompts, fewer than 4 folds; give --folds 3, or record more"
    ):
        dealt({"a": range(4), "b": range(3)}, 4, 0)
    with pytest.raises(ValueError, match=r"the set 'b' has 1 prompt, fewer than 2 folds; record at least two"):
        dealt({"b": range(1)}, 2, 0)
