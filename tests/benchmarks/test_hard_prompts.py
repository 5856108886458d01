"""The script that writes prompts that are hard to draft for writes them as the benchmark reads them."""

import runpy
from pathlib import Path

from talon_core.bench.prompts import read_sets


class Words:
    """A tokenizer of ten words."""

    def __len__(self):
        return 10

    def decode(self, ids, skip_special_tokens):
        assert skip_special_tokens
        return " ".join(f"w{token}" for token in ids)


def test_the_sets_are_written_as_the_benchmark_reads_them(tmp_path):
    script = runpy.run_path(str(Path(__file__).with_name("hard_prompts.py")))
    sets = script["hard_sets"](Words())
    script["write_sets"](tmp_path / "hard", sets)
    read = {one.name: [prompt.turns for prompt in one.prompts] for one in read_sets(tmp_path / "hard")}
    assert read == {name: [(prompt,) for prompt in prompts] for name, prompts in sets.items()}
    assert {name: len(set(prompts)) for name, prompts in read.items()} == dict.fromkeys(sets, 8)
