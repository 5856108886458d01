"""`talon models`: the embedded models on this machine."""

from pathlib import Path
from typing import Annotated, Any

import typer

from talon_core.basics.suggestions import did_you_mean
from talon_core.cli import options as opts
from talon_core.cli.listing import list_models, show
from talon_core.cli.output import print_json, stdout

models = typer.Typer(help="The embedded models: what there is, and bringing one here.", no_args_is_help=False)


@models.callback(invoke_without_command=True)
def models_alone(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        list_()


@models.command("list")
def list_(as_json: opts.Json = False) -> None:
    """Show the embedded models, and which of them are on this machine."""
    answer: dict[str, Any] = {"models": list_models()}
    if as_json:
        print_json(answer)
    else:
        show(stdout(), {**answer, "failures": {}})


@models.command()
def fetch(
    name: Annotated[str, typer.Argument(help="For example smollm2-135m.")],
    verify: Annotated[bool, typer.Option("--verify", help="Compare every file of a model already here.")] = False,
    as_json: opts.Json = False,
) -> None:
    """Bring an embedded model to this machine, and print its folder, which from_pretrained reads as well.

    TALON itself reads the GGUF file there, and brings no more when it needs the model.
    """
    from talon_core.cli.session import quieten_libraries
    from talon_core.models import MODELS
    from talon_core.models import fetch as fetch_model
    from talon_core.models.loading import add_plain_weights

    if name not in MODELS:
        raise LookupError(f"no embedded model '{name}'; {did_you_mean(name, MODELS)}there are: {', '.join(MODELS)}")
    path = fetch_model(name, verify=verify)
    quieten_libraries()
    add_plain_weights(name, path, verify=verify)
    if as_json:
        print_json({"name": name, "path": str(path)})
    else:
        typer.echo(str(path))


@models.command()
def export(
    name: Annotated[str, typer.Argument(help="An embedded model, a folder, a GGUF file, or a Hugging Face id.")],
    folder: Annotated[Path, typer.Argument(help="The folder that is to be made.")],
    trust_remote_code: opts.TrustRemoteCode = False,
    as_json: opts.Json = False,
) -> None:
    """Write a model as a folder that from_pretrained reads without more, with all weights in float32."""
    from talon_core.cli.session import check_model_name, quieten_libraries
    from talon_core.models.loading import export_model

    check_model_name(name)
    quieten_libraries()
    export_model(name, folder, trust_remote_code=trust_remote_code)
    if as_json:
        print_json({"name": name, "path": str(folder)})
    else:
        typer.echo(str(folder))
