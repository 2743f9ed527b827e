"""One interchange drawn on both models: what it does to the causal model, and where it is made.

As figure 6 of Mueller et al. 2025. On the left the causal model has its values of the base, but for
the variable, whose value is the source's and whose box is coloured. On the right are the two
prompts' tokens with the model's layers above them; the features of the coloured sites go from the
source to the base. Below stands what is expected, and whether the language model then writes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mechassay.causal_models.hypothesis import hypotheses
from mechassay.causal_models.labels import expected_labels
from mechassay.errors import BadUsage, one_of
from mechassay.interventions.intervene import intervene
from mechassay.interventions.intervention import Interchange
from mechassay.interventions.site import ALL
from mechassay.results.plots import GREY, INK, PALETTE, SETTINGS, SIZE
from mechassay.utils.display import shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from mechassay.prompts.pairs import Example
    from mechassay.variables.alignment import VariableAlignment

LONGEST = 10
"""Letters of a token."""
GAP = 1.5
"""Between the two prompts, in columns."""


def draw_interchange(alignment: VariableAlignment, example: Example, kind: str = "") -> Figure:
    """The figure of one example's interchange.

    Args:
        alignment: on a loaded model (`VariableAlignment.on`).
        example: of the alignment's task.
        kind: of the counterfactual that is the source; the first that tells the variable's label
            from the base's if not given.

    Raises:
        BadUsage: no model is loaded, a label that is a number, a site at all tokens or at a
            number, or an example of which no counterfactual has a label.
        UnknownName: a kind that the example does not have.
    """
    from matplotlib.figure import Figure as Picture
    from matplotlib.patches import FancyArrowPatch, Rectangle
    from matplotlib.pyplot import rc_context

    model = alignment.fit.model
    known_variables = hypotheses(alignment.causal_model)
    hypothesis = known_variables[one_of("variable", alignment.variable, known_variables)]
    if model is None:
        raise BadUsage("The alignment has no model: alignment.on(model) gives it one.")
    if hypothesis.model.contrast is not None:
        raise BadUsage(f"What {alignment.variable} changes is a number, which is not drawn.")
    causal, variable = hypothesis.model, hypothesis.variable
    known = dict.fromkeys(example.counterfactuals)
    if kind:
        one_of("kind of counterfactual", kind, known)
    sites = alignment.fit.sites
    unnamed = [site for site in sites if not isinstance(site.position, str) or site.position == ALL]
    if unnamed:
        raise BadUsage(f"{unnamed[0]}: drawn are sites at one named token, as resid.12@last.")
    labels = expected_labels(causal, variable, [example], [kind] if kind else list(known))
    if not labels:
        raise BadUsage(f"{example.id}: no counterfactual has a label of {variable}.")
    row = next((n for n, pair in enumerate(labels) if pair.label != pair.base_label), 0)
    pair, batch = labels[row], labels.tokenized(model)[1].select([row])
    features = {site: Interchange(features=alignment.fit.features(site)) for site in sites}
    written = bool(intervene(model, batch, features).written[0])
    assert causal.read is not None
    base, source = causal.read(example.prompt), causal.read(example.counterfactuals[pair.kind])
    setting = causal.interchange(base, {variable: source})

    sides = [
        [_token(model, token) for token in tokens[0][mask[0]].tolist()]
        for tokens, mask in ((batch.base, batch.base_mask), (batch.source, batch.source_mask))
    ]
    n_layers, n_base = model.graph.n_layers, len(sides[0])
    first = (0.0, n_base + GAP)
    width = first[1] + len(sides[1])
    with rc_context(SETTINGS):
        figure = Picture(figsize=(5.0 + 0.42 * width, max(4.0, 1.6 + 0.16 * n_layers)))
        left = figure.add_axes((0.0, 0.12, 4.6 / (5.0 + 0.42 * width), 0.8))
        causal.plot(setting, ax=left)
        ax = figure.add_axes(
            (5.0 / (5.0 + 0.42 * width), 0.12, 0.42 * width / (5.0 + 0.42 * width), 0.8)
        )
        _grid(ax, sides, first, n_layers, Rectangle)
        for site in sites:
            ends = [
                (first[side] + int(column[0]) - offset + 0.4, site.layer + 0.5)
                for side, (column, offset) in enumerate(
                    zip(
                        batch.column(str(site.position)),
                        (int(start[0]) for start in batch.starts),
                        strict=True,
                    )
                )
            ]
            for x, y in ends:
                ax.add_patch(Rectangle((x - 0.4, y - 0.5), 0.8, 1.0, color=PALETTE[1], zorder=3))
            ax.add_patch(
                FancyArrowPatch(
                    ends[1],
                    ends[0],
                    connectionstyle="arc3,rad=0.25",
                    arrowstyle="-|>",
                    mutation_scale=11,
                    color=PALETTE[1],
                    lw=1.4,
                    zorder=4,
                )
            )
        says = "writes it" if written else "does not write it"
        where = ", ".join(map(str, sites))
        text = figure.text(
            0.02,
            0.02,
            f"{alignment.variable} of the source at {shortened(where, 40)}: expected"
            f" {shortened(pair.label[0], 20)!r}, without {shortened(pair.base_label[0], 20)!r};"
            f" {model.name} {says}.",
            color=INK,
            fontsize=SIZE,
        )
        text.set_parse_math(False)
        return figure


def _token(model: Any, token: int) -> str:
    text = str(token) if model.tokenizer is None else str(model.tokenizer.decode([token]))
    return shortened(text.strip() or repr(text), LONGEST)


def _grid(
    ax: Axes, sides: list[list[str]], first: tuple[float, float], n_layers: int, box: Any
) -> None:
    """The layers of both prompts as boxes, their tokens below, and what they are above."""
    for begin, tokens, name in zip(first, sides, ("base", "source"), strict=True):
        for place, token in enumerate(tokens):
            x = begin + place
            for layer in range(-1, n_layers):
                ax.add_patch(box((x, layer), 0.8, 0.9, facecolor="none", edgecolor=GREY, lw=0.4))
            label = ax.text(
                x + 0.4, -1.3, token, rotation=60, ha="right", va="top", fontsize=SIZE - 2.5
            )
            label.set_parse_math(False)
        ax.text(begin, n_layers + 0.4, name, color=INK, fontsize=SIZE, weight="bold")
    ax.text(first[0] - 0.4, n_layers - 0.5, str(n_layers - 1), ha="right", va="center", color=GREY)
    ax.text(first[0] - 0.4, 0.5, "layer 0", ha="right", va="center", color=GREY, fontsize=SIZE - 2)
    ax.set_xlim(-1.5, first[1] + len(sides[1]) + 0.3)
    ax.set_ylim(-6.0 * max(1.0, n_layers / 24), n_layers + 2)
    ax.axis("off")
