"""Several drafters in one: which, and how sure a look-up must be to save a model's pass."""

from copy import copy
from itertools import chain
from operator import is_
from typing import Any

import attrs
from attrs.validators import ge, gt, le

from talon_core.basics.option_checks import number
from talon_core.defaults import AUTO
from talon_core.drafter import Drafter, DrafterSpec
from talon_core.target import Target


@attrs.frozen
class HybridSpec(DrafterSpec):
    """Drafts one tree out of what several drafters offer: models, and look-ups of what followed the same words.

    At each node all of them offer next tokens; a token that several offer is one candidate. The law is a mixture,

        P(t) = w * r(t) + (1 - w) * q(t),

    `r` the look-up's shares, scaled to 1, `q` the models' law (their mean, if there are several), and `w` how far the
    look-up is trusted here. With `p` the share of its best token, `q1` the greatest of the models' probabilities, and
    `logit(x) = ln(x / (1 - x))`,

        w = sigmoid(k logit(p) - 1.1 - 0.55 logit(q1) + s),    k = max(1.2 + u, 0).

    Where no model says anything, `q` is uniform, and `w` is such that the best token gets the probability
    `c = sigmoid(k logit(p) - 0.1 + s)`. So a long match, whose share is near 1, outweighs a model that is not sure, and
    a short one that is right by luck counts for little. Of several look-ups the first in the list is mixed in last.

    `s` and `u`, 0 in a new text, follow the text: before each of its tokens, of the prompt, too, the look-up is asked
    what would come, and the truth moves them as in a logistic regression by gradient steps that forgets,

        s <- 0.95 s + 0.2 e,    u <- 0.95 u + 0.05 e logit(p),    e = (1 if the best token came, else 0) - c.

    `s` tells how often it is right, `u` whether it is so where it says so: one that is sure and wrong is soon not
    believed. That is DSpark's way of estimating acceptance online (arXiv 2607.05147: a logistic regression on the
    log-odds of the draft's confidence, from a slope and an intercept that are given), but over everything that was
    written, not over what was drafted: then a drafter's answer depends on the text alone, as it must. For the same
    reason the models have no such terms; what their probabilities are worth is in the slopes. The constants are near to
    the likeliest ones for texts by SmolLM2-135M-Instruct, see `talon_drafters.hybrid.fitting`.

    Look-ups are those parts that are a `Retriever`: `ngram`, `pld`, `datastore` and `lookahead:window=0`.

    Look-ups are heard in a tree if, at its root, one of them would be given at least `heard` of the law beside a model
    that gives one half to its best token (`q1 = 1/2`); otherwise the models draft the tree alone. A look-up that is
    trusted little changes few trees, and where none is heard the passes of a model can be run ahead of their rounds
    (`Drafter.run_on`), up to the first root at which one is.

    A look-up costs nothing. Where it gives one token at least the probability `sure`, the models are not asked, nor
    anywhere below: a long match becomes a long chain without a draft pass.

    A policy may choose who is asked for a tree, all of them together or one alone (`talon_core.SourceChooser`): models
    are its sources first, then look-ups. A model alone has its own law, and of a look-up alone the law is as where no
    model says anything. Whoever is not asked hears of the text all the same, so that it can be asked for the next tree.

    Only the abstract of Talon (AAAI 2026) is public, which says that drafting combines a model with retrieval and
    adapts: the rules here are our own.

    Attributes:
        of: the drafters, joined by `+`; options of each in brackets, separated by `;`, as in
            `of=eagle3[path=heads;layers=2+15+27]+ngram[max_match=8]`. "auto" is the one that would be chosen for the
            model; it is left out where it stands in the list already.
        sure: from which probability of a looked up token on the models are not asked, in (0, 1]; 1 asks them always.
        least: where no model was asked or knows anything, the smallest probability of a token that is offered to the
            policy, in [0, 1].
        heard: from which share of the law at the root on look-ups take part in a tree, in [0, 1]; 0 always hears them.
    """

    name = "hybrid"
    purpose = "several drafters"
    paper = "Talon (AAAI 2026)"
    of: str = "auto+ngram"
    sure: float = attrs.field(default=0.6, validator=[number, gt(0), le(1)])
    least: float = attrs.field(default=0.25, validator=[number, ge(0), le(1)])
    heard: float = attrs.field(default=0.4, validator=[number, ge(0), le(1)])
    _built: tuple[DrafterSpec | None, ...] = attrs.field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        from talon_core.plugins.several import made_parts

        object.__setattr__(self, "_built", made_parts("drafter", _written(self.of), {AUTO: None}))

    @property
    def parts(self) -> tuple[DrafterSpec, ...]:
        """The drafters, in order.

        Raises:
            ValueError: if one is "auto", which is chosen for a model.
        """
        found = tuple(part for part in self._built if part is not None)
        if len(found) < len(self._built):
            raise ValueError(
                f"of is '{self.of}', and what 'auto' stands for depends on the model; open the drafter with a model, "
                "as talon_core.load does, or name the drafter"
            )
        return found

    @property
    def reads_texts(self) -> bool:  # type: ignore[override]  # it is what the parts say
        return all(part is not None and part.reads_texts for part in self._built)

    @property
    def catches_up(self) -> bool:  # type: ignore[override]  # likewise
        return any(part is not None and part.catches_up for part in self._built)

    def features(self, num_layers: int) -> tuple[int, ...]:
        return tuple(dict.fromkeys(chain.from_iterable(part.features(num_layers) for part in self.parts)))

    def files_hash(self) -> str:
        """Of its parts; what "auto" stands for is a network, or reads no files."""
        return "+".join(filter(None, (part.files_hash() for part in self._built if part is not None)))

    def for_model(self, model: Any) -> "HybridSpec":
        from talon_core.plugins.several import made_parts

        specs = _written(self.of)
        made = dict(zip(specs, self._built, strict=True))
        if AUTO in made:
            from talon_core.plugins.parts import choose_drafter
            from talon_core.plugins.registry import registry_of_parts

            chosen = choose_drafter(registry_of_parts(), model)
            named = {spec.partition("[")[0] for spec in specs}
            specs = [chosen if spec == AUTO else spec for spec in specs if spec != AUTO or chosen not in named]
        parts = tuple(part.for_model(model) for part in made_parts("drafter", specs, made))
        if len(parts) == len(self._built) and all(map(is_, parts, self._built)):
            return self
        own = copy(self)  # `attrs.evolve` would make all parts once more
        object.__setattr__(own, "of", "+".join(specs))
        object.__setattr__(own, "_built", parts)
        return own

    def open(self, target: Target) -> Drafter:
        from talon_drafters.hybrid.drafter import open_hybrid

        return open_hybrid(self, target)


def _written(of: str) -> list[str]:
    """The parts as they are written."""
    from talon_core.plugins.several import split_parts

    return split_parts(of, "drafters", "eagle3[path=heads]+ngram[max_match=8;least=0.1]")
