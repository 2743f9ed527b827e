"""The evaluation that Tower (2026) prints, computed again from its own tables.

Each number of the text is compared with what tables 2 to 6 and appendix B make of it
(`published_checks`). What does not agree is said to be so, and nothing is corrected. Scores are
printed with one decimal; as only 35 scores are attainable, each printed one is exactly one of
them.

`published_evaluation` has the same form as the evaluation of any other judge.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import Any

from mechassay.claims.rubric import Rubric, cvs, load_rubric, tier_of
from mechassay.errors import BadUsage
from mechassay.judges.evaluation import (
    JudgedPaper,
    JudgeEvaluation,
    Proportion,
    PublishedCheck,
    boundary_distance,
    boundary_shifts,
    errors,
    exact_score,
)
from mechassay.judges.reference_labels import published_data
from mechassay.utils.arguments import checked

Plain = Mapping[str, Any]
NOT_PRINTED = "not printed"


@dataclass(frozen=True)
class PrintedScores:
    """The numbers of the paper, with the rubric that they are of."""

    rubric: Rubric
    plain: Plain

    @property
    def tiers(self) -> list[str]:
        return [tier.name for tier in self.rubric.tiers]

    @property
    def text(self) -> Plain:
        return self.plain["text"]

    def score(self, printed: float) -> float:
        """The score that is printed so."""
        return exact_score(self.rubric, printed)

    def tier(self, printed: float) -> str:
        return tier_of(self.rubric, self.score(printed))

    def voted(self) -> list[JudgedPaper]:
        """Table 3: the vote, with the labels of table 2."""
        labels = self.plain["labels"]
        return [
            JudgedPaper(
                name, self.score(row["cvs"]), row["tier"], labels[name]["tier"], row["source"]
            )
            for name, row in self.plain["voted"].items()
        ]

    def single(self, end: int) -> list[JudgedPaper]:
        """Table 4: the lowest (0) or the highest (1) of the single runs."""
        return [
            JudgedPaper(
                name, self.score(row["cvs"][end]), row["tiers"][end], row["expected"], "single run"
            )
            for name, row in self.plain["single"].items()
        ]

    def others(self, paper: str) -> list[float]:
        """Appendix B: the scores of claims other than the main one."""
        return [self.score(run) for run in [*self.plain["claims"][paper].values()][1:]]


def printed_scores() -> PrintedScores:
    """The packaged numbers."""
    plain = published_data()
    return PrintedScores(load_rubric(plain["rubric"]), plain)


def published_checks() -> tuple[PublishedCheck, ...]:
    """Every statement that can be checked, in the order of the paper's tables, then its text."""
    printed = printed_scores()
    return tuple(check for checks in CHECKS for check in checks(printed))


# Tables


def _tables(of: PrintedScores) -> Iterator[PublishedCheck]:
    plain, tiers = of.plain, of.tiers
    voted, single, summary = plain["voted"], plain["single"], plain["summary"]
    scores = [
        *(row["cvs"] for row in voted.values()),
        *(score for row in single.values() for score in row["cvs"]),
        *(score for row in summary.values() for score in (row["main"], *row["others"])),
        *(row["cvs"] for row in plain["models"] if row["cvs"] is not None),
        *(score for row in plain["claims"].values() for score in row.values()),
    ]
    yield _all("Tables 3 to 6, B", "scores are attainable", map(of.score, scores), scores)
    named = [(of.tier(row["cvs"]), row["tier"]) for row in voted.values()]
    named += [
        (of.tier(score), tier)
        for row in single.values()
        for score, tier in zip(row["cvs"], row["tiers"], strict=True)
    ]
    named += [(of.tier(row["main"]), row["tier"]) for row in summary.values()]
    named += [
        (of.tier(score), tier)
        for row in summary.values()
        for score, tier in zip(row["others"], row["tiers"], strict=True)
    ]
    named += [(of.tier(row["cvs"]), row["tier"]) for row in plain["models"] if row["tier"]]
    yield _same("Tables 3 to 6", "tiers are those of the scores", named)
    labels = plain["labels"]
    expected = [(labels[name]["tier"], row["expected"]) for name, row in voted.items()]
    expected += [(labels[name]["tier"], row["expected"]) for name, row in single.items()]
    yield _same("Tables 2 to 4", "labels are the same", expected)
    off = [
        (int(error), row["off_by"])
        for error, row in zip(errors(tiers, of.voted()), voted.values(), strict=True)
    ]
    for end in (0, 1):
        misses = errors(tiers, of.single(end))
        off += [
            (int(error), row["off_by"][end])
            for error, row in zip(misses, single.values(), strict=True)
        ]
    yield _same("Tables 3, 4", "errors are those of tiers and labels", off)
    same = sum(row["cvs"] == single[name]["cvs"][0] for name, row in voted.items())
    about = "papers whose vote has the score of their lowest single run"
    yield PublishedCheck("Tables 3, 4", about, NOT_PRINTED, _of(same, len(voted)), None)
    yield from _appendix(of)


