"""An experiment whose cells sleep, hold memory, die, or are done: for tests of limits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import ClassVar

from mechassay.errors import DiskFull
from mechassay.models.computing import chosen
from mechassay.results.records import Record, Spec, provenance
from mechassay.runs.cells import Cell
from mechassay.runs.experiment import Experiment
from mechassay.runs.worker import Worker

HOLD = "held = bytearray(700_000_000); import time; time.sleep(600)"


@dataclass(frozen=True)
class MisbehavingExperiment(Experiment):
    """Each cell does what its name says; its process id is in a file beside the records."""

    does: tuple[str, ...]

    kind: ClassVar[str] = "misbehaving"
    grows: ClassVar[tuple[str, ...]] = ("does",)

    def cells(self) -> list[Cell]:
        return [Cell(name, {"model": name}) for name in self.does]

    def run(self, cell: Cell, worker: Worker) -> Record:
        begun = worker.folder.path / f"{cell.name}.pid"
        begun.write_text(f"{os.getpid()}")
        if cell.name == "sleeps":
            time.sleep(600)
        elif cell.name == "holds":
            held = bytearray(700_000_000)
            time.sleep(600 * bool(held))
        elif cell.name == "starts one that holds":
            subprocess.run([sys.executable, "-c", HOLD], check=True)
        elif cell.name == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        elif cell.name == "is full":
            raise DiskFull("no room")
        elif cell.name == "raises":
            raise ValueError("a mistake of its own")
        names = {"model": Spec(name=cell.name)}
        tf32 = chosen().tf32
        about = provenance(device=worker.device, dtype="float32", seed=0, tf32=tf32)
        return Record(kind=self.kind, specs=names, measures=[], provenance=about)
