"""`talon generate`: one prompt, decoded and streamed."""

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import attrs
import typer

from talon_core.basics.paths import about, check_file, utf8, write_whole
from talon_core.bench.prompts import UNREADABLE
from talon_core.cli import INTERRUPTED, many
from talon_core.cli import options as opts
from talon_core.cli.lanes import check_timeline, write_timeline
from talon_core.cli.output import mark_claimed, mark_lossy, note, print_json, stderr, summary
from talon_core.cli.streams import current
from talon_core.decoding.loading import BATCH_SIZE
from talon_core.defaults import AUTO, IN_TURN
from talon_core.engine.bounds import Bounds
from talon_core.plugins.parts import Resolved
from talon_core.plugins.specs import spelled
from talon_core.rule import CLAIMED

if TYPE_CHECKING:
    from rich.console import RenderableType

    from talon_core.decoding.decoder import Decoder
    from talon_core.profiles.profile import Profile
    from talon_core.request import Result

MOST_BYTES = 64 << 20
"""Of a prompt: some files, such as devices, have no end."""


def generate(
    prompt: Annotated[str | None, typer.Argument(help="The prompt; put through the model's chat template.")] = None,
    prompt_file: Annotated[
        str | None,
        typer.Option(
            "--prompt-file",
            help="Read the prompt from this UTF-8 text file; - is stdin. A .jsonl file holds several, one a line; of "
            "several turns only the first is decoded.",
        ),
    ] = None,
    batch_size: Annotated[
        int, typer.Option(parser=opts.whole_number, metavar="N", help="Of several prompts, how many at a time.")
    ] = BATCH_SIZE,
    rows: Annotated[
        int | None,
        typer.Option(
            parser=opts.whole_number,
            metavar="N",
            help="Most rows of keys and values of all prompts at a time, one a token; by default what memory holds.",
        ),
    ] = None,
    model: opts.Model = opts.DEFAULT_MODEL,
    trust_remote_code: opts.TrustRemoteCode = False,
    drafter: opts.Drafter = opts.DEFAULT_DRAFTER,
    policy: opts.Policy = opts.DEFAULT_POLICY,
    rule: opts.Rule = opts.DEFAULT_RULE,
    schedule: opts.Schedule = opts.DEFAULT_SCHEDULE,
    draft_on: opts.DraftOn = AUTO,
    lossy: opts.Lossy = False,
    attention: opts.Attention = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            parser=opts.whole_number, metavar="N", help="Most tokens to make; by default the model's, or 256."
        ),
    ] = None,
    temperature: Annotated[
        float, typer.Option(parser=opts.number, metavar="T", help="0 is greedy; above it, tokens are drawn.")
    ] = 0.0,
    top_p: Annotated[
        float | None,
        typer.Option(parser=opts.number, metavar="P", help="Draw from the likeliest tokens that together reach this."),
    ] = None,
    top_k: Annotated[
        int | None,
        typer.Option(
            parser=opts.whole_number,
            metavar="K",
            help="Draw from this many likeliest tokens; 0: from all. Without it as the model says, else 50.",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(parser=opts.whole_number, metavar="S", help="Makes drawing reproducible.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Leave the chat template out.")] = False,
    stop: Annotated[list[str] | None, typer.Option(help="Stop after this text; may be given several times.")] = None,
    show_tree: Annotated[bool, typer.Option("--show-tree", help="Show the tree that accepted most.")] = False,
    tree_svg: Annotated[Path | None, typer.Option(help="Save that tree as an SVG picture.")] = None,
    timeline: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Save who did what when, round by round, as .html, .png or .svg."),
    ] = None,
    stream: Annotated[bool, typer.Option("--stream/--no-stream", help="Show text as soon as it is accepted.")] = True,
    profile: opts.Profile = None,
    other_machine: opts.OtherMachine = False,
    as_json: opts.Json = False,
) -> None:
    """Continue a prompt, and stream the text to stdout; or several prompts, in batches.

    The text is the target model's own, whatever the drafter and the policy are; they decide how soon it is there.
    With --policy none the same model decodes without them. Figures and pictures go to stderr. A lossy rule changes the
    text, only with --lossy; stderr says so then, and also where nothing but a plugin's word says that it does not.
    """
    generation_options = opts.sampling_options(temperature, top_p, top_k, seed, max_new_tokens)
    if temperature == 0 and (top_p is not None or top_k is not None):
        note("--top-p and --top-k change nothing at --temperature 0")
    if stop:
        if not all(stop):
            raise ValueError("--stop is empty; it must be a text of at least one character")
        generation_options["stop_strings"] = stop
    if batch_size < 1:
        raise ValueError(f"--batch-size is {batch_size}; it must be at least 1")
    if rows is not None and rows < 1:
        raise ValueError(f"--rows is {rows}; it must be at least 1")
    several = prompt is None and prompt_file is not None and many.is_of_several(prompt_file)
    if batch_size != BATCH_SIZE and not several:
        note("--batch-size changes nothing for one prompt; a .jsonl file in --prompt-file holds several")
    if several and (show_tree or tree_svg is not None):
        raise ValueError("--show-tree and --tree-svg show a tree of one prompt; the prompt file holds several")
    if several and timeline is not None:
        raise ValueError("--timeline shows the rounds of one prompt; the prompt file holds several")
    if timeline is not None:
        check_timeline(timeline, "--timeline")
    opts.check_other_machine(other_machine, profile)
    prompts = many.read_prompts(str(prompt_file)) if several else None
    text = "" if several else read_prompt(prompt, prompt_file)
    resolved = opts.resolved(drafter, policy, rule, attention, lossy, schedule, draft_on)
    costs = None if profile is None else _profile(profile)
    if tree_svg is not None:
        check_file(tree_svg, "--tree-svg")
        if timeline is not None and timeline.resolve() == tree_svg.resolve():
            raise ValueError(f"--timeline and --tree-svg are both '{tree_svg}'; name two files")
    from talon_core.cli.session import open_session

    session = open_session(model, trust_remote_code=trust_remote_code)
    resolved = resolved.for_model(session.model)
    decoder = session.decoder(resolved, costs, other_machine, Bounds(rows=rows))
    resolved = as_decoded(resolved, decoder)
    answers = result = None
    if prompts is not None:
        answers = many.decode_all(decoder, prompts, batch_size, {"raw": raw, **generation_options})
    elif stream and not as_json:
        result = stream_text(decoder, text, raw=raw, **generation_options)
    else:
        result = decoder.generate(text, raw=raw, **generation_options)
    if answers is not None and prompts is not None:
        if as_json:
            results = [_result(one) for one in answers.results]
            made_of = {**_made_of(model, resolved), "lossless": decoder.lossless}
            print_json({**made_of, "results": results, "stats": answers.stats()})
        else:
            many.show_all(prompts, answers)
        _mark(decoder)
        if answers.error is not None:
            raise answers.error
        if answers.interrupted:
            raise typer.Exit(INTERRUPTED)
        return
    assert result is not None
    if as_json:
        print_json(as_object(model, resolved, result))
    elif not stream:
        _write((result.text or "") + "\n")
    for line in summary(result.stats, result.finish_reason):
        stderr().print(line, style="dim", soft_wrap=True)
    empty = None if raw else why_empty(result, bool(getattr(session.tokenizer, "chat_template", None)))
    if empty is not None:
        note(empty)
    _mark(decoder)
    if timeline is not None:
        write_timeline(timeline, result.rounds, model, _said_of(resolved))
    if show_tree or tree_svg is not None:
        picture = session.picture(result)
        if picture is None:
            note(f"there is no tree to show: {_why_no_tree(resolved)}")
        else:
            _show(picture, show_tree, tree_svg)
    if result.finish_reason == "interrupted":
        current().interrupted = None  # which the figures above have said
        raise typer.Exit(INTERRUPTED)