def _appendix(of: PrintedScores) -> Iterator[PublishedCheck]:
    summary, claims = of.plain["summary"], of.plain["claims"]
    whole = [name for name, row in summary.items() if len(claims[name]) == row["n"]]
    pairs: list[tuple[Any, Any]] = []
    for name in whole:
        main, *others = claims[name].values()
        pairs.append(
            ((main, [min(others), max(others)]), (summary[name]["main"], summary[name]["others"]))
        )
    yield _same("Table 5, B", "main scores and ranges, where B has all claims", pairs)
    highest = [name for name in whole if max(of.others(name)) > of.score(summary[name]["main"])]
    yield _papers("Table 5", "papers whose main claim is not their highest", [], highest)
    above = [
        name
        for name in whole
        if not of.score(summary[name]["main"]) > fmean(of.others(name)) + 1e-9
    ]
    yield _papers("5.5", "papers whose main claim is not above the mean of the others", [], above)
    named = of.text["others_mean"]
    mean = fmean(of.others(named["paper"]))
    yield _check("Figure 3", "mean score of the other claims of IOI", named["mean"], round(mean, 1))


def _models(of: PrintedScores) -> Iterator[PublishedCheck]:
    rows = of.plain["models"]
    names = {row["model"] for row in rows}
    yield _check("Abstract, table 6", "models compared", of.text["models"], len(names))
    label = of.plain["labels"]["ioi"]["tier"]
    scored = [row for row in rows if row["cvs"] is not None]
    off = [(of.tiers.index(row["tier"]) - of.tiers.index(label), row["off_by"]) for row in scored]
    yield _same("Table 6", "errors are those of tiers and the label of IOI", off)
    target = of.plain["voted"]["ioi"]["cvs"]
    apart = [round(abs(row["cvs"] - target), 1) for row in scored]
    yield PublishedCheck(
        "Table 6",
        "rows are sorted by accuracy",
        "sorted",
        "distances from 5.6: " + ", ".join(f"{distance:g}" for distance in apart),
        apart == sorted(apart),
    )
    off_rows = {row["model"]: row["claims"] for row in rows if row["thinking"] == "Off"}
    on_rows = [
        row for row in rows if row["thinking"] not in ("Off", "") and row["model"] in off_rows
    ]
    fewer = sum(off_rows[row["model"]] < row["claims"] for row in on_rows)
    yield PublishedCheck(
        "4.1",
        "models find fewer claims without thinking",
        "tend to",
        f"{fewer} of {len(on_rows)} models run both ways",
        2 * fewer > len(on_rows),
    )


# Text


def _agreement(of: PrintedScores) -> Iterator[PublishedCheck]:
    text, tiers, papers = of.text, of.tiers, of.voted()
    misses = errors(tiers, papers)
    for name, k in (("exact", 0), ("within_one", 1)):
        hits, printed = int((abs(misses) <= k).sum()), text[name]
        about = "papers with their label's tier" if k == 0 else "papers within one tier"
        yield _check("5.1", about, _of(printed["hits"], printed["n"]), _of(hits, len(papers)))
        low, high, _ = Proportion(hits, len(papers)).interval
        interval_text = _interval(printed["low"], printed["high"])
        yield _check("5.1", f"interval of {about}", interval_text, _interval(low, high))
    for source, (hits, n) in text["exact_by_source"].items():
        own = [e for e, paper in zip(misses, papers, strict=True) if paper.source == source]
        exact = _of(sum(float(e) == 0 for e in own), len(own))
        yield _check("5.1", f"exact, labels by {source}", _of(hits, n), exact)
    ways = f"{int((misses > 0).sum())} above, {int((misses < 0).sum())} below"
    yield _check("5.1", "errors", f"{text['over']} above, {text['under']} below", ways)
    spanned = {row["tier"] for row in of.plain["labels"].values()}
    yield _check("4.2", "tiers among the labels", text["tiers_spanned"], len(spanned))
    used = text["papers"]
    yield _check("4.2", "papers used", used["used"], used["tried"] - used["excluded"])
    wrong = text["wrong_ids"]
    share = round(wrong["hits"] / wrong["n"], 2)
    yield _check("6.2", "share of wrong identifiers", wrong["share"], share)


