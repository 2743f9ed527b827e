"""Adversarial runs on a model in memory, for tests that look at their parts.

Small pools of random prompts, and circuits of any model to compare on them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mechassay.adversarial.experiments import AdversarialExperiment
from mechassay.adversarial.inputs import AdversarialInputs
from mechassay.adversarial.pools import Pool
from mechassay.adversarial.record import RecordMaker
from mechassay.circuits.circuit import Circuit
from mechassay.models.model import Model
from mechassay.prompts.pairs import Prompt
from mechassay.results.records import Record
from mechassay.runs.run import opened
from mechassay.testing.tiny import VOCABULARY
from mechassay.utils.display import SILENT

TRUTH = "truth-ioi"
FAST: dict[str, Any] = {"n_resamples": 50, "n_permutations": 50, "worst": 3}


def small_grid(out: Path, model: Model) -> AdversarialInputs:
    """Three circuits of the ground truth on thirty by twenty prompts."""
    circuits = ("truth", "random@0.5", "full")
    return adversarial_inputs(
        AdversarialExperiment(TRUTH, TRUTH, circuits, n_clean=30, n_corrupted=20, **FAST),
        out,
        model,
    )


def values_of(record: Record) -> dict[str, float]:
    """The measures of a record by name."""
    return {each.name: each.value for each in record.measures}


def adversarial_inputs(
    experiment: AdversarialExperiment, out: Path, model: Model | None
) -> AdversarialInputs:
    """What the cells of an experiment share; without a model, it is loaded by its name."""
    models = {} if model is None else {experiment.model: model}
    return AdversarialInputs(experiment, opened(experiment, out, models=models, progress=SILENT))


def records_of(adversarial_inputs: AdversarialInputs) -> list[Record]:
    """The record of every circuit; those in the folder are read, the others made and kept."""
    experiment, folder, maker = adversarial_inputs.run, adversarial_inputs.folder, None
    assert isinstance(experiment, AdversarialExperiment)
    records: list[Record] = []
    for number, cell in enumerate(experiment.cells()):
        record = folder.record(cell.name)
        if record is None:
            maker = maker or RecordMaker(adversarial_inputs)
            made = maker.record(number)
            about = {"cell": {**made.cell, **cell.labels}, "cell_digest": cell.digest}
            folder.save_record(cell.name, made.changed(**about))
            record = folder.record(cell.name)
        assert record is not None
        records.append(record)
    return records


LENGTH, N_CLEAN, N_CORRUPTED = 6, 5, 3


def pool(tokens: Tensor) -> Pool:
    return Pool(tuple(Prompt(" ".join(map(str, row))) for row in tokens.tolist()), tokens)


def pools(n_clean: int = N_CLEAN, n_corrupted: int = N_CORRUPTED) -> tuple[Pool, Pool]:
    """Prompts that begin alike; one is in both pools."""
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(0, VOCABULARY, (n_clean + n_corrupted, LENGTH), generator=generator)
    tokens[:, :2] = tokens[0, :2]
    tokens[n_clean:, 4] = tokens[0, 4]
    tokens[-1] = tokens[n_clean - 1]
    return pool(tokens[:n_clean]), pool(tokens[n_clean:])


def circuits(model: Model) -> list[Circuit]:
    """Few and many edges, some neurons of some writers, and nodes."""
    graph, generator = model.graph, torch.Generator().manual_seed(6)
    masks = [
        (torch.rand(graph.legal.shape, generator=generator) < share) & graph.legal
        for share in (0.15, 0.7)
    ]
    neurons = torch.rand(graph.n_writers, model.decoder.d_model, generator=generator) < 0.5
    nodes = torch.rand(graph.n_writers, generator=generator) < 0.8
    nodes[0] = True
    return [
        *(Circuit(graph, mask) for mask in masks),
        Circuit(graph, masks[1], neurons),
        Circuit.of_nodes(graph, nodes),
    ]
