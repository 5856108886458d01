"""`talon certify`: whether the output is the target's own, in small worlds by enumeration and on real models."""

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from talon_core.basics.paths import check_file
from talon_core.certificates.store import RANDOM, WORLDS, certificates_folder, keep, write
from talon_core.certificates.subject import is_own
from talon_core.cli import options as opts
from talon_core.cli.output import if_interrupted, note, print_json, stdout
from talon_core.cli.progress import progress
from talon_core.defaults import AUTO, IN_TURN
from talon_core.errors import PluginError, one_line
from talon_core.plugins.fitting import rule_for
from talon_core.plugins.parts import built, made_policy
from talon_core.plugins.registry import Registry, load_registry
from talon_core.policy import TreePolicy
from talon_core.rule import AcceptanceRule

if TYPE_CHECKING:
    from talon_core.certify.certificate import Certificate
    from talon_core.certify.greedy import Divergence, GreedyCheck

REFUTED = 1
"""The exit status where the output is not the target's."""

BROKEN = 3
"""The exit status where a plugin failed, so that nothing is known of its output."""

DTYPES = ("float32", "bfloat16", "float16")

PROMPTS = (
    "Explain in three sentences why the sky is blue.",
    "Write a Python function that returns the n-th Fibonacci number, and a test for it.",
    "A farmer has 17 sheep, buys 8 more and sells 9. How many sheep are left? Think step by step.",
    "Repeat this sentence three times: The quick brown fox jumps over the lazy dog.",
)
"""What models are asked where no prompts are given: prose, code, sums and a text that repeats itself."""


