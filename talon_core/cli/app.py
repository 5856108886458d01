"""The commands of `talon`, put together. Modules that need torch are imported by the commands themselves."""

from typing import Annotated

import typer

from talon_core.cli.bench import bench
from talon_core.cli.certify import certify
from talon_core.cli.datastore import datastore
from talon_core.cli.demo import demo
from talon_core.cli.doctor import doctor
from talon_core.cli.generate import generate
from talon_core.cli.listing import listing
from talon_core.cli.models import models
from talon_core.cli.profile import profile
from talon_core.cli.report import report
from talon_core.cli.trace import trace
from talon_core.cli.train import train
from talon_core.cli.tune import tune

app = typer.Typer(
    name="talon",
    help="Speculative decoding with draft trees: the same text as the model alone, sooner.",
    no_args_is_help=False,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def talon(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    if version:
        from importlib.metadata import version as installed

        typer.echo(f"talon-core {installed('talon-core')}")
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


app.command()(generate)
app.command("list")(listing)
app.command()(certify)
app.command()(demo)
app.command()(doctor)
app.command()(train)
app.command()(tune)
app.add_typer(models, name="models")
app.add_typer(datastore, name="datastore")
bench.command()(report)
app.add_typer(bench, name="bench")
app.add_typer(trace, name="trace")
app.add_typer(profile, name="profile")
