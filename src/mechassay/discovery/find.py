"""Find one circuit from Python: `find_circuit` runs one method on one task in one model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from matplotlib.figure import Figure

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.methods import RECOMMENDED
from mechassay.circuits.profiles import Profile
from mechassay.circuits.scores import Scores
from mechassay.discovery.experiment import CircuitsExperiment
from mechassay.discovery.options import Construction
from mechassay.errors import BadUsage
from mechassay.models.model import Model
from mechassay.results.page import Report
from mechassay.results.records import Record, Table
from mechassay.runs.run import run
from mechassay.tasks.task import Keep, Task
from mechassay.utils.arguments import checked
from mechassay.utils.display import BAR, OneLine, Progress


@dataclass(frozen=True, repr=False)
class CircuitResult(OneLine):
    """The result of `find_circuit`. Printing the result gives the conclusion and the page's path.

    Attributes:
        report: the whole run, as `ma.run` and `ma.open_run` return it.
    """

    report: Report

    @property
    def conclusion(self) -> str:
        """The first sentence of the page; the reason if nothing was measured."""
        return self.report.conclusion

    @property
    def record(self) -> Record:
        """The numbers.

        Raises:
            BadUsage: nothing was measured; the message has the reason.
        """
        if not self.report.records:
            raise BadUsage(f"No circuit was measured: {self.conclusion}")
        return self.report.records[0]

    @property
    def scores(self) -> Scores:
        """The scores of edges, nodes or neurons that circuits are cut from.

        Raises:
            BadUsage: see `record`.
        """
        _ = self.record
        return next(iter(self.report.scores.values()))

    @property
    def circuit(self) -> Circuit:
        """The smallest circuit that keeps 90 % of what ablation changes on the validation pairs.
        `conclusion` says whether the test pairs confirm it, and whether the model does the task.

        Raises:
            BadUsage: no circuit of the measured sizes does, or see `record`.
        """
        _ = self.record
        if not self.report.circuits:
            raise BadUsage(
                "No measured circuit keeps 90 % of what ablation changes; `scores.top(0.05)` is the"
                " circuit of the best 5 % of the edges."
            )
        return next(iter(self.report.circuits.values()))

    @property
    def curve(self) -> Table:
        """Faithfulness at each size, by value and by magnitude, beside random rankings; `plot`
        draws it.

        Raises:
            BadUsage: see `record`.
        """
        return self.record.table("curve")

    def plot(self) -> Figure:
        """Return the figure of the curve."""
        return self.record.plot()

    def open(self) -> None:
        """Open the page in a browser.

        Raises:
            BadUsage: no page was written.
        """
        self.report.open()

    def repr_fields(self) -> dict[str, Any]:
        return self.report.repr_fields()

    def __str__(self) -> str:
        return str(self.report)

    def _repr_html_(self) -> str:
        return self.report.records[0].html() if self.report.records else str(self)


@checked
def find_circuit(
    model: str | Model,
    task: str | Task = "",
    method: str = RECOMMENDED,
    *,
    limit: int = 100,
    split: str = "test",
    train_limit: int = 100,
    train_split: str = "train",
    counterfactual: str | None = None,
    objective: str | None = None,
    keep: Keep = "all",
    ablation: str = "counterfactual",
    optimal: str = "",
    pairing: str = "matched",
    profile: Profile = "strict",
    construction: Construction = "own",
    random_rankings: int | None = None,
    resamples: int = 0,
    over: Literal["pairs", "templates", "seeds"] = "pairs",
    metrics: Sequence[str] = (),
    known: str | Path = "",
    dtype: str = "float32",
    prepend_bos: bool = False,
    transfer: bool = False,
    seed: int = 0,
    private_seed: int | None = None,
    max_minutes: float | None = None,
    even_at_chance: bool = True,
    output: str | Path | None = None,
    device: str = "cpu",
    progress: Progress = BAR,
) -> CircuitResult:
    """Find the circuit of a task in a model and measure it, as `mechassay circuits run` does.

        result = ma.find_circuit("smollm2-135m", "ioi", limit=40)
        print(result)                    is it good? the first sentence of the page
        result.circuit, result.scores    the smallest faithful circuit; the scores of all edges
        result.open()                    the page

    The arguments have the names of the command's options, `--limit` and so on, and the same
    meaning: see `mechassay circuits run --help`.

    Args:
        model: a name, as `load_model` takes it, or a loaded model. The dtype, `prepend_bos` and the
            device of a loaded model are its own.
        task: a name, a file of pairs, or a task; "" for that of a ground truth.
        method: a name with settings, "eap-ig-inputs:steps=10".
        limit, split: test pairs. train_limit, train_split: the pairs that the circuit is found on.
        output: the folder of the run; below `runs` by default. The same call resumes the run.
        progress: `SILENT` shows no bar.

    Raises:
        BadUsage, UnknownName: see `run`.
    """
    models = {model.name: model} if isinstance(model, Model) else None
    tasks = {task.name: task} if isinstance(task, Task) else None
    task_name = task.name if isinstance(task, Task) else str(task)
    experiment = CircuitsExperiment(
        (model.name if isinstance(model, Model) else str(model),),
        (task_name,) if task_name else (),
        (method,),
        counterfactual=counterfactual,
        objective=objective,
        keep=keep,
        ablation=ablation,
        optimal=optimal,
        pairing=pairing,
        train_split=train_split,
        train_limit=train_limit,
        split=split,
        limit=limit,
        profile=profile,
        construction=construction,
        random_rankings=random_rankings,
        resamples=resamples,
        over=over,
        metrics=tuple(metrics),
        known=str(known),
        dtype=dtype,
        prepend_bos=prepend_bos,
        transfer=transfer,
        seed=seed,
        private_seed=private_seed,
        max_minutes=max_minutes,
        even_at_chance=even_at_chance,
    )
    about: dict[str, Any] = {"models": models, "tasks": tasks, "progress": progress}
    return CircuitResult(run(experiment, output, device=device, **about))
