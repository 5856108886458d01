"""Retrieval-augmented prompts: questions with the paragraphs of a manual that share most of their words.

    python tests/benchmarks/retrieved_prompts.py FOLDER [--docs docs]

Writes a set in Spec-Bench's form, for `talon bench run ... --prompts FOLDER`. The manual is this project's own. A
paragraph's score is the sum, over the words of the question that it has, of how rare each is among all paragraphs.
"""

import argparse
import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from hard_prompts import write_sets

QUESTIONS = (
    "What is a drafter, and what does it propose to the target?",
    "How does a policy choose which nodes of the draft tree are verified?",
    "What does the rule do with the target's probabilities, and why is the output lossless?",
    "When may keys and values of a finished text be kept for the next turn of its conversation?",
    "How are traces recorded, and what does a replay tell about a policy?",
    "What does a profile say about a machine, and who asks for it?",
    "How is a policy tuned, and how is the gain measured on prompts left out?",
    "What is a certificate, and how many worlds does it look at?",
    "What happens to a batch when one of its sequences fails in the middle?",
    "How is a datastore built, and how does the drafter look up the tokens that followed?",
    "Which weights of a GGUF file are read as they are stored?",
    "What does a schedule do while the target verifies a tree?",
    "Why can half precision change which token is the best one?",
    "How does a plugin register its own policy or drafter?",
    "What does the server do with a long prompt while other sequences are running?",
    "How is the speed of two methods compared on a noisy machine?",
)

PASSAGES = 3
"""Paragraphs in a prompt."""

SHORTEST, LONGEST = 300, 900
"""Characters of a paragraph that is a passage."""

CODE = re.compile(r"```.*?```", re.DOTALL)
MARKS = ("|", "#", "-", "<", "!", "1")
"""What tables, headings, lists, pictures and steps begin with."""

WORD = re.compile(r"[a-z]{3,}")


def passages_of(folder: Path) -> list[str]:
    """The paragraphs of a folder's pages that are running text, in the order of the pages' names."""
    found = []
    for page in sorted(folder.glob("*.md")):
        paragraphs = (" ".join(one.split()) for one in CODE.sub("", page.read_text(encoding="utf-8")).split("\n\n"))
        found += [one for one in paragraphs if SHORTEST <= len(one) <= LONGEST and not one.startswith(MARKS)]
    return found


def retrieved(question: str, passages: Sequence[str], many: int = PASSAGES) -> list[str]:
    """The passages whose scores are highest, the best first."""
    words = [{*WORD.findall(passage.lower())} for passage in passages]
    having = Counter(word for own in words for word in own)
    asked = {*WORD.findall(question.lower())}
    scores = [sum(math.log(len(passages) / having[word]) for word in sorted(asked & own)) for own in words]
    best = sorted(range(len(passages)), key=lambda place: (-scores[place], place))
    return [passages[place] for place in best[:many]]


def prompts_of(folder: Path) -> list[str]:
    """A prompt for each question."""
    passages = passages_of(folder)
    return [
        "Answer the question with sentences of these passages, word for word.\n\n"
        + "\n\n".join(f"Passage {at}: {passage}" for at, passage in enumerate(retrieved(question, passages), start=1))
        + f"\n\nQuestion: {question}"
        for question in QUESTIONS
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--docs", type=Path, default=Path(__file__).parents[2] / "docs", help="a folder of .md files")
    options = parser.parse_args()
    if len(passages_of(options.docs)) < PASSAGES:
        parser.error(f"'{options.docs}' has too few paragraphs of text in .md files; each prompt takes {PASSAGES}")
    write_sets(options.folder, {"retrieved": prompts_of(options.docs)})


if __name__ == "__main__":
    main()
