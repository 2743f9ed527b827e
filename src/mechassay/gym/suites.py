"""What a model makes of a SyntaxGym suite: surprisals of regions, accuracy, and a gym task of it.

    surprisal[item, condition, region] = sum over tokens of the region of -log2 p(token | before)

A token belongs to the region of its last character, so that the space between two regions is of
the second. The first token has nothing before it unless the model begins with a special token
(`--bos`); without one it has no surprisal, in any condition, and is left out. Accuracy is the
share of items in which a prediction holds, and in which all of them do (Gauthier et al. 2020; Hu
et al. 2020). Beside it stands the same model with random weights: of one comparison it gets half,
of several that must hold together far less.

`template_of` makes a gym task of two grammatical conditions (Arora et al. 2024, section 3.2 and
figure 2): what stands before a region, with the first word of that region as the label. Regions
whose texts differ between the conditions within items are listed by type, all others are shared.
A sentence then takes each region from any item, so that few items make many sentences; regions
that only make sense together are named (`together`) and are drawn from one item.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from jaxtyping import Bool, Float

from mechassay.errors import BadUsage, one_of
from mechassay.gym.gym_task import TAKEN, GymTask
from mechassay.gym.syntaxgym import Suite
from mechassay.gym.task_files import gym_tasks
from mechassay.models.forward import trace
from mechassay.models.model import Model, untrained
from mechassay.prompts.tokenization import encode_with_offsets
from mechassay.stats.intervals import Interval, proportion_interval
from mechassay.utils.display import SILENT, OneLine, Progress, Tabular
from mechassay.utils.files import write_text

ALL_HOLD = "all of them"
BATCH = 32


@torch.no_grad()
def region_surprisals(
    model: Model, suite: Suite, *, batch: int = BATCH, progress: Progress = SILENT
) -> Float[np.ndarray, "items conditions regions"]:
    """The surprisal of every region of every sentence, in bits; 0 where a region is empty.

    Raises:
        BadUsage: a model without a tokenizer that knows where its tokens are in a text.
    """
    tokenizer = model.tokenizer
    if tokenizer is None or not tokenizer.is_fast:
        raise BadUsage(f"{model.name} has no tokenizer with character offsets.")
    prompts = suite.prompts()
    encoded = encode_with_offsets(tokenizer, [prompt.text for prompt in prompts])
    values = np.zeros((len(prompts), len(suite.regions)))
    names = {name: place for place, name in enumerate(suite.names)}
    with progress.track(f"{suite.name}", len(prompts)) as advance:
        for first in range(0, len(prompts), batch):
            rows = range(first, min(first + batch, len(prompts)))
            ids = [[*model.prepend, *encoded[0][row]] for row in rows]
            bits = _bits(model, ids)
            for row, own in zip(rows, bits, strict=True):
                offsets = encoded[1][row]
                ends = [
                    (end, names[name])
                    for name, (_, end) in sorted(
                        prompts[row].spans.items(), key=lambda span: span[1]
                    )
                ]
                # The first token of all is predicted by nothing.
                for (begin, end), surprisal in zip(
                    offsets[max(0, 1 - len(model.prepend)) :],
                    own[max(0, len(model.prepend) - 1) :],
                    strict=True,
                ):
                    if end > begin:
                        place = next(place for stop, place in ends if end <= stop)
                        values[row, place] += surprisal
            advance(len(rows))
    return values.reshape(len(suite.items), len(suite.conditions), len(suite.regions))


def _bits(model: Model, ids: Sequence[Sequence[int]]) -> list[list[float]]:
    """-log2 p of every token but the first, by row."""
    model.check_unchanged()
    longest = max(map(len, ids))
    model.check_length("A sentence", longest)
    tokens = torch.zeros((len(ids), longest), dtype=torch.long)
    mask = torch.zeros((len(ids), longest), dtype=torch.bool)
    for row, own in enumerate(ids):
        tokens[row, longest - len(own) :] = torch.tensor(own)
        mask[row, longest - len(own) :] = True
    tokens, mask = tokens.to(model.device), mask.to(model.device)
    decoder = model.decoder
    final = trace(decoder, decoder.embed(tokens), decoder.context(mask)).final
    bits: list[list[float]] = []
    for row, own in enumerate(ids):
        begin = longest - len(own)
        logits = decoder.readout(final[row, begin:-1]).all()
        logp = logits.log_softmax(dim=-1).gather(1, tokens[row, begin + 1 :, None])[:, 0]
        bits.append((-logp.double() / np.log(2.0)).tolist())
    return bits


@dataclass(frozen=True, eq=False, repr=False)
class SuiteResult(OneLine, Tabular):
    """In which items the predictions of a suite hold, in a model and with random weights.

    Attributes:
        suite, model: their names.
        predictions: as written; the last row of the table is of all of them together.
        holds, control: by item and prediction, of the model and of random weights.
        surprisals: in bits, of the model.
    """

    suite: str
    model: str
    predictions: tuple[str, ...]
    holds: Bool[np.ndarray, "items predictions"]
    control: Bool[np.ndarray, "items predictions"]
    surprisals: Float[np.ndarray, "items conditions regions"]

    def columns(self) -> dict[str, list[Any]]:
        """A row for each prediction, and one for all of them."""
        names = [*self.predictions, *([ALL_HOLD] if len(self.predictions) > 1 else [])]
        own, control = (
            np.column_stack((holds, holds.all(axis=1)))[:, : len(names)].astype(float)
            for holds in (self.holds, self.control)
        )
        items = [str(number) for number in range(len(own))]
        ends: list[Interval] = [proportion_interval(column, items) for column in own.T]
        return {
            "prediction": names,
            "accuracy": own.mean(axis=0).tolist(),
            "low": [end.low for end in ends],
            "high": [end.high for end in ends],
            "untrained": control.mean(axis=0).tolist(),
            "items": [len(own)] * len(names),
        }

    def repr_fields(self) -> dict[str, Any]:
        """What a line says of it."""
        accuracy = tuple(self.columns()["accuracy"])
        return {"suite": self.suite, "model": self.model, "accuracy": accuracy}


def measure_suite(model: Model, suite: Suite, *, seed: int = 0, **how: Any) -> SuiteResult:
    """Surprisals of a suite in a model, and in which items its predictions hold.

    Args:
        seed: of the random weights of the control.
        how: see `region_surprisals`.

    Raises:
        BadUsage: a suite without predictions; see `region_surprisals`.
    """
    surprisals = region_surprisals(model, suite, **how)
    own = suite.accuracy(surprisals)
    control = suite.accuracy(region_surprisals(untrained(model, seed), suite, **how))
    return SuiteResult(
        suite.name, model.name, own.predictions, own.holds, control.holds, surprisals
    )


# A gym task


_SIMPLE = re.compile(r"\W*(\d+)\s*;\s*%([^%]+)%\s*\)\s*<\s*\(\s*(\d+)\s*;\s*%[^%]+%\W*")


def grammatical(suite: Suite) -> tuple[str, str, int]:
    """Two grammatical conditions and the region that tells: those that predictions of the form
    (n;%A%) < (n;%B%) have on their left.

    Raises:
        BadUsage: predictions do not say which two they are.
    """
    sides = [match.groups() for p in suite.predictions if (match := _SIMPLE.fullmatch(p.text))]
    left = dict.fromkeys((name, int(n)) for n, name, other in sides if n == other)
    regions = {n for _, n in left}
    if len(left) != 2 or len(regions) != 1:
        raise BadUsage(
            f"The predictions of {suite.name} do not say which two conditions are grammatical: name"
            f" two of {', '.join(suite.conditions)} and a region."
        )
    (first, region), (second, _) = left
    return first, second, region


def template_of(
    suite: Suite, first: str, second: str, region: int, together: Sequence[Sequence[str]] = ()
) -> dict[str, Any]:
    """A file of one gym task, as plain values (`gym.task_files`); see the module.

    Args:
        first, second: conditions that are both grammatical; they become the types.
        region: the number of the region that is predicted.
        together: names of regions that are drawn from one item.

    Raises:
        UnknownName: no such condition or region.
        BadUsage: labels that both types have, nothing that tells the types apart before the
            region, or a region in two groups.
    """
    kinds = [one_of("condition", name, suite.conditions) for name in (first, second)]
    one_of("region", str(region), [str(number) for number in suite.regions])
    at = [*suite.regions].index(region)
    texts = {
        kind: [
            tuple(text.strip() for text in by_condition[suite.conditions.index(kind)])
            for by_condition in suite.contents
        ]
        for kind in kinds
    }
    fields = _fields(suite.names[:at])
    kept = [n for n in range(at) if any(row[n] for rows in texts.values() for row in rows)]
    groups = _groups(suite, together, kept)
    labels = {
        kind: list(dict.fromkeys(row[at].split()[0] for row in rows if row[at]))
        for kind, rows in texts.items()
    }
    both = sorted(set(labels[first]) & set(labels[second]))
    if both or not all(labels.values()):
        what = f"both have {both[0]!r}" if both else "one has none"
        raise BadUsage(
            f"Region {region} of {suite.name} cannot tell {first!r} from {second!r}: {what} there."
        )
    options: dict[str, Any] = {}
    typed = False
    for group in groups:
        rows = {
            kind: list(dict.fromkeys(tuple(row[n] for n in group) for row in texts[kind]))
            for kind in kinds
        }
        # What is the same in both conditions of each item is shared, whatever else items vary.
        same = all(
            a[n] == b[n] for a, b in zip(texts[first], texts[second], strict=True) for n in group
        )
        typed = typed or not same
        made = {kind: _options(own, [fields[n] for n in group]) for kind, own in rows.items()}
        name = fields[group[0]] if len(group) == 1 else "_and_".join(fields[n] for n in group)
        options[name] = made[first] if same else made
    if not typed:
        raise BadUsage(
            f"{first!r} and {second!r} of {suite.name} say the same before region {region}."
        )
    counts = [{len(row[n].split()) for row in texts[kind]} for n in kept for kind in kinds]
    equal = all(len(own) == 1 for own in counts) and all(
        counts[place] == counts[place + 1] for place in range(0, len(counts), 2)
    )
    name = re.sub(r"\W+", "_", suite.name).strip("_") or "suite"
    task: dict[str, Any] = {
        "about": f"made of the suite {suite.name}",
        "template": " ".join(f"{{{fields[n]}}}" for n in kept),
        "labels": labels,
        "options": options,
        **({} if equal else {"lengths": "unequal"}),
    }
    return {"family": "syntaxgym", "tasks": {name: task}}


def _options(rows: Sequence[tuple[str, ...]], names: Sequence[str]) -> list[Any]:
    if len(names) == 1:
        return [text for (text,) in rows]
    return [dict(zip(names, row, strict=True)) for row in rows]


def _fields(names: Sequence[str]) -> list[str]:
    """Names that a template may have, each once."""
    fields: list[str] = []
    for name in names:
        plain = re.sub(r"\W+", "_", name).strip("_") or "region"
        plain = f"{plain}_region" if plain in TAKEN else plain
        number = 1
        while (new := plain if number == 1 else f"{plain}_{number}") in fields:
            number += 1
        fields.append(new)
    return fields


def _groups(
    suite: Suite, together: Sequence[Sequence[str]], kept: Sequence[int]
) -> list[tuple[int, ...]]:
    """Places of regions that are drawn at once, in the order of the sentence."""
    names = {suite.names[n]: n for n in kept}
    group_of: dict[int, tuple[int, ...]] = {n: (n,) for n in kept}
    for group in together:
        places = tuple(sorted(names[one_of("region before it", own, names)] for own in group))
        for place in places:
            if len(group_of[place]) > 1:
                raise BadUsage(f"The region {suite.names[place]!r} is in two groups.")
            group_of[place] = places
    return list(dict.fromkeys(group_of[n] for n in kept))


def write_template(path: Path, data: dict[str, Any]) -> GymTask:
    """Write the file of a gym task, and read it back.

    Raises:
        BadFile: it is of no task: too few options, or texts that cannot be told apart.
    """
    (task,) = gym_tasks(data, path.name).values()
    text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100)
    write_text(path, text)
    return task
