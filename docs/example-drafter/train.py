"""Trains the head from scratch on what the target itself answers to `prompts.txt`; a few minutes on two cores.

python train.py --out src/talon_last_state/smollm2-135m.safetensors
"""

import argparse
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import attrs
import torch
import torch.nn.functional as F
from talon_last_state.network import Head, save_head
from torch import Tensor

import talon_core
from talon_core.runtime import shared_embedding, shared_output

HERE = Path(__file__).parent


@attrs.frozen(eq=False)
class Text:
    """A prompt and its answer, as the target sees them.

    Attributes:
        ids: shape `(tokens,)`, int64.
        states: what enters the target's LM head at them, shape `(tokens, hidden)`.
        answer: index of the answer's first token.
    """

    ids: Tensor
    states: Tensor
    answer: int


def written_by(decoder: talon_core.Decoder, prompts: Sequence[str], answers: int, most: int) -> list[Text]:
    """What the target answers: once greedily, and then drawn at temperature 0.7."""
    texts = []
    for seed in range(answers):
        drawn = {"temperature": 0.7 if seed else 0.0, "seed": seed}
        results = decoder.generate(list(prompts), batch_size=32, max_new_tokens=most, **drawn)
        for result in results:
            ids = torch.tensor([*result.prompt_ids.tolist(), *result.token_ids])
            with torch.inference_mode():
                states = decoder.target.model.get_decoder()(ids[None]).last_hidden_state[0]
            texts.append(Text(ids, states.clone(), len(result.prompt_ids)))
        print(
            f"answers {seed + 1} of {answers}: {sum(len(text.ids) - text.answer for text in texts)} tokens", flush=True
        )
    return texts


def loss_of(head: Head, text: Text, embed, output, vocabulary: Tensor) -> Tensor:
    """Cross-entropy against the target's own laws, for every place of the answer and every age of the state.

    Row `(k, s)` is the token `s + 1 + k` with the state of token `s`. It sees what it will see in a draft tree: the
    rows of age 0 up to `s`, and those of its own chain, `(1, s)` to `(k, s)`. So all ages are learned in one pass.
    """
    rows = len(text.ids) - 1
    age, start = torch.meshgrid(torch.arange(head.depth), torch.arange(rows), indexing="ij")
    age, start = age.flatten(), start.flatten()
    inside = start + age + 1 < len(text.ids)
    age, start = age[inside], start[inside]
    read = (age == 0) & (start <= start[:, None])
    own = (age > 0) & (age <= age[:, None]) & (start == start[:, None])
    mask = read | own  # (rows, rows)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)

    at = start + age + 1
    guessed = head(embed(text.ids[at])[None], text.states[start][None], age[None], (start + age)[None], attend)[0]
    wanted = at + 1 >= text.answer
    with torch.no_grad():
        law = output(text.states[at[wanted]]).float().softmax(-1)  # (rows, draft vocab)
    return F.cross_entropy(output(guessed[wanted]).float(), law)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dtype", default="float32", help="bfloat16 is faster where the processor multiplies it")
    parser.add_argument("--texts", type=Path, help="keep the answers in this file, or take them from it")
    parser.add_argument("--answers", type=int, default=3, help="to each prompt")
    parser.add_argument("--tokens", type=int, default=80, help="most of an answer")
    parser.add_argument("--vocab", type=int, default=2048, help="most tokens of the draft vocabulary")
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--rate", type=float, default=3e-3)
    options = parser.parse_args()

    dtype = getattr(torch, options.dtype)
    decoder = talon_core.load(options.model, policy=None, dtype=dtype)  # a batch of plain sequences costs least here
    model = decoder.target.model.requires_grad_(False)
    if options.texts is not None and options.texts.exists():
        texts = [Text(**text) for text in torch.load(options.texts)]
    else:
        texts = written_by(decoder, (HERE / "prompts.txt").read_text().splitlines(), options.answers, options.tokens)
        if options.texts is not None:
            torch.save([attrs.asdict(text) for text in texts], options.texts)
    counts = Counter(token for text in texts for token in text.ids[text.answer :].tolist())
    vocabulary = torch.tensor(sorted(token for token, _ in counts.most_common(options.vocab)))
    embed, output = shared_embedding(model), shared_output(model, vocabulary)

    torch.manual_seed(0)
    head = Head(texts[0].states.shape[1])
    optimizer = torch.optim.AdamW(head.parameters(), lr=options.rate, weight_decay=0.05)
    steps = options.epochs * len(texts)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, options.rate, total_steps=steps, pct_start=0.1)
    started, done = time.perf_counter(), 0
    for epoch in range(options.epochs):
        total = 0.0
        for index in torch.randperm(len(texts)).tolist():
            with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
                loss = loss_of(head, texts[index], embed, output, vocabulary)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            total, done = total + loss.item(), done + 1
        print(f"epoch {epoch + 1}: loss {total / len(texts):.3f}, {time.perf_counter() - started:.0f} s", flush=True)
    save_head(head, vocabulary, options.out)


if __name__ == "__main__":
    main()