def why_empty(result: "Result", has_template: bool) -> str | None:
    """What may be wrong where a model has ended its text at once, and was not asked as it expects.

    Args:
        result: of a prompt that was given as text.
        has_template: whether its tokenizer has a chat template.

    Returns:
        A sentence; None where the text is not empty, or the model was asked by a template.
    """
    if has_template or result.text or result.finish_reason != "eos":
        return None
    return (
        "the answer is empty, and this model's tokenizer has no chat template, so that the prompt was continued as it "
        "stands; if the model expects questions, write the prompt in the form that it was trained on, or give a model "
        "whose files have the template"
    )


def _profile(given: str) -> "Profile":
    from talon_core.profiles.store import find_profile

    return find_profile(given)


def _mark(decoder: "Decoder") -> None:
    """Say on stderr if a text is not the target's own, or not known to be."""
    if decoder.lossless == CLAIMED:
        mark_claimed(spelled(decoder.policy) if decoder.policy is not None else "none", spelled(decoder.rule))
    elif not decoder.lossless:
        mark_lossy(decoder.rule.name)


def read_prompt(prompt: str | None, file: str | None) -> str:
    """The prompt as it was given, a file's last line end included.

    Raises:
        ValueError: if there is none, or two, or it is empty or not text.
        OSError: if the file cannot be read.
    """
    if prompt is not None and file is not None:
        raise ValueError("two prompts: give either PROMPT or --prompt-file, not both")
    if file is None:
        if prompt is None:
            raise ValueError("no prompt: give it in quotes after 'talon generate', or with --prompt-file FILE")
        if not prompt:
            raise ValueError("the prompt is empty; it must have at least one character")
        try:
            return prompt.encode("utf-8", "surrogateescape").decode()  # so Python keeps bytes in a locale without UTF-8
        except UnicodeError:
            raise ValueError("the prompt is not UTF-8 text") from None
    where = "standard input" if file == "-" else f"prompt file '{file}'"
    if file == "-" and sys.stdin is None:
        raise ValueError("standard input is closed; give PROMPT, or --prompt-file FILE")
    failed = "standard input cannot be read" if file == "-" else UNREADABLE
    with about(Path(file), failed), nullcontext(sys.stdin.buffer) if file == "-" else Path(file).open("rb") as source:
        data = source.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ValueError(f"{where} has more than {MOST_BYTES >> 20} MB; no model's context is so long")
    text = utf8(data, where)
    if not text:
        raise ValueError(f"{where} is empty; it must hold at least one character")
    return text


