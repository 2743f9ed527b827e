"""The linear logit difference of IOI, fitted to a model (MIB, figure 19).

The signals are those of `causal_models.ioi_model`: of a flip of the first, the second or both
subjects, whether position and token are those of the base. All rows given are fitted.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Float

from mechassay.causal_models.causal_model import CausalModel, Undecided
from mechassay.causal_models.ioi_model import ioi_model, names_of, people_of, position_of, token_of
from mechassay.causal_models.labels import (
    BaseAndSource,
    alignable,
    bases_and_sources,
    interchange_pair,
)
from mechassay.errors import BadFile, BadPairs, NonFinite, first_line
from mechassay.prompts.interchange_batch import InterchangeBatch
from mechassay.prompts.interchanges import InterchangePair
from mechassay.prompts.pairs import Example, Prompt
from mechassay.stats.intervals import resolved_difference
from mechassay.utils.arguments import checked
from mechassay.utils.display import OneLine, html_facts, line
from mechassay.utils.files import FORMAT, write_text

FLIPS = (
    "s1_io_flip_counterfactual",
    "s2_io_flip_counterfactual",
    "s1_ioi_flip_s2_ioi_flip_counterfactual",
)
SAME = "no interchange"
KIND = "logit difference"


class SignalRows(tuple[InterchangePair, ...]):
    """Interchanges of both variables at once, with the signals that the base then gets.

    Base label and label are the base's indirect object and subject.

    Attributes:
        position, token: 1 where the source has that of the base, else -1.
        dropped: pairs that were left out, by reason.
    """

    position: Float[np.ndarray, "n"]
    token: Float[np.ndarray, "n"]
    dropped: Mapping[str, int]

    def __new__(
        cls,
        pairs: Iterable[InterchangePair],
        position: Sequence[float],
        token: Sequence[float],
        dropped: Mapping[str, int],
    ) -> SignalRows:
        made = super().__new__(cls, pairs)
        made.position, made.token = np.asarray(position, float), np.asarray(token, float)
        made.dropped = MappingProxyType(dict(dropped))
        return made

    def only(self, kind: str) -> SignalRows:
        """The pairs of one kind of counterfactual."""
        rows = [number for number, pair in enumerate(self) if pair.kind == kind]
        return self._take(rows, self.dropped)

    def _take(self, rows: Sequence[int], dropped: Mapping[str, int]) -> SignalRows:
        index = np.asarray(rows, dtype=np.int64)
        signals = self.position[index].tolist(), self.token[index].tolist()
        return SignalRows([self[row] for row in rows], *signals, dropped)

    def tokenized(self, model: Any) -> tuple[SignalRows, InterchangeBatch]:
        """The pairs whose prompts have equally many tokens, and their batch; others are counted.

        Args:
            model: a model, or a tokenizer.

        Raises:
            BadUsage: neither a tokenizer nor a model that has one.
            BadPairs: no pair is left; the message has the counts.
        """
        rows, lost = alignable(self, model, equal_lengths=True)
        dropped = Counter(self.dropped) + lost
        if not rows:
            reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(dropped.items()))
            raise BadPairs(f"No signals of {len(self)} pairs are left; dropped: {reasons}.")
        kept = self._take(rows, dropped)
        return kept, InterchangeBatch.from_pairs(list(kept), model)

    def __repr__(self) -> str:
        return line("SignalRows", {"n": len(self), "dropped": sum(self.dropped.values())})


@checked
def ioi_signals(examples: Sequence[Example], kinds: Sequence[str] = FLIPS) -> SignalRows:
    """What the linear model is fitted on: each base with itself as source, and with each kind.

    The measured values are the logits of the base labels minus those of the labels after an
    interchange of whole heads, which changes both variables.

    Args:
        examples: of `ioi`.
        kinds: of counterfactuals.

    Raises:
        UnknownName: a kind that no example has.
        BadPairs: no row is left; the message has the counts.
    """
    dropped = Counter[str](getattr(examples, "dropped", {}))
    same = [BaseAndSource(example, SAME, example.prompt) for example in examples]
    pairs: list[InterchangePair] = []
    signals: list[tuple[float, float]] = []
    for row in (*same, *bases_and_sources(examples, kinds, dropped)):
        try:
            signals.append(_signals(row.example.prompt, row.source))
        except Undecided as error:
            dropped[error.reason] += 1
            continue
        first, second = people_of(row.example.prompt)
        pairs.append(interchange_pair(row, second, first))
    if not pairs:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(dropped.items()))
        raise BadPairs(f"No signals of {len(examples)} examples; dropped: {reasons or 'none'}.")
    return SignalRows(pairs, [p for p, _ in signals], [t for _, t in signals], dropped)


@dataclass(frozen=True, repr=False)
class LogitDifference(OneLine):
    """A fit of the linear logit difference.

    Attributes:
        bias, position, token: the coefficients.
        r2: the share of the variance of the values that they explain; NaN where all are equal.
        n: how many rows were fitted.
        conditions: for each pair of signals "position token" its number of rows, the mean of its
            values, and what is predicted.
        source: what the values were measured with.
    """

    bias: float
    position: float
    token: float
    r2: float
    n: int
    conditions: Mapping[str, Mapping[str, float]]
    source: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def model(self) -> CausalModel:
        """The causal model with these coefficients."""
        return ioi_model(self.bias, self.position, self.token)

    @checked
    def predicted(
        self, position: Float[np.ndarray, "n"], token: Float[np.ndarray, "n"]
    ) -> Float[np.ndarray, "n"]:
        """The logit differences of signals."""
        return self.bias + self.position * position + self.token * token

    def repr_fields(self) -> dict[str, Any]:
        names = ("bias", "position", "token", "r2", "n")
        return {name: getattr(self, name) for name in names}

    def _repr_html_(self) -> str:
        facts = {name: f"{value:.4g}" for name, value in self.repr_fields().items()}
        means = {
            f"signals {name}": (
                f"{condition['mean']:.3g} measured, {condition['predicted']:.3g} predicted"
            )
            for name, condition in self.conditions.items()
        }
        return html_facts("linear logit difference", facts | means)

    @checked
    def save(self, path: str | Path) -> Path:
        """Write the fit as JSON."""
        stored = {"kind": KIND, "format": FORMAT, **asdict(self)}
        stored["r2"] = None if np.isnan(self.r2) else self.r2
        return write_text(Path(path), json.dumps(stored, indent=1, sort_keys=True) + "\n")

    @staticmethod
    @checked
    def load(path: str | Path) -> LogitDifference:
        """A fit written by `save`.

        Raises:
            BadFile: missing, truncated or foreign.
        """
        try:
            stored = json.loads(Path(path).read_text("utf-8"))
            if stored.pop("kind") != KIND or stored.pop("format") != FORMAT:
                raise BadFile(f"{path}: holds no logit difference of this version.")
            stored["r2"] = float("nan") if stored["r2"] is None else stored["r2"]
            return LogitDifference(**stored)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadFile(f"{path}: no fit of a logit difference ({first_line(error)}).") from None


@checked
def fit_logit_difference(
    position: Float[np.ndarray, "n"],
    token: Float[np.ndarray, "n"],
    values: Float[np.ndarray, "values"],
    *,
    source: Mapping[str, Any] | None = None,
) -> LogitDifference:
    """The least-squares fit of values by two signals and a bias, over all rows.

    Args:
        position, token: the signals, 1 or -1.
        values: the measured logit differences, IO - S, one a row.
        source: what they were measured with: plain JSON values.

    Raises:
        NonFinite: NaN or infinite values.
        BadPairs: not as many values as signals, or signals that do not tell bias, position and
            token apart.
    """
    if len(values) != len(position):
        raise BadPairs(f"{len(position)} rows of signals need as many values; got {len(values)}.")
    if not np.isfinite(values).all():
        raise NonFinite(
            f"{int((~np.isfinite(values)).sum())} of {len(values)} logit differences are not"
            " finite."
        )
    x = np.stack((np.ones_like(position), position, token), axis=1)
    rank = int(np.linalg.matrix_rank(x)) if len(x) else 0
    if rank < 3:
        corners = sorted({f"({p:+.0f}, {t:+.0f})" for p, t in zip(position, token, strict=True)})
        raise BadPairs(
            "Bias, position and token need signals (position, token) of three combinations or"
            f" more; got {', '.join(corners) or 'none'}."
        )
    y = values.astype(np.float64)
    coefficients, *_ = np.linalg.lstsq(x, y, rcond=None)
    fitted = x @ coefficients
    total = float(((y - y.mean()) ** 2).sum())
    varies = float(resolved_difference(y.std(), 0.0, y)) > 0
    r2 = 1 - float(((y - fitted) ** 2).sum()) / total if varies else float("nan")
    conditions: dict[str, dict[str, float]] = {}
    for p, t in sorted(set(zip(position.tolist(), token.tolist(), strict=True)), reverse=True):
        rows = (position == p) & (token == t)
        conditions[f"{p:+.0f} {t:+.0f}"] = {
            "n": float(rows.sum()),
            "mean": float(y[rows].mean()),
            "predicted": float(fitted[rows][0]),
        }
    bias, of_position, of_token = map(float, coefficients)
    return LogitDifference(bias, of_position, of_token, r2, len(y), conditions, dict(source or {}))


def _signals(base: Prompt, source: Prompt) -> tuple[float, float]:
    ours, theirs = names_of(base)["names"], names_of(source)["names"]
    if token_of(theirs) not in ours[:2]:
        raise Undecided("a subject who is not in the base")
    position, token = position_of(ours) == position_of(theirs), token_of(ours) == token_of(theirs)
    return (1.0 if position else -1.0), (1.0 if token else -1.0)
