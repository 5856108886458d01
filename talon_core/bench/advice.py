"""What follows from a comparison, in sentences: what is not decided yet, and what should not be used."""

from collections.abc import Iterator

from talon_core.bench.bootstrap import Interval
from talon_core.bench.compare import FEW, Comparison, Summary
from talon_core.bench.methods import GENERATE, PLAIN
from talon_core.rule import CLAIMED, MEASURED

HOPELESS = 100
"""How many times as many prompts nobody will measure."""

SHORT = 12
"""Letters of a commit that are told."""


def advice(comparison: Comparison) -> list[str]:
    """Sentences about the whole run first, then about each method in order."""
    said = [*_several_commits(comparison), *_few(comparison)]
    for method in comparison.methods:
        said += _about(method, comparison)
    return said


def named(method: str, summary: Summary) -> str:
    """A method's name, with the mark of those that are lossy, lossless by a plugin's word alone, or peers.

    Behind the mark of a peer stands in what it is not like the other methods.
    """
    if summary.lossless == MEASURED:
        return f"{method} ({', '.join(['peer', *summary.unlike])})"
    if summary.lossless == CLAIMED:
        return f"{method} (claimed)"
    return method if summary.lossless else f"{method} (lossy)"


def _several_commits(comparison: Comparison) -> Iterator[str]:
    if len(comparison.commits) > 1:
        named = ", ".join(commit[:SHORT] + "+" * commit.endswith("+") for commit in comparison.commits)
        yield f"warning: the run was measured at several commits, in part by other code: {named}"


def _few(comparison: Comparison) -> Iterator[str]:
    prompts = max(summary.speed.prompts for summary in comparison.all.values())
    sizes = {name: max(one.speed.prompts for one in of.values()) for name, of in comparison.sets.items()}
    small = [f"{name} ({size})" for name, size in sizes.items() if size < FEW]
    if prompts < FEW:
        yield (
            f"warning: {prompts} prompt{'' if prompts == 1 else 's'} only; with fewer than {FEW}, medians and their "
            "intervals say little"
        )
    elif small:
        yield f"warning: fewer than {FEW} prompts in {', '.join(small)}; figures by set say little there"


def _about(method: str, comparison: Comparison) -> Iterator[str]:
    summary, baseline = comparison.all[method], comparison.baseline
    name = named(method, summary)
    if method not in (PLAIN, GENERATE):
        slow = _slower_on(method, comparison)
        if _slower(summary.to_plain):
            yield (
                f"{name} is slower than {PLAIN} here ({_interval(summary.to_plain)}); it should not be used with "
                "this model on this machine for prompts like these"
            )
        elif slow:
            yield f"{name} is slower than {PLAIN} on {', '.join(slow)}; it should not be used for such prompts here"
    if method != baseline and summary.ratio is not None and summary.ratio.straddles_one:
        yield _undecided(name, summary, baseline)


def _slower_on(method: str, comparison: Comparison) -> list[str]:
    """Sets that are large enough to say so, where there are several."""
    found = {name: of[method].to_plain for name, of in comparison.sets.items()} if len(comparison.sets) > 1 else {}
    return [
        f"{name} ({_interval(ratio)})"
        for name, ratio in found.items()
        if ratio is not None and ratio.prompts >= FEW and _slower(ratio)
    ]


def _slower(ratio: Interval | None) -> bool:
    return ratio is not None and ratio.high is not None and ratio.high < 1


def _undecided(name: str, summary: Summary, baseline: str) -> str:
    assert summary.ratio is not None
    more = summary.more_prompts
    start = f"whether {name} is faster than {baseline} is not decided ({_interval(summary.ratio)})"
    if more is None or more > HOPELESS * summary.ratio.prompts:
        return f"{start}; they are about equally fast, and no number of prompts that is worth measuring will tell"
    return (
        f"{start}; about {more:,} more prompt{'' if more == 1 else 's'} like these would decide it (an estimate: the "
        "ratio stays, and its interval narrows with the square root of the number of prompts)"
    )


def _interval(ratio: Interval | None) -> str:
    assert ratio is not None
    return f"{ratio.median:.2f}x, {ratio.low:.2f} to {ratio.high:.2f}"
