"""Training of SAEs as a run: a cell is a site of a model; its record is the quality of its SAEs.

A cell takes activations (`activations/`), trains one SAE a seed (`saes/<cell>/seed-0`, in SAELens's
layout) and measures the first, with the others as other seeds of it. Activations are written shard
by shard, and a training keeps what it has done in `training/`, so that a killed run goes on in the
middle of either. With the control `untrained`, the model with random weights gets a store and an
SAE of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from mechassay.errors import BadUsage
from mechassay.features.sae import SAE
from mechassay.interventions.site import load_site
from mechassay.models.model import Model, untrained
from mechassay.results.records import Record
from mechassay.runs.cells import Cell, cell_name
from mechassay.runs.experiment import Experiment
from mechassay.runs.worker import Worker, made_by
from mechassay.saes.activations import (
    ActivationStore,
    StoreSettings,
    load_corpus,
    store_activations,
)
from mechassay.saes.architectures import SAESettings
from mechassay.saes.options import SAEOptions
from mechassay.saes.quality import CONTROLS, sae_quality
from mechassay.saes.training import initial_rows, train_once


@dataclass(frozen=True)
class SAEExperiment(SAEOptions, Experiment):
    """A cell is a site of a model; see `SAEOptions` for the fields."""

    command: ClassVar[tuple[str, ...]] = ("saes", "train")
    grows: ClassVar[tuple[str, ...]] = ("models", "sites")

    def check(self, worker: Worker) -> None:
        super().check(worker)
        for site in self.sites:
            load_site(site)
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise BadUsage(f"Draws are seeds, one or more, each once; got {self.seeds}.")
        self.store_settings()
        self.settings(self.seeds[0])
        load_corpus(self.corpus)

    def store_settings(self) -> StoreSettings:
        """What is taken of the corpus."""
        # What a model computes in bfloat16 loses nothing there, and late layers exceed float16.
        stored = "bfloat16" if self.dtype == "bfloat16" else "float16"
        return StoreSettings(window=self.window, tokens=self.tokens, seed=self.seed, dtype=stored)

    def settings(self, seed: int) -> SAESettings:
        """How an SAE is trained."""
        return SAESettings(
            architecture=self.architecture,
            n_features=self.n_features,
            k=self.k,
            l0=self.l0,
            lr=self.lr,
            steps=self.steps,
            batch_size=self.batch_size,
            seed=seed,
        )

    def cells(self) -> list[Cell]:
        labels = self.labels()
        return [
            Cell(
                cell_name(model, site),
                {"model": labels["model", model], "site": site},
                model,
                {"model": model},
            )
            for model in self.models
            for site in self.sites
        ]

    def run(self, cell: Cell, worker: Worker) -> Record:
        model = worker.model(cell["model"], dtype=self.dtype, prepend_bos=self.prepend_bos)
        site = cell.labels["site"]
        store = self._store(model, site, worker)
        saes = [self._trained(store, seed, cell.name, worker) for seed in self.seeds]
        beside = None
        if "untrained" in self.controls:
            bare = untrained(model, self.seed)
            other = self._store(bare, site, worker)
            name = f"{cell.name}/untrained"
            beside = bare, self._trained(other, self.seeds[0], name, worker), other
        quality = sae_quality(
            model,
            saes[0],
            store,
            initial=initial_rows(saes[0].d_in, self.settings(self.seeds[0])),
            seeds=saes[1:],
            untrained=beside,
            controls=[control for control in CONTROLS if control in self.controls],
            windows=self.windows,
            seed=self.seed,
            progress=worker.progress,
        )
        return quality.record(
            made=made_by(model, self.seed, store.key),
        )

    def _store(self, model: Model, site: str, worker: Worker) -> ActivationStore:
        return store_activations(
            model,
            site,
            worker.shared("corpus", lambda: load_corpus(self.corpus)),
            worker.folder.path / "activations",
            self.store_settings(),
            progress=worker.progress,
        )

    def _trained(self, store: ActivationStore, seed: int, name: str, worker: Worker) -> SAE:
        """The SAE of a seed: read where it was trained before, on this store."""
        root = worker.folder.path
        return train_once(
            store,
            self.settings(seed),
            sae_folder(root, name, seed),
            checkpoint=root / "training" / name / f"seed-{seed}.safetensors",
            device=worker.device,
            progress=worker.progress,
        ).sae


def sae_folder(root: Path, cell: str, seed: int) -> Path:
    """Where the SAE of a cell and a seed stands in the folder of its run."""
    return root / "saes" / cell / f"seed-{seed}"