def _single_runs(of: PrintedScores) -> Iterator[PublishedCheck]:
    text, single = of.text, of.plain["single"]
    low, high = (errors(of.tiers, of.single(end)) for end in (0, 1))
    every = int(((low == 0) & (high == 0)).sum())
    yield _check("5.2", "papers whose single runs are all exact", text["exact_single"], every)
    some = int(((low == 0) | (high == 0)).sum())
    about = "papers with a single run that is exact"
    yield PublishedCheck("5.2", about, NOT_PRINTED, f"{some}", None)
    yield _check("5.1", "papers off by two", text["off_by_two_single"], int((high >= 2).sum()))
    widest = max(round(row["cvs"][1] - row["cvs"][0], 1) for row in single.values())
    yield _check("5.2", "largest range of single runs", text["largest_range"], widest)


def _errors(of: PrintedScores) -> Iterator[PublishedCheck]:
    text, papers = of.text, of.voted()
    by_paper = dict(zip([p.paper for p in papers], errors(of.tiers, papers), strict=True))
    named = text["over_at_suggestive"]
    over = [name for name in named if by_paper[name] > 0]
    yield _papers("5.2", "over-scored papers expected Causally Suggestive", named, over)
    ends = [p.paper for p in papers if p.expected in text["extremes"] and by_paper[p.paper] != 0]
    yield _papers("Figure 2", "papers at the extremes that do not match", [], ends)


def _audit(of: PrintedScores) -> Iterator[PublishedCheck]:
    text = of.text
    main = text["audit_main"]
    yield _check(
        "5.3",
        "score of IOI's main claim after the audit, which may not change it",
        main["after"],
        main["before"],
    )
    n, exact, mae = len(of.rubric.codes), text["audit_exact"], text["audit_mae"]
    fits = [
        claims
        for claims in range(1, text["audit_claims"] + 1)
        if all(_fits(value, claims * n, 1) for value in exact.values())
        and all(_fits(value, claims * n, 2) for value in mae.values())
    ]
    yield PublishedCheck(
        "5.3",
        "claims behind the agreement by criterion",
        f"{text['audit_claims']}",
        f"only {' or '.join(map(str, fits)) or 'no number'} fits all four shares",
        text["audit_claims"] in fits,
    )
    for claims in fits:
        gained = round((exact["after"] - exact["before"]) * claims * n)
        least, most = text["audit_downgrades"]
        yield PublishedCheck(
            "5.3",
            f"statuses that the audit put right, less those it put wrong, of {claims} claims",
            f"{least} to {most} downgrades",
            f"{gained}",
            least <= gained <= most,
        )
    worked = text["worked"]
    levels: dict[str, int] = worked["levels"]
    score = cvs(of.rubric, levels)
    yield _check("3.9", "score of the worked example", worked["cvs"], round(score, 1))
    lower = {
        round(cvs(of.rubric, dict(zip(levels, counts, strict=True))), 1)
        for counts in product(*(range(level + 1) for level in levels.values()))
    }
    near = max(
        (lower_score for lower_score in lower if lower_score < worked["cvs"]), default=math.nan
    )
    yield PublishedCheck(
        "3.9",
        "score of the worked example after further downgrades",
        f"{worked['after']}",
        f"not attainable by lowering its levels; the nearest is {near:g}",
        worked["after"] in lower,
    )
    theory = text["superposition"]
    below = of.tiers.index(theory["expected"]) - of.tiers.index(of.tier(theory["before"]))
    yield _check("5.4", "tiers of superposition below its label", theory["tiers_below"], below)
    after = of.tier(theory["after"])
    yield _check("5.4", "tier of superposition with guidance", theory["after_tier"], after)


