"""The exact law of texts, whose last token is drawn for all outcomes at once."""

from collections import defaultdict

from talon_core.certify.exact import Law
from talon_core.choices import Choices, enumerate_outcomes
from talon_core.decoding.decoder import Decoder
from talon_core.request import Request
from talon_core.tree import FloatArray


class _Noting(Choices):
    """Draws as others do; once `law` is empty, a draw takes the likeliest outcome and leaves its law there."""

    def __init__(self, choices: Choices) -> None:
        self._choices = choices
        self.law: list[float] | None = None

    def pick(self, law: FloatArray) -> int:
        if self.law is None:
            return self._choices.pick(law)
        assert not self.law, "one token is left, and more than one draw is made for it"
        self.law = law.tolist()
        return int(law.argmax())


def begun_law(decoder: Decoder, request: Request) -> Law:
    """As `emitted_law`, in fewer generations.

    A round that begins where one token is left has a tree of its root alone, and draws once. It is decoded once, and
    the law that it draws from counts for all its outcomes, each of which would decode the whole text again.

    Args:
        decoder: decodes.
        request: what to decode, without a token that ends the text.
    """

    def begun(choices: Choices) -> tuple[list[int], list[float] | None]:
        """A text and, where its last token was drawn in a round of its own, the law of that."""
        decoder.engine.forget()  # as `generations` does
        noting = _Noting(choices)
        generation = decoder.run(request, noting)
        while not generation.finished:
            if len(generation.token_ids) == request.max_new_tokens - 1:
                noting.law = []
            next(generation)
        if noting.law:
            assert generation.token_ids[-1] == max(range(len(noting.law)), key=noting.law.__getitem__)
        return generation.token_ids, noting.law

    law: Law = defaultdict(float)
    with decoder.engine.session():
        for prob, (tokens, last) in enumerate_outcomes(begun):
            for token, p in enumerate(last) if last else [(tokens[-1], 1.0)]:
                if p > 0:
                    law[*tokens[:-1], token] += prob * p
    return law
