"""EX2, differential item functioning: does a circuit treat some kinds of names unlike others?

`page`      Cohen's d of the circuit's logit differences between every two groups of names; the
            largest |d|. This is *impact*: groups also differ if the model itself finds one
            easier.
`repaired`  DIF proper (Holland and Wainer 1993): groups are compared at equal ability, which is
            the full model's own logit difference.
                Mantel-Haenszel   the common odds ratio of being right over strata of ability, as
                                  ETS's delta -2.35 ln OR; below 1 it is negligible (A)
                logistic          log odds = b0 + b1 ability + b2 group + b3 ability x group, by
                                  maximum likelihood; uniform DIF is b2, crossing DIF b3; a gain
                                  in Nagelkerke's R² above .070 is large (Jodoin and Gierl 2001)
            The impact stands beside it as Hedges's g, whose interval resamples pairs of names. A
            group has to have `LEAST` prompts or more; p-values are Holm's over pairs of groups.

The prompts are those of IOI, with names of three kinds. The names of a prompt have equally many
tokens, so that a prompt and its counterfactual, in which the other name is repeated, are equally
long. They begin with different tokens, by which answer and foil are compared. How many names and
pairs of names that leaves is in the table of groups.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import combinations
from typing import Annotated, Any, ClassVar

import numpy as np
import yaml
from jaxtyping import Bool, Float, Int
from scipy.special import expit
from scipy.stats import chi2

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.evaluation.faithfulness import evaluate
from mechassay.errors import BadPairs, BadUsage
from mechassay.measurement.catalogue import (
    Condition,
    Flag,
    PageMetric,
    Quantity,
    flag,
    page_metric,
    quantity,
    thresholds,
)
from mechassay.measurement.measurement import (
    N_SIMULATIONS,
    Drawn,
    Measurement,
    NullTable,
    Scenario,
    simulate,
)
from mechassay.measurement.metric import Gauge, GaugeInputs
from mechassay.measurement.metrics.discriminability import cohens_d, hedges_g
from mechassay.prompts.pairs import Pair
from mechassay.results.records import Table, Values
from mechassay.stats.intervals import (
    Interval,
    example_weights,
    percentile_interval,
    resolved_difference,
    weighted_means,
)
from mechassay.tasks.task import word_lists
from mechassay.utils.settings import Within, checked_settings

ID = "EX2"
REPAIRED = (Condition("min_p_adjusted", ">", 0.05), Condition("max_delta_r2", "<", 0.07))
LEAST = 20
N_STRATA = 5
STEPS, TOLERANCE, FAR = 50, 1e-9, 30.0
"""Newton steps, the change at which they end, and a coefficient that means separation."""
Right = Bool[np.ndarray, "n"]
Ability = Float[np.ndarray, "n"]


@dataclass(frozen=True)
class MantelHaenszel:
    """A common odds ratio over strata, of the first group against the second.

    Attributes:
        odds_ratio: NaN where no stratum tells the groups apart.
        error: standard error of its logarithm (Robins, Breslow and Greenland 1986).
        p: of the chi-square test with continuity correction.
    """

    odds_ratio: float
    error: float
    p: float

    @property
    def delta(self) -> float:
        """ETS's delta: -2.35 ln OR; below 0 the first group has it easier."""
        return -2.35 * math.log(self.odds_ratio) if self.odds_ratio > 0 else math.nan

    @property
    def ets_class(self) -> str:
        """A negligible, B moderate, C large; empty where it is undefined."""
        delta, error = self.delta, 2.35 * self.error
        if math.isnan(delta) or math.isnan(error):
            return ""
        if abs(delta) < 1 or abs(delta) < 1.96 * error:
            return "A"
        return "C" if abs(delta) > 1.5 and abs(delta) - 1.96 * error > 1 else "B"