def _fits(share: float, n: int, parts: int) -> bool:
    """Whether a share of n criteria, in whole or half points, is printed so."""
    near = round(share * n * parts)
    return any(round(count / (n * parts), 3) == share for count in (near - 1, near, near + 1))


def _boundaries(of: PrintedScores) -> Iterator[PublishedCheck]:
    papers, text = of.voted(), of.text
    shifts = boundary_shifts(of.rubric, papers)
    for boundary in text["boundaries"]:
        own = next(
            shift
            for shift in shifts
            if shift.tier == boundary["tier"]
            and math.isclose(shift.moved - shift.least, boundary["shift"])
        )
        about = f"changes if the boundary at {own.least:g} is at {own.moved:g}"
        yield _papers("6.3", about, boundary["changes"], own.changed)
    near = [p.paper for p in papers if boundary_distance(of.rubric, p.cvs) <= 0.5]
    about = "papers within 0.5 of a boundary"
    yield _papers("6.3", about, text["near_boundary"], near)
    changed = {tier: 0 for tier in of.tiers[1:]}
    for shift in shifts:
        changed[shift.tier] += len(shift.changed)
    least = {tier.name: tier.least for tier in of.rubric.tiers}
    most = max(changed, key=lambda tier: changed[tier])
    boundary = text["most_sensitive"]
    yield PublishedCheck(
        "6.3",
        "the boundary whose shifts change most papers",
        f"{least[boundary]:g} (changes {changed[boundary]})",
        f"{least[most]:g} (changes {changed[most]})",
        boundary == most,
    )


CHECKS: Sequence[Callable[[PrintedScores], Iterator[PublishedCheck]]] = (
    _tables,
    _models,
    _agreement,
    _single_runs,
    _errors,
    _audit,
    _boundaries,
)


# Comparing


def _check(where: str, about: str, printed: Any, recomputed: Any) -> PublishedCheck:
    return PublishedCheck(where, about, f"{printed}", f"{recomputed}", printed == recomputed)


def _same(where: str, about: str, pairs: Sequence[tuple[Any, Any]]) -> PublishedCheck:
    same = sum(one == other for one, other in pairs)
    return PublishedCheck(
        where, about, _of(len(pairs), len(pairs)), _of(same, len(pairs)), same == len(pairs)
    )


def _all(
    where: str, about: str, computed: Iterable[float], printed: Sequence[float]
) -> PublishedCheck:
    try:
        n = sum(1 for _ in computed)
    except BadUsage as error:
        return PublishedCheck(where, about, f"{len(printed)}", str(error), False)
    return PublishedCheck(where, about, f"{len(printed)}", f"{n}", n == len(printed))


def _papers(
    where: str, about: str, printed: Iterable[str], recomputed: Iterable[str]
) -> PublishedCheck:
    sorted_printed, sorted_values = sorted(printed), sorted(recomputed)
    return PublishedCheck(
        where,
        about,
        ", ".join(sorted_printed) or "none",
        ", ".join(sorted_values) or "none",
        sorted_printed == sorted_values,
    )


def _of(hits: int, n: int) -> str:
    return f"{hits} of {n} ({100 * hits / n:.0f} %)"


def _interval(low: float, high: float) -> str:
    return f"[{100 * low:.0f} %, {100 * high:.0f} %]"


@checked
def published_evaluation(single: str = "") -> JudgeEvaluation:
    """The evaluation that Tower (2026) prints: the vote of table 3, or single runs of table 4.

    Args:
        single: "lowest" or "highest" for single runs.

    Raises:
        BadUsage: it is neither, nor empty.
    """
    printed = printed_scores()
    ends = {"lowest": 0, "highest": 1}
    if single and single not in ends:
        raise BadUsage(f"Single runs are the lowest or the highest; got {single!r}.")
    name = "DeepSeek V4 Pro"
    judge = f"{name}, {single} single run" if single else f"{name}, minimum of 3 runs"
    return JudgeEvaluation(
        rubric=printed.rubric,
        judge=judge,
        labels="Tower (2026), table 2",
        papers=tuple(printed.single(ends[single]) if single else printed.voted()),
        runs={
            paper: tuple(printed.score(status) for status in dict.fromkeys(row["cvs"]))
            for paper, row in printed.plain["single"].items()
        },
        checks=() if single else published_checks(),
    )
