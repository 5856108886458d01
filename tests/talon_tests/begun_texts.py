"""The exact law of texts whose last token the target draws by itself: nothing is drafted for that one."""

from talon_core.certify.exact import Law, completed, law_after, law_of
from talon_core.choices import Choices, enumerate_outcomes
from talon_core.decoding.decoder import Decoder
from talon_core.request import Request
from talon_core.table import TableTarget
from talon_core.tree import FloatArray


def begun_law(decoder: Decoder, request: Request, plain: TableTarget) -> Law:
    """As `emitted_law`, without the round that begins where one token is left.

    That round has a tree of its root alone, and each of its outcomes would decode the whole text again. What is emitted
    before it is enumerated as there, and the last token has the target's law.

    Args:
        decoder: decodes.
        request: what to decode, without a token that ends the text.
        plain: the target alone, as `ancestral_law` asks for it.
    """

    def begun(choices: Choices) -> tuple[int, ...]:
        decoder.engine.forget()  # as `generations` does
        generation = decoder.run(request, choices)
        while len(generation.token_ids) < request.max_new_tokens - 1:
            next(generation)
        generation.close()
        return tuple(generation.token_ids)

    def after(text: tuple[int, ...]) -> FloatArray:
        return law_after(plain, [*request.ids.tolist(), *text], request.sampling)

    with decoder.engine.session():
        emitted = law_of(enumerate_outcomes(begun))
    return completed(emitted, request.max_new_tokens, after)
