"""`talon datastore`: an index of the user's own texts, for the drafter `datastore`."""

import time
from collections.abc import Generator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from talon_core.basics.paths import check_folder
from talon_core.cli import options as opts
from talon_core.cli.output import note, print_json, stdout
from talon_core.cli.progress import progress
from talon_core.retrieval.corpus import PATTERNS, Corpus, Piece, find_corpus, tokenised
from talon_core.retrieval.writing import SHARD_TOKENS, check_new, check_shard, write_index

if TYPE_CHECKING:
    from talon_core.retrieval.index import TokenIndex

datastore = typer.Typer(help="Index texts of your own, for the drafter datastore.", no_args_is_help=True)


@datastore.command()
def build(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILES...", help="Files of text or of JSON lines (*.jsonl), and folders.")
    ],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="The folder to make; it must not be there yet.")],
    model: opts.Model = opts.DEFAULT_MODEL,
    field: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A field of JSON lines that is a text; several times. Else text, or turns."),
    ] = None,
    include: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help=f"Files of folders, several times; {', '.join(PATTERNS)}."),
    ] = None,
    shard_tokens: Annotated[
        int,
        typer.Option(
            parser=opts.whole_number, metavar="N", help="Tokens that are sorted at once, in 50 bytes of memory each."
        ),
    ] = SHARD_TOKENS,
    as_json: opts.Json = False,
) -> None:
    """Tokenise texts with a model's tokenizer, and make the index that datastore:path=FOLDER retrieves from.

    The folder is there as a whole or not at all: Ctrl-C leaves nothing behind.
    """
    from talon_core.cli.session import check_model_name, quieten_libraries
    from talon_core.models.loading import load_tokenizer, vocabulary_size_of
    from talon_core.retrieval.index import vocabulary_of

    check_shard(shard_tokens, "--shard-tokens")
    check_new(out)
    check_folder(out, "--out")
    check_model_name(model)
    corpus = find_corpus(files, field or (), include or PATTERNS)
    quieten_libraries()
    tokenizer, size = load_tokenizer(model), vocabulary_size_of(model)
    named = Path(model).resolve().name if Path(model).is_dir() else model  # the index is for other machines, too
    started = time.perf_counter()
    with closing(_tokenised(corpus, tokenizer, size)) as pieces:
        index = write_index(
            out,
            pieces,
            vocabulary_of(tokenizer, named, size),
            shard_tokens=shard_tokens,
            sorting=partial(progress, "sorting", "shards"),
        )
    seconds = time.perf_counter() - started
    answer = {**_told(index), "seconds": seconds}
    if as_json:
        print_json(answer)
        return
    note(f"{answer['tokens'] / seconds:.0f} tokens a second")
    _show(answer)


def _tokenised(corpus: Corpus, tokenizer: Any, size: int | None) -> Generator[Piece, None, None]:
    """Its tokens; a bar shows how far it is, and ends with them: there is one at a time."""
    with progress("tokenising", "kB") as report:
        yield from tokenised(corpus, tokenizer, report, size)


@datastore.command()
def check(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder of talon datastore build.")],
    as_json: opts.Json = False,
) -> None:
    """Read a whole index, compare it with the hashes in its manifest, and say what it holds."""
    from talon_core.retrieval.index import TokenIndex

    index = TokenIndex(folder)
    index.check()
    answer = _told(index)
    if as_json:
        print_json(answer)
    else:
        _show(answer)


def _told(index: "TokenIndex") -> dict[str, Any]:
    manifest = index.manifest
    return {
        "path": str(index.folder),
        "model": manifest.model,
        "documents": manifest.documents,
        "tokens": manifest.tokens,
        "shards": manifest.shards,
        "bytes": sum(manifest.sizes.values()),
    }


def _show(answer: dict[str, Any]) -> None:
    shards = f"{answer['shards']} shard{'' if answer['shards'] == 1 else 's'}, {answer['bytes'] / 1e6:.1f} MB"
    what = f"{answer['documents']} documents, {answer['tokens']} tokens of '{answer['model']}'"
    text = f"{what} in {shards}: {answer['path']}"
    stdout().print(text, soft_wrap=True)