def certify(
    policy: Annotated[str | None, typer.Option("--policy", help="The tree policy, as name:option=value,...")] = None,
    rule: Annotated[
        str, typer.Option("--rule", help="The acceptance rule; by default the policy's default rule.")
    ] = opts.DEFAULT_RULE,
    drafter: Annotated[
        str | None,
        typer.Option("--drafter", help="What drafts; by default a random table in each world, or the model's own."),
    ] = None,
    schedule: Annotated[
        str,
        typer.Option(
            "--schedule",
            help="What is prepared while the target verifies (name:option=value,... of talon list schedules); in small "
            "worlds an adversary delays, reorders and drops it.",
        ),
    ] = IN_TURN,
    worlds: Annotated[
        int | None, typer.Option(parser=opts.whole_number, metavar="N", help="Small worlds to try; 2000 by default.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(parser=opts.whole_number, metavar="S", help="Of the worlds; 0 by default.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="Instead of small worlds: a model, whose greedy output is compared.")
    ] = None,
    trust_remote_code: opts.TrustRemoteCode = False,
    dtype: Annotated[str | None, typer.Option(help="Of the model: float32, bfloat16 or float16.")] = None,
    prompts: Annotated[
        Path | None,
        typer.Option("--prompts", metavar="PATH", help="For the model: a .jsonl or .txt file, or a folder."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(parser=opts.whole_number, metavar="N", help="Only the first N prompts of each set.")
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(parser=opts.whole_number, metavar="N", help="Of each prompt; 64 by default.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the certificate to this file too, for a plugin to ship.")
    ] = None,
    as_json: opts.Json = False,
) -> None:
    """Certify that the output is the target's own. The exit status is 1 if it is not, and 3 if a plugin fails.

    Without --model, a policy and a rule are run in small random worlds, where every outcome is enumerated: it prints a
    certificate, or the simplest world that was found in which the law of the text is not the target's. A certificate
    for a plugin's part is kept for as long as its code does not change: what the part decodes is no more a mere claim
    then (talon list certificates). With --model, greedy output is compared with transformers' own: in float32 it must
    be equal, in half precision it may part where rounding decides. Check in float32 first: half precision does not
    show errors as small as its rounding.
    """
    for_worlds = {"--worlds": worlds, "--seed": seed, "--out": out}
    for_models = {"--dtype": dtype, "--prompts": prompts, "--limit": limit, "--max-new-tokens": max_new_tokens}
    for option, value in (for_models if model is None else for_worlds).items():
        if value is not None:
            raise ValueError(f"{option} is for a check {'with' if model is None else 'without'} --model; leave it out")
    for option, number in (("--worlds", worlds), ("--limit", limit), ("--max-new-tokens", max_new_tokens)):
        if number is not None and number < 1:
            raise ValueError(f"{option} is {number}; it must be at least 1")
    opts.check_seed(seed)
    if schedule == AUTO:
        raise ValueError(f"--schedule is '{AUTO}', which is another one elsewhere; name the schedule that is certified")
    try:
        if model is not None:
            drafts = opts.DEFAULT_DRAFTER if drafter is None else drafter
            shape = opts.DEFAULT_POLICY if policy is None else policy
            numbers = DTYPES[0] if dtype is None else dtype
            check = _on_model(
                model, drafts, shape, rule, schedule, numbers, prompts, limit, max_new_tokens or 64, trust_remote_code
            )
            _print(check.as_dict(), as_json, lambda: _show(check))
            status = 0 if check.passed else REFUTED
        else:
            registry = load_registry()
            pair = _named(registry, policy, rule)
            _check_out(out, drafter, worlds, schedule)
            certificate = _in_worlds(registry, *pair, drafter, schedule, worlds, seed or 0)
            kept = _keep(certificate, out) if certificate.certified else None
            _print({**certificate.as_dict(), "kept": kept}, as_json, lambda: typer.echo(str(certificate)))
            status = {"certified": 0, "refuted": REFUTED, "broken": BROKEN}[certificate.verdict]
    except PluginError as error:
        why = one_line(error)
        holds = "certified" if model is None else "passed"
        _print({"verdict": "broken", holds: False, "error": why}, as_json, lambda: typer.echo(f"BROKEN: {why}"))
        status = BROKEN
    raise typer.Exit(status)


def _print(answer: Mapping[str, Any], as_json: bool, show: Callable[[], None]) -> None:
    if as_json:
        print_json(answer)
    else:
        show()


def _named(registry: Registry, policy: str | None, rule: str) -> tuple[TreePolicy | None, AcceptanceRule]:
    """The policy and the rule; what cannot be certified is refused before anything is run."""
    if not policy:
        raise ValueError("no policy: name one with --policy (talon list policies), or a model with --model")
    made = made_policy(registry, policy)
    ruling: AcceptanceRule = built(registry, "rule", rule_for(registry, made) if rule == AUTO else rule)
    if made is None and is_own(ruling):
        raise ValueError("there is nothing to certify without a policy: plain decoding is the target's own")
    return made, ruling


def _check_out(out: Path | None, drafter: str | None, worlds: int | None, schedule: str) -> None:
    """Refuse to write what would count for nothing."""
    if out is None:
        return
    check_file(out, "--out")
    if worlds is not None and worlds < WORLDS:
        raise ValueError(f"--worlds is {worlds}; a certificate in a file is about at least {WORLDS}")
    if schedule != IN_TURN:
        raise ValueError(f"--schedule is '{schedule}'; a certificate in a file is about no schedule, so leave it out")
    if drafter is not None:
        raise ValueError(f"--drafter is '{drafter}'; a certificate in a file is about {RANDOM}, so leave it out")


def _keep(certificate: "Certificate", out: Path | None) -> str | None:
    """Leave a certificate where it will be looked for, if it is needed, and say what became of it.

    Returns:
        The file, if there is one.

    Raises:
        ValueError: if it was asked for as a file and cannot be one.
    """
    if certificate.unkept is not None:
        if out is not None:
            raise ValueError(f"there is no certificate for '{out}': {certificate.unkept}")
        if not certificate.proved:
            note(f"the certificate is not kept: {certificate.unkept}")
        return None
    if out is not None:
        write(certificate.record(), out)
        note(f"the certificate is in '{out}'")
    if certificate.proved:
        if out is None:
            note(
                "the output has the target's law by construction, and needs no certificate; --out writes one to a file"
            )
        return None
    try:
        kept = keep(certificate.record())
    except OSError as error:
        note(f"the certificate cannot be kept in '{certificates_folder()}': {error.strerror or error}")
        return None
    note(f"the certificate is kept in '{kept}', for as long as the code stays as it is")
    return str(kept)


def _in_worlds(
    registry: Registry,
    policy: TreePolicy | None,
    rule: AcceptanceRule,
    drafter: str | None,
    schedule: str,
    worlds: int | None,
    seed: int,
) -> "Certificate":
    if find_spec("hypothesis") is None:
        raise ValueError(
            "the worlds are made with hypothesis, which is not installed: pip install 'talon-core[testing]'"
        )
    from talon_core.certify.certificate import CertificationError
    from talon_core.certify.trial import certify as certified

    try:
        with if_interrupted("there is no certificate"), progress("certifying", "worlds") as report:
            return certified(
                policy,
                rule,
                drafter=drafter,
                schedule=schedule,
                worlds=worlds or WORLDS,
                seed=seed,
                report=report,
                registry=registry,
            )
    except CertificationError as error:
        return error.certificate


def _on_model(
    model: str,
    drafter: str,
    policy: str,
    rule: str,
    schedule: str,
    dtype: str,
    prompts: Path | None,
    limit: int | None,
    max_new_tokens: int,
    trust_remote_code: bool,
) -> "GreedyCheck":
    from talon_core.bench.prompts import read_sets

    if dtype not in DTYPES:
        raise ValueError(f"--dtype is '{dtype}'; it must be one of {', '.join(DTYPES)}")
    texts = list(PROMPTS[:limit])
    if prompts is not None:
        texts = [prompt.turns[0] for one in read_sets(prompts, limit) for prompt in one.prompts]
    resolved = opts.resolved(drafter, policy, rule, None, schedule=schedule)
    from talon_core.certify.greedy import check_greedy
    from talon_core.cli.session import open_session, torch_dtype

    session = open_session(model, dtype=torch_dtype(dtype), trust_remote_code=trust_remote_code)
    decoder = session.decoder(resolved)
    ids = [decoder.frontend.request(text, {}).ids for text in texts]
    with progress("comparing", "prompts") as report:
        return check_greedy(decoder, session.model, ids, max_new_tokens, report, name=model)


def _show(check: "GreedyCheck") -> None:
    table = Table(title=f"greedy output in {check.dtype}, held against generate", title_justify="left")
    for column in ("prompt", "tokens", "passes", "output", "gap", "rounding level", "verdict"):
        table.add_column(column, justify="left" if column in ("output", "verdict") else "right")
    for one in check.prompts:
        cells = ["identical"] if one.divergence is None else _parting(one.divergence)
        table.add_row(str(one.prompt), str(one.compared), str(one.target_passes), *cells)
    console = stdout()
    console.print(table)
    parts = [check.drafter, check.policy, check.rule]
    drafted = f"{check.compared / max(1, sum(one.target_passes for one in check.prompts)):.2f} tokens per target pass"
    verdict = "PASSED" if check.passed else "FAILED"
    counted = f"{check.identical} of {len(check.prompts)} outputs are identical, {check.compared} tokens compared"
    console.print(f"{verdict}: {' / '.join(part for part in parts if part)}: {counted}, {drafted}", soft_wrap=True)


def _parting(divergence: "Divergence") -> list[str]:
    def figure(value: Any) -> str:
        return "-" if value is None else f"{value:.2g}"

    what = f"token {divergence.at} is {divergence.emitted}, not {divergence.expected}"
    return [what, figure(divergence.gap), figure(divergence.rounding), divergence.verdict]