def mantel_haenszel(right: Right, first: Right, strata: Int[np.ndarray, "n"]) -> MantelHaenszel:
    """The common odds ratio of being right in the first group and in the others, over strata."""
    above = below = expected = variance = observed = 0.0
    parts: list[tuple[float, float, float, float]] = []
    for stratum in np.unique(strata):
        here = strata == stratum
        a, b = float((right & first & here).sum()), float((~right & first & here).sum())
        c, d = float((right & ~first & here).sum()), float((~right & ~first & here).sum())
        n = a + b + c + d
        if n < 2 or a + b == 0 or c + d == 0:
            continue
        above, below = above + a * d / n, below + b * c / n
        observed, expected = observed + a, expected + (a + b) * (a + c) / n
        variance += (a + b) * (c + d) * (a + c) * (b + d) / (n * n * (n - 1))
        parts.append((a * d / n, b * c / n, (a + d) / n, (b + c) / n))
    if above == 0 or below == 0 or variance == 0:
        return MantelHaenszel(math.nan, math.nan, math.nan)
    statistic = max(0.0, abs(observed - expected) - 0.5) ** 2 / variance
    r, s, p, q = (np.array(column) for column in zip(*parts, strict=True))
    spread = (p * r).sum() / (2 * above**2) + (p * s + q * r).sum() / (2 * above * below)
    spread += (q * s).sum() / (2 * below**2)
    return MantelHaenszel(above / below, math.sqrt(float(spread)), float(chi2.sf(statistic, 1)))


def log_likelihood(design: Float[np.ndarray, "n k"], right: Right) -> float:
    """The largest log-likelihood of a logistic regression, by Newton's method; NaN where a
    combination of the columns separates right from wrong, so that there is no largest one.
    """
    beta = np.zeros(design.shape[1])
    for _ in range(STEPS):
        p = expit(design @ beta)
        weights = p * (1 - p)
        information = design.T @ (design * weights[:, None])
        if np.linalg.cond(information) > 1e12:
            return math.nan
        step = np.linalg.solve(information, design.T @ (right - p))
        beta = beta + step
        if np.abs(beta).max() > FAR:
            return math.nan
        if np.abs(step).max() < TOLERANCE:
            break
    p = np.clip(expit(design @ beta), 1e-15, 1 - 1e-15)
    return float(np.log(np.where(right, p, 1 - p)).sum())


def nagelkerke(log_l: float, log_l0: float, n: int) -> float:
    """Nagelkerke's R² of a model over one without columns."""
    most = 1 - math.exp(2 * log_l0 / n)
    return (1 - math.exp(2 * (log_l0 - log_l) / n)) / most if most > 0 else math.nan


@dataclass(frozen=True)
class LogisticDIF:
    """A group's effect at equal ability.

    Attributes:
        delta_r2: gain in R² by group and its product with ability.
        p: of both; `p_uniform` and `p_crossing` of each alone.
    """

    delta_r2: float
    p: float
    p_uniform: float
    p_crossing: float


def logistic_dif(right: Right, first: Right, ability: Ability) -> LogisticDIF:
    """Logistic regression of being right on ability, group and both; NaN where it separates."""
    spread = float(resolved_difference(ability.std(), 0.0, ability))
    if spread == 0 or right.all() or not right.any():
        return LogisticDIF(*(math.nan,) * 4)
    x, one = (ability - ability.mean()) / spread, np.ones(len(ability))
    group = first.astype(float)
    designs = ([one], [one, x], [one, x, group], [one, x, group, x * group])
    l0, l1, l2, l3 = (log_likelihood(np.stack(columns, axis=1), right) for columns in designs)
    n = len(right)
    return LogisticDIF(
        nagelkerke(l3, l0, n) - nagelkerke(l1, l0, n),
        float(chi2.sf(2 * (l3 - l1), 2)),
        float(chi2.sf(2 * (l2 - l1), 1)),
        float(chi2.sf(2 * (l3 - l2), 1)),
    )


def strata_of(ability: Ability, n_strata: int = N_STRATA) -> Int[np.ndarray, "n"]:
    """Strata of about equal numbers, by ability; equal abilities are in one."""
    edges = np.quantile(ability, np.linspace(0, 1, n_strata + 1)[1:-1])
    return np.searchsorted(edges, ability, side="right")


