"""Whether a text is drafted for, by what others have gained."""

from talon_strategies.earned_back import CREDIT, EarnedBack

SHORT, LONG = 50, 700


def text(others: EarnedBack, passes: float, *, unread: int = SHORT, debt: float = 1.0, new: int = 128) -> bool:
    """A text that takes so many passes of plain decoding where it is drafted for; whether it is."""
    alike = others.begun(debt, unread, 128)
    others.texts += 1
    for _ in range(new):
        others.went(1, passes / new if alike is not None else 1.0, alike, 0.02)
    return alike is not None


def test_one_text_that_loses_does_not_stop_where_others_have_gained() -> None:
    others = EarnedBack()
    gaining = [text(others, 100.0) for _ in range(4)]
    assert text(others, 140.0)
    assert [*gaining, text(others, 100.0)] == [True] * 5


def test_where_all_lose_ever_fewer_are_tried_once_several_have() -> None:
    others = EarnedBack()
    tried = [text(others, 132.0) for _ in range(30)]
    assert [place for place, one in enumerate(tried) if one] == [0, 1, 3, 6, 11, 20]


def test_a_text_that_may_gain_is_tried_after_one_that_did_not_where_that_costs_little() -> None:
    others = EarnedBack()
    assert text(others, 132.0)
    assert text(others, 100.0)
    many = EarnedBack()
    assert text(many, 132.0, debt=6.0)
    assert text(many, 132.0, debt=6.0)  # each second one, at first
    assert not text(many, 132.0, debt=6.0)


def test_long_prompts_in_vain_are_left_out_and_short_ones_are_not() -> None:
    others = EarnedBack()
    found = [(text(others, 100.0), text(others, 132.0, unread=LONG, debt=6.0)) for _ in range(12)]
    assert all(short for short, _ in found)
    assert [place for place, (_, long) in enumerate(found) if long] == [0, 1, 3, 6, 11]


def test_what_takes_longer_than_an_answer_gains_is_not_read_again_and_again() -> None:
    others = EarnedBack()
    assert text(others, 120.0, debt=2.0)
    assert [text(others, 120.0, debt=12.0) for _ in range(5)] == [True, False, True, False, False]


def test_more_than_there_is_credit_for_is_not_read() -> None:
    others = EarnedBack()
    assert not text(others, 100.0, debt=CREDIT + 1.0)
    assert others.by_length[SHORT.bit_length()].rounds == 0
    assert text(others, 100.0, debt=CREDIT - 1.0)


def test_many_texts_at_once_forget_nothing() -> None:
    others = EarnedBack()
    assert all(text(others, 100.0) for _ in range(10))
    together = [others.begun(1.0, SHORT, 128) for _ in range(32)]
    for alike in together:
        others.texts += 1
        others.went(1, 1.3, alike, 0.02)
    assert others.begun(1.0, SHORT, 128) is not None


def test_what_texts_of_other_lengths_lose_is_not_tried_again_with_each_length() -> None:
    others = EarnedBack()
    assert [text(others, 132.0) for _ in range(3)] == [True, True, False]
    lengths = [1 << bits for bits in range(7, 13)]
    first = [text(others, 132.0, unread=unread, debt=2.0) for unread in lengths]
    second = [text(others, 132.0, unread=unread, debt=2.0) for unread in lengths]
    assert (first, second) == ([True] * 6, [False] * 6)


def test_what_texts_of_other_lengths_gain_says_nothing_of_a_length() -> None:
    alone, beside = EarnedBack(), EarnedBack()
    for _ in range(8):
        assert text(beside, 90.0)
    found = [[text(one, 132.0, unread=LONG, debt=6.0) for _ in range(12)] for one in (alone, beside)]
    assert found[1] == found[0]
