"""Prompts that are hard to draft for: random tokens, translations, and texts that nobody can foresee.

    python tests/benchmarks/hard_prompts.py FOLDER [--model MODEL]

Writes a set of each kind in Spec-Bench's form, for `talon bench run ... --prompts FOLDER`: a strategy that decides for
itself whether to draft must not be slower than plain decoding on them.
"""

import argparse
import json
from pathlib import Path
from random import Random

from talon_core.basics.paths import write_whole
from talon_core.defaults import DEFAULT_MODEL

TRANSLATIONS = (
    ("German", "The ferry leaves at noon, but the captain waits for late passengers when the sea is calm."),
    ("French", "My grandmother kept her letters in a tin box under the stairs, tied with a blue ribbon."),
    ("Spanish", "Nobody in the village could say who had painted the old door green during the night."),
    ("Italian", "If the bread has not risen by morning, move the bowl closer to the stove and wait an hour."),
    ("Portuguese", "The museum lends its smaller paintings to schools, provided that a teacher signs for them."),
    ("Dutch", "He counted the bicycles in front of the station twice and came to different numbers."),
    ("Polish", "We walked along the frozen canal until we could no longer hear the traffic."),
    ("Latin", "The soldiers built a bridge over the river in ten days and crossed it before the rain came."),
)

UNFORESEEN = (
    "Write eighty random digits, with no pattern and no spaces.",
    "Invent thirty passwords of twelve characters each, with letters, digits and signs. One a line, nothing else.",
    "List forty words that have nothing to do with each other. Never use a word twice.",
    "Write a sentence of twenty words in which each word is in another language than the one before.",
    "Invent the names of fifty planets. No two may begin alike or sound alike.",
    "Write the alphabet in an order that you choose at random, then in another order, until you have six of them.",
    "Make up forty chemical formulas that do not exist, separated by commas.",
    "Write a poem in which no word has more than four letters and no line makes sense.",
)

RANDOM_PROMPTS, RANDOM_TOKENS = 8, 48
"""Prompts of random tokens, and how many tokens each has."""


def hard_sets(tokenizer: object) -> dict[str, list[str]]:
    """The prompts, by set.

    Args:
        tokenizer: of the model; its vocabulary is drawn from.
    """
    random = Random(0)
    size, decode = len(tokenizer), tokenizer.decode  # type: ignore[arg-type,attr-defined]
    drawn = [[random.randrange(size) for _ in range(RANDOM_TOKENS)] for _ in range(RANDOM_PROMPTS)]
    return {
        "random": [decode(ids, skip_special_tokens=True) for ids in drawn],
        "translation": [f"Translate into {language}: {sentence}" for language, sentence in TRANSLATIONS],
        "unforeseen": [*UNFORESEEN],
    }


def write_sets(folder: Path, sets: dict[str, list[str]]) -> None:
    """Write sets as files of one JSON object a line."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, prompts in sets.items():
        lines = [json.dumps({"question_id": at, "turns": [prompt]}) + "\n" for at, prompt in enumerate(prompts)]
        write_whole(folder / f"{name}.jsonl", "".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    options = parser.parse_args()
    from talon_core.models.loading import load_model

    _, tokenizer = load_model(options.model)
    write_sets(options.folder, hard_sets(tokenizer))


if __name__ == "__main__":
    main()