def stream_text(decoder: "Decoder", prompt: str, **options: Any) -> "Result":
    """Decode and write to stdout as text is accepted; Ctrl-C ends it and keeps what there is."""
    generation = decoder.stream(prompt, **options)
    try:
        for chunk in generation:
            if chunk.text:
                _write(chunk.text)
    except KeyboardInterrupt:
        generation.close()
    _write("\n")
    return generation.result()


def as_decoded(resolved: Resolved, decoder: "Decoder") -> Resolved:
    """The parts that a decoder was made of: a preset's schedule that turned out not to fit is none of them."""
    if decoder.schedule is not None or resolved.schedule is None:
        return resolved
    return attrs.evolve(resolved, parts=attrs.evolve(resolved.parts, schedule=IN_TURN), schedule=None)


def as_object(model: str, resolved: Resolved, result: "Result") -> dict[str, Any]:
    """What `--json` prints for one prompt."""
    return {**_made_of(model, resolved), **_result(result)}


def _made_of(model: str, resolved: Resolved) -> dict[str, Any]:
    """What `--json` says of the decoder."""
    parts = resolved.parts
    return {
        "model": model,
        "drafter": parts.drafter if resolved.policy is not None else None,
        "policy": parts.policy,
        "rule": parts.rule,
        "schedule": parts.schedule,
    }


def _said_of(resolved: Resolved) -> str:
    """The decoder in a few words."""
    if resolved.policy is None:
        return "plain decoding"
    parts = resolved.parts
    return f"{parts.drafter}/{parts.policy}, schedule {parts.schedule}"


def _result(result: "Result") -> dict[str, Any]:
    """What it says of one prompt."""
    return {
        "lossless": result.lossless,
        "prompt_tokens": len(result.prompt_ids),
        "token_ids": result.token_ids,
        "text": result.text,
        "finish_reason": result.finish_reason,
        "stats": result.stats.as_dict(),
    }


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _why_no_tree(resolved: Resolved) -> str:
    if resolved.policy is None:
        return "nothing was drafted"
    said = "none had more than its root"
    if resolved.policy.name == "chain":
        return said
    return f"{said}; --policy chain:length=3 takes the drafter's best guesses, however unlikely they are"


def _show(picture: "RenderableType", on_terminal: bool, file: Path | None) -> None:
    if on_terminal:
        console = stderr()
        console.print()
        console.print(picture)
    if file is not None:
        from talon_core.pictures.render import to_svg

        write_whole(file, to_svg(picture))
