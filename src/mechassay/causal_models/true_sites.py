"""Where the variables of ground truths live, and interventions that show it.

A *known site* is a writer at a position that holds a variable until a reader takes it from there.
What the writer writes is exchanged there, or the residual stream at that position, after any block
from the writer's on until the reader's:

    answer_pointer of truth-mcqa-trained    a1.h1 at the last word, read by a2.h2
        -> heads.1.1@last, resid.1@last

Two known sites in a row hold the same variable, as the carry at the word where it arises and then
at the last one. They follow from the nodes and edges of the circuit (`mechassay.truth.tasks`) and
from where in the prompt they act, and they are verified (`verify_sites`): at every writer and every
block, at every part of the prompt,

    share    of pairs in which an interchange of the whole vector there has the label's words as the
             most probable ones. Only pairs that tell count: the variable's label differs from those
             of all other variables and of no interchange.
    holds    the share is `LEAST` or more at every known site, and `MOST` or less at any
             other

A site that is not known may be right by luck: the digits of an addition often have the carry of the
source when one of them is exchanged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from mechassay.causal_models.causal_model import CausalModel
from mechassay.causal_models.labels import ExpectedLabels, expected_labels
from mechassay.causal_models.task_models import load_causal_model
from mechassay.causal_models.truths import KNOWN_SITES, KnownSite
from mechassay.errors import BadFile, BadPairs, UnknownName, first_line, one_of
from mechassay.interventions.intervene import intervene
from mechassay.interventions.intervention import Interchange
from mechassay.interventions.names import Part
from mechassay.interventions.site import LAST, Site
from mechassay.models.model import Model
from mechassay.prompts.interchange_batch import InterchangeBatch
from mechassay.prompts.pairs import Example
from mechassay.prompts.tokenization import encode
from mechassay.truth.ground_truth import Truth, truth_folder
from mechassay.truth.tasks import CAUSAL
from mechassay.utils.arguments import checked
from mechassay.utils.display import OneLine, Tabular, html_facts, html_table
from mechassay.utils.files import write_text

FILE, FORMAT = "sites.json", 1
SPLIT, SEED, LIMIT = "test", 0, 500
LEAST, MOST = 0.99, 0.8


TruthLike = str | Truth | Model
"""A ground truth as it is given: by its name, as itself, or by its model."""


def known_sites_of(truth: TruthLike) -> Mapping[str, tuple[KnownSite, ...]]:
    """Return the sites of a ground truth's variables, by variable.

    Raises:
        UnknownName: the truth has no known sites.
    """
    name = _name_of(truth)
    if name not in KNOWN_SITES:
        raise UnknownName("ground truth with known sites", name, KNOWN_SITES)
    return KNOWN_SITES[name]


def _name_of(truth: TruthLike) -> str:
    return truth if isinstance(truth, str) else truth.name


@checked
def true_sites(truth: TruthLike, variable: str, part: Part = "resid") -> tuple[Site, ...]:
    """The sites of one part at which a variable is: an interchange there gives its labels.

    Raises:
        UnknownName: the truth has none, or no such variable.
    """
    known = known_sites_of(truth)
    name = _name_of(truth)
    one_of(f"variable of {name}", variable, known)
    n_layers = CAUSAL.make(name).n_layers
    sites = [site for own in known[variable] for site in _sites(own, n_layers)]
    return tuple(dict.fromkeys(site for site in sites if site.part == part))


def _sites(known: KnownSite, n_layers: int) -> tuple[Site, ...]:
    return (known.site, *known.stream(n_layers))


@dataclass(frozen=True, eq=False, repr=False)
class VerifiedSites(OneLine, Tabular):
    """What interchanges of whole vectors say about the known sites of a ground truth's variables.

    Attributes:
        truth: its name.
        split, seed, n: the examples.
        pairs: how many pairs tell, by variable.
        shares: of the known sites, by variable and site.
        elsewhere: the largest share at any other site, by variable, and that site.
    """

    truth: str
    split: str
    seed: int
    n: int
    pairs: Mapping[str, int]
    shares: Mapping[str, Mapping[str, float]]
    elsewhere: Mapping[str, tuple[str, float]]

    @property
    def holds(self) -> bool:
        """Whether all variables are at all of their known sites, and at no other site."""
        inside = [share for of in self.shares.values() for share in of.values()]
        outside = [share for _, share in self.elsewhere.values()]
        return min(inside) >= LEAST and max(outside) <= MOST

    def repr_fields(self) -> dict[str, Any]:
        return {"truth": self.truth, "variables": tuple(self.shares), "holds": self.holds}

    def columns(self) -> dict[str, list[Any]]:
        """A row a variable and known site, and one for the best of all others."""
        rows = [
            (variable, site, True, share, self.pairs[variable])
            for variable, of in self.shares.items()
            for site, share in of.items()
        ]
        rows += [
            (variable, site, False, share, self.pairs[variable])
            for variable, (site, share) in self.elsewhere.items()
        ]
        names = ("variable", "site", "known", "share", "pairs")
        return {name: [row[i] for row in rows] for i, name in enumerate(names)}

    def _repr_html_(self) -> str:
        columns = self.columns()
        rows = [
            (
                variable,
                site,
                "a known site" if is_known else "the best other site",
                f"{share:.3f}",
                n,
            )
            for variable, site, is_known, share, n in zip(*columns.values(), strict=True)
        ]
        facts = {"examples": self.n, "known sites": "hold" if self.holds else "do not hold"}
        return html_facts(f"Known sites of {self.truth}", facts, html_table(tuple(columns), rows))

    @checked
    def save(self, path: str | Path) -> Path:
        """Write it as JSON."""
        stored = {
            "format": FORMAT,
            "truth": self.truth,
            "split": self.split,
            "seed": self.seed,
            "n": self.n,
            "variables": {
                name: {
                    "pairs": self.pairs[name],
                    "shares": dict(self.shares[name]),
                    "elsewhere": list(self.elsewhere[name]),
                }
                for name in self.shares
            },
        }
        return write_text(Path(path), json.dumps(stored, indent=2) + "\n")

    @staticmethod
    @checked
    def load(path: str | Path) -> VerifiedSites:
        """What `save` wrote.

        Raises:
            BadFile: missing, truncated or foreign.
        """
        try:
            stored = json.loads(Path(path).read_text("utf-8"))
            if stored["format"] != FORMAT:
                raise BadFile(f"{path}: format must be {FORMAT}; got {stored['format']!r}.")
            of: Mapping[str, Any] = stored["variables"]
            return VerifiedSites(
                stored["truth"],
                stored["split"],
                int(stored["seed"]),
                int(stored["n"]),
                MappingProxyType({name: int(numbers["pairs"]) for name, numbers in of.items()}),
                MappingProxyType({name: numbers["shares"] for name, numbers in of.items()}),
                MappingProxyType(
                    {
                        name: (str(at), float(x))
                        for name, numbers in of.items()
                        for at, x in [numbers["elsewhere"]]
                    }
                ),
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadFile(f"{path}: no verified known sites ({first_line(error)}).") from None


@checked
def verified_sites(truth: TruthLike) -> VerifiedSites:
    """What was verified of the known sites of a ground truth that comes with the package.

    Raises:
        UnknownName: it has none.
        BadFile: its file is damaged.
    """
    known_sites_of(truth)
    return VerifiedSites.load(truth_folder(_name_of(truth)) / FILE)


def verify_sites(
    truth: Truth, of: str = "", *, split: str = SPLIT, seed: int = SEED, limit: int = LIMIT
) -> VerifiedSites:
    """Exchange the whole vector at every writer and block, and compare with the known sites.

    Args:
        truth: a ground truth.
        of: the name whose known sites are claimed; by default its own.
        limit: examples; each is paired with all of its counterfactuals.

    Raises:
        UnknownName: it has none.
        BadPairs: no pair tells a variable from all others.
    """
    known = known_sites_of(of or truth.name)
    causal = load_causal_model(truth.task.name)
    examples = truth.task.examples(split, limit=limit, seed=seed)
    pairs: dict[str, int] = {}
    shares: dict[str, Mapping[str, float]] = {}
    elsewhere: dict[str, tuple[str, float]] = {}
    for variable, its in known.items():
        labels = telling(causal, variable, tuple(known), examples)
        by_site = share_by_site(truth.model, labels)
        inside = dict.fromkeys(
            str(site) for own in its for site in _sites(own, len(truth.model.decoder.layers))
        )
        rest = {site: share for site, share in by_site.items() if site not in inside}
        best = max(rest, key=rest.__getitem__)
        pairs[variable] = len(labels)
        shares[variable] = {site: by_site[site] for site in inside}
        elsewhere[variable] = (best, rest[best])
    return VerifiedSites(truth.name, split, seed, len(examples), pairs, shares, elsewhere)


def telling(
    causal: CausalModel, variable: str, variables: Sequence[str], examples: Sequence[Example]
) -> ExpectedLabels:
    """The pairs in which a variable's label differs from that of every other, and from the base's.

    Raises:
        BadPairs: there are none.
    """
    labels = expected_labels(causal, variable, examples)
    others = [
        {pair.id: set(pair.labels) for pair in expected_labels(causal, other, examples)}
        for other in (*variables, None)
        if other != variable
    ]
    rows = [
        row
        for row, pair in enumerate(labels)
        if all(of.get(pair.id) != set(pair.labels) for of in others)
    ]
    if not rows:
        raise BadPairs(
            f"None of {len(labels)} pairs tells {variable!r} of {causal.name!r} from its other"
            " variables."
        )
    return labels.take(rows)


def share_by_site(model: Model, labels: ExpectedLabels) -> dict[str, float]:
    """By site, the share of pairs whose label's words are the most probable after an interchange of
    the whole vector there: every writer and block, at every part of the prompt.
    """
    kept, batch = labels.tokenized(model)
    assert model.tokenizer is not None, "labels were tokenized"
    words = [[of[0] for of in encode(model.tokenizer, pair.labels)] for pair in kept]
    right = np.zeros((len(kept), len(model.decoder.unembedding)), dtype=bool)
    for row, of in enumerate(words):
        right[row, of] = True
    layers = range(len(model.decoder.layers))
    positions = _positions(batch)
    heads = [
        Site(i, at, "heads", (h,))
        for i in layers
        for h in range(model.graph.n_heads)
        for at in positions
    ]
    mlps = [Site(i, at, "mlp") for i in layers for at in positions]
    stream = [Site(i, at) for i in (-1, *layers) for at in positions]
    shares: dict[str, float] = {}
    for site in (*heads, *mlps, *stream):
        with torch.no_grad():
            logits = intervene(model, batch, {site: Interchange()}).logits.float().cpu().numpy()
        # The right words of a row, however many, are its most probable ones.
        least = np.where(right, logits, np.inf).min(axis=1)
        first = least > np.where(right, -np.inf, logits).max(axis=1)
        shares[str(site)] = float(first.mean())
    return shares


def _positions(batch: InterchangeBatch) -> list[str]:
    """Parts of the prompt, "last" among them; one of those that are the same tokens in all rows."""
    names: dict[bytes, str] = {}
    for name in sorted(batch.names, key=lambda name: (name != LAST, batch.names.index(name))):
        base, source = batch.column(name)
        names.setdefault(base.numpy().tobytes() + source.numpy().tobytes(), name)
    return list(names.values())