def holm(p: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values; NaN stays, and does not count."""
    known = sorted((value, place) for place, value in enumerate(p) if not math.isnan(value))
    out, least = [math.nan] * len(p), 0.0
    for rank, (value, place) in enumerate(known):
        least = max(least, min(1.0, (len(known) - rank) * value))
        out[place] = least
    return out


def differential_items(
    scores: Mapping[str, Float[np.ndarray, "_"]],
    abilities: Mapping[str, Float[np.ndarray, "_"]],
    *,
    clusters: Mapping[str, Sequence[str]] | None = None,
    pools: Mapping[str, Mapping[str, Any]] | None = None,
    seed: int = 0,
    flags: Iterable[Flag] = (),
) -> Measurement:
    """EX2 of a circuit's logit differences by group.

    Args:
        scores: the circuit's, one a prompt, by group.
        abilities: the full model's on the same prompts.
        clusters: what is resampled together, such as the pair of names; each prompt by default.
        pools: what each group's prompts were made of, for the table of groups.

    Raises:
        BadUsage: fewer than two groups, or a group with fewer than two prompts.
    """
    names = list(scores)
    if len(names) < 2 or min(map(len, scores.values())) < 2:
        sizes = ", ".join(f"{name} {len(x)}" for name, x in scores.items())
        raise BadUsage(f"EX2 compares two groups or more of two prompts or more; got {sizes}.")
    pairs = list(combinations(names, 2))
    least, n = min(map(len, scores.values())), sum(map(len, scores.values()))
    notes = list(flags)
    if least < LEAST:
        notes.append(flag("few_prompts", n=least))
    d = {pair: cohens_d(scores[pair[0]], scores[pair[1]]) for pair in pairs}
    largest = max(pairs, key=lambda pair: abs(d[pair]) if not math.isnan(d[pair]) else -1)
    page = {"max_abs_d": quantity(abs(d[largest]), n=n)}
    page |= {f"pairwise_d {a}, {b}": quantity(x, n=n) for (a, b), x in d.items()}
    comparisons = [_compared(scores, abilities, pair) for pair in pairs]
    adjusted = (
        holm([comparison["mh_p"] for comparison in comparisons]),
        holm([comparison["logistic_p"] for comparison in comparisons]),
    )
    for comparison, mh, logistic in zip(comparisons, *adjusted, strict=True):
        comparison |= {"mh_p_holm": mh, "logistic_p_holm": logistic}
    draws = _impact(scores, clusters or {}, largest, seed)
    repaired = _repaired(comparisons, scores, largest, draws, least, n)
    if any(math.isnan(comparison["logistic_p"]) for comparison in comparisons):
        notes.append(flag("separated"))
    rows = [
        {
            "group": name,
            "prompts": len(x),
            "score": float(x.mean()),
            "right": float(np.mean(x > 0)),
            "model's score": float(abilities[name].mean()),
            **dict((pools or {}).get(name, {})),
        }
        for name, x in scores.items()
    ]
    units = {
        name: (clusters or {}).get(name) or [f"{name} {i}" for i in range(len(x))]
        for name, x in scores.items()
    }
    return Measurement.of(
        ID,
        {**page, "pairwise_d": quantity(abs(d[largest]), n=n)},
        repaired,
        REPAIRED,
        flags=notes,
        null=null(least, len(names)),
        tables=[
            Table.of("groups", ("group",), rows),
            Table.of("pairs of groups", ("groups",), comparisons),
        ],
        values=Values(
            unit="prompt",
            ids=[f"{name} {i}" for name, x in scores.items() for i in range(len(x))],
            groups=[unit for of_group in units.values() for unit in of_group],
            columns={
                "circuit": [float(v) for x in scores.values() for v in x],
                "model": [float(v) for name in names for v in abilities[name]],
            },
        ),
        words={"first": largest[0], "second": largest[1], "least": LEAST},
    )


def _compared(
    scores: Mapping[str, Any], abilities: Mapping[str, Any], pair: tuple[str, str]
) -> dict[str, Any]:
    a, b = pair
    right = np.concatenate((scores[a], scores[b])) > 0
    ability = np.concatenate((abilities[a], abilities[b])).astype(float)
    first = np.arange(len(right)) < len(scores[a])
    mh = mantel_haenszel(right, first, strata_of(ability))
    logistic = logistic_dif(right, first, ability)
    return {
        "groups": f"{a}, {b}",
        "d": cohens_d(scores[a], scores[b]),
        "hedges_g": hedges_g(scores[a], scores[b]),
        "mh_odds_ratio": mh.odds_ratio,
        "mh_delta": mh.delta,
        "ets_class": mh.ets_class,
        "mh_p": mh.p,
        "delta_r2": logistic.delta_r2,
        "logistic_p": logistic.p,
        "p_uniform": logistic.p_uniform,
        "p_crossing": logistic.p_crossing,
    }


def _impact(
    scores: Mapping[str, Any],
    clusters: Mapping[str, Sequence[str]],
    pair: tuple[str, str],
    seed: int,
) -> Interval:
    """The interval of the difference of two groups in pooled spreads, over clusters."""
    rng = np.random.default_rng(seed)
    means, variances, groups = [], [], []
    for name in pair:
        x = np.asarray(scores[name], dtype=float)
        units = clusters.get(name) or [str(i) for i in range(len(x))]
        weights, n_groups = example_weights(units, rng)
        means.append(weighted_means(weights, x))
        squared = weighted_means(weights, x**2)
        variances.append(resolved_difference(squared, means[-1] ** 2, x**2))
        groups.append(n_groups)
    spread = np.sqrt(np.mean(variances, axis=0))
    with np.errstate(divide="ignore", invalid="ignore"):
        draws = np.where(spread > 0, (means[0] - means[1]) / spread, np.nan)
    return percentile_interval(draws, n_groups=min(groups))


def _repaired(
    comparisons: Sequence[Mapping[str, Any]],
    scores: Mapping[str, Any],
    largest: tuple[str, str],
    interval: Interval,
    least: int,
    n: int,
) -> dict[str, Quantity]:
    few = least < LEAST

    def of(value: float) -> Quantity:
        return quantity(math.nan if few else value, n=n, reason="few" if few else "")

    def largest_of(name: str) -> Quantity:
        values = [abs(comparison[name]) for comparison in comparisons]
        return of(math.nan if any(map(math.isnan, values)) else float(max(values)))

    p = [min(comparison["mh_p_holm"], comparison["logistic_p_holm"]) for comparison in comparisons]
    p_adjusted = math.nan if any(map(math.isnan, p)) else float(min(1.0, 2 * min(p)))
    impact = hedges_g(scores[largest[0]], scores[largest[1]])
    return {
        "impact_g": quantity(impact, interval=interval, n=n),
        "min_p_adjusted": of(p_adjusted),
        "max_delta_r2": largest_of("delta_r2"),
        "max_mh_delta": largest_of("mh_delta"),
    }


# How often the thresholds err


@cache
def null(
    n: int = 40, groups: int = 3, n_simulations: int = N_SIMULATIONS // 4, seed: int = 0
) -> NullTable:
    """Rates of the conditions for `groups` groups of `n` prompts: passing means no DIF."""

    def draw(rng: np.random.Generator, size: int, impact: float, dif: float) -> Drawn:
        drawn = {name: np.full(size, np.nan) for name in ("d", "p", "r2")}
        for row in range(size):
            ability = 1 + rng.standard_normal((groups, n))
            ability[0] += impact
            score = ability + 0.7 * rng.standard_normal((groups, n))
            score[0] -= dif
            ds = [abs(cohens_d(score[a], score[b])) for a, b in combinations(range(groups), 2)]
            drawn["d"][row] = max(ds)
            if n < LEAST:
                continue
            names = [str(i) for i in range(groups)]
            held = dict(zip(names, score, strict=True)), dict(zip(names, ability, strict=True))
            compared = [_compared(*held, pair) for pair in combinations(names, 2)]
            p = [*holm([x["mh_p"] for x in compared]), *holm([x["logistic_p"] for x in compared])]
            if not any(map(math.isnan, p)):
                drawn["p"][row] = min(1.0, 2 * min(p))
                drawn["r2"][row] = max(abs(x["delta_r2"]) for x in compared)
        repaired = {"min_p_adjusted": drawn["p"], "max_delta_r2": drawn["r2"]}
        return {"page": {"max_abs_d": drawn["d"]}, "repaired": repaired}

    scenarios = (
        Scenario(
            "one group's scores are lower by 1 at equal ability (DIF)",
            True,
            lambda rng, size: draw(rng, size, 0.0, 1.0),
        ),
        Scenario("groups do not differ", False, lambda rng, size: draw(rng, size, 0.0, 0.0)),
        Scenario(
            "the model finds one group harder by 1, the circuit does as the model (impact)",
            False,
            lambda rng, size: draw(rng, size, -1.0, 0.0),
        ),
    )
    limits = thresholds(ID, REPAIRED)
    return simulate(scenarios, limits, n, n_simulations=n_simulations, seed=seed)


SPLIT = "test"
NamesByKind = Mapping[str, Sequence[str]]


@cache
def name_groups() -> NamesByKind:
    """Names by category."""
    text = files("mechassay.measurement").joinpath("data", "names.yaml").read_text("utf-8")
    return yaml.safe_load(text)


def name_tokens(names: Sequence[str], tokenizer: Any) -> dict[str, tuple[int, ...]]:
    """The tokens of each name behind a space; names that the tokenizer does not know are out."""
    unknown = getattr(tokenizer, "unk_token_id", None)
    token_lists: dict[str, tuple[int, ...]] = {}
    for name in names:
        before, whole = (
            tokenizer(text, add_special_tokens=False).input_ids for text in ("and", f"and {name}")
        )
        tokens = tuple(whole[len(before) :])
        if tokens and whole[: len(before)] == before and unknown not in tokens:
            token_lists[name] = tokens
    return token_lists


def name_pairs(tokens: Mapping[str, tuple[int, ...]]) -> list[tuple[str, str]]:
    """Pairs of names of equally many tokens that begin with different ones."""
    return [
        (a, b)
        for a, b in combinations(tokens, 2)
        if len(tokens[a]) == len(tokens[b]) and tokens[a][0] != tokens[b][0]
    ]


def pool_text(tokens: Mapping[str, tuple[int, ...]]) -> str:
    """How many names have how many tokens: `8 of 1, 21 of 2`."""
    counts = Counter(map(len, tokens.values()))
    return ", ".join(f"{n} of {length}" for length, n in sorted(counts.items()))


def prompts(
    group: str, pairs: Sequence[tuple[str, str]], n: int, rng: np.random.Generator
) -> list[Pair]:
    """IOI prompts with these pairs of names, in either order; a pair of names is a group."""
    words = word_lists("ioi")[SPLIT]
    made: list[Pair] = []
    for number in range(n):
        a, b = pairs[int(rng.integers(len(pairs)))]
        subject, other = (a, b) if rng.random() < 0.5 else (b, a)
        first, second = (subject, other) if rng.random() < 0.5 else (other, subject)
        about = {
            kind: words[f"{kind}s"][int(rng.integers(len(words[f"{kind}s"])))]
            for kind in ("object", "place")
        }
        template = words["templates"][int(rng.integers(len(words["templates"])))]
        texts = [
            template.format(name_A=first, name_B=second, name_C=third, **about)
            for third in (subject, other)
        ]
        made.append(
            Pair(
                f"{group} {number}",
                *texts,
                answers=(f" {other}",),
                foils=(f" {subject}",),
                group=f"{a}, {b}",
            )
        )
    return made


@dataclass(frozen=True)
@checked_settings
class DifferentialItems(Gauge):
    """Does a circuit do as well with names of all kinds, at equal ability of the model?

    Attributes:
        n_per_group: prompts of each kind of names.
    """

    n_per_group: Annotated[int, Within(2)] = 40

    about: ClassVar[PageMetric] = page_metric(ID)

    def measure(self, inputs: GaugeInputs) -> Measurement:
        """Return both variants on prompts with names of each kind.

        Raises:
            BadPairs: the tokenizer leaves a category without a pair of names.
        """
        model, rng = inputs.model, np.random.default_rng(inputs.seed)
        tokenizer: Any = model.tokenizer
        if tokenizer is None:
            raise BadUsage(f"EX2 writes prompts, for which {model.name} has no tokenizer.")
        arms = [inputs.circuit, Circuit.full(model.graph)]
        by_kind: dict[str, dict[str, Any]] = {
            "scores": {},
            "abilities": {},
            "clusters": {},
            "pools": {},
        }
        partial = 0
        for group, names in name_groups().items():
            tokens = name_tokens(names, tokenizer)
            pairs = name_pairs(tokens)
            if not pairs:
                raise BadPairs(
                    f"EX2 needs two {group} names of equally many tokens; the tokenizer of"
                    f" {model.name} leaves {pool_text(tokens) or 'none'}."
                )
            batch = model.batch(prompts(group, pairs, self.n_per_group, rng))
            values = evaluate(model, arms, batch, "logit_diff", progress=inputs.progress)
            by_kind["scores"][group], by_kind["abilities"][group] = values
            by_kind["clusters"][group] = batch.groups
            by_kind["pools"][group] = {
                "names by tokens": pool_text(tokens),
                "pairs of names": len(pairs),
            }
            partial += batch.alignment.get("partial", 0)
        flags: list[Flag] = []
        if partial:
            flags.append(flag("first_tokens", n=partial))
        return differential_items(**by_kind, seed=inputs.seed, flags=flags)

    def null(
        self, n: int | None = None, n_simulations: int = N_SIMULATIONS, seed: int = 0
    ) -> NullTable:
        """Return the rates for `n` prompts a group; for `n_per_group` if None."""
        return self.rates(self.n_per_group if n is None else n, n_simulations, seed)

    def rates(self, n: int, n_simulations: int, seed: int) -> NullTable:
        """Return the rates for three groups of `n` prompts."""
        return null(n, 3, n_simulations, seed)
