"""`mechassay circuits`: find circuits, measure how faithful they are, or both in one go."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mechassay.cli.draw import draw
from mechassay.cli.options import (
    AblationOption,
    BosOption,
    DeviceOption,
    DtypeOption,
    ModelOption,
    OutputOption,
    SeedOption,
    TaskOption,
    load,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mechassay.circuits.node_scores import Scores
    from mechassay.records import Record
    from mechassay.runs.circuits import CircuitJob, CircuitRun

app = typer.Typer(help="Localize and evaluate circuits.", no_args_is_help=True)
app.command("draw")(draw)

MethodOption = Annotated[
    list[str],
    typer.Option(
        "--method",
        "-M",
        help=(
            "Method, with settings if wanted: eap-ig-inputs:steps=10,points=midpoint. Repeat for"
            " several."
        ),
    ),
]
ObjectiveOption = Annotated[
    str | None,
    typer.Option(
        help=(
            "What a circuit is to preserve: logit_diff, prob_diff, kl, js, cross_entropy, accuracy."
            " The task's own if not given."
        )
    ),
]
KeepOption = Annotated[
    str,
    typer.Option(
        help="all; or base, counterfactual, both: only pairs whose prompts the model answers right."
    ),
]
ProfileOption = Annotated[
    str, typer.Option(help="strict, or mib-2025 (exactly the benchmark's code).")
]
CounterfactualOption = Annotated[
    str | None, typer.Option(help="Kind of counterfactual; the task's default if not given.")
]
TrainLimit = Annotated[int, typer.Option("--train-limit", help="Pairs to find circuits on.")]
TestLimit = Annotated[int, typer.Option("--limit", help="Pairs to evaluate circuits on.")]
TrainSplit = Annotated[str, typer.Option("--train-split", help="Split to find circuits on.")]
TestSplit = Annotated[str, typer.Option("--split", help="Split to evaluate circuits on.")]
PrivateSeed = Annotated[int | None, typer.Option(help="Seed of the private split; never stored.")]

METHODS = ["eap", "eap-ig-inputs", "random"]


@app.command("run")
def run_circuits(
    model: ModelOption,
    task: TaskOption,
    output: OutputOption = Path("runs/circuits"),
    method: MethodOption = METHODS,
    counterfactual: CounterfactualOption = None,
    objective: ObjectiveOption = None,
    keep: KeepOption = "all",
    ablation: AblationOption = "counterfactual",
    train_split: TrainSplit = "train",
    train_limit: TrainLimit = 100,
    split: TestSplit = "test",
    limit: TestLimit = 100,
    profile: ProfileOption = "strict",
    device: DeviceOption = "cpu",
    dtype: DtypeOption = "float32",
    seed: SeedOption = 0,
    private_seed: PrivateSeed = None,
    prepend_bos: BosOption = False,
) -> None:
    """Find circuits with every method and measure them: scores, records, one HTML report."""
    plan = _plan(
        model,
        task,
        method,
        counterfactual,
        objective,
        keep,
        ablation,
        train_split,
        train_limit,
        split,
        limit,
        profile,
        dtype,
        seed,
        private_seed,
        prepend_bos,
    )
    job = _job(plan, output, device)
    scores = job.localize()
    _finish(job, job.evaluate(scores), scores)


@app.command("localize")
def localize(
    model: ModelOption,
    task: TaskOption,
    output: OutputOption = Path("runs/circuits"),
    method: MethodOption = METHODS,
    counterfactual: CounterfactualOption = None,
    objective: ObjectiveOption = None,
    keep: KeepOption = "all",
    ablation: AblationOption = "counterfactual",
    train_split: TrainSplit = "train",
    train_limit: TrainLimit = 100,
    device: DeviceOption = "cpu",
    dtype: DtypeOption = "float32",
    seed: SeedOption = 0,
    private_seed: PrivateSeed = None,
    prepend_bos: BosOption = False,
) -> None:
    """Score edges, nodes or neurons with every method; `evaluate` then takes the folder."""
    plan = _plan(
        model,
        task,
        method,
        counterfactual,
        objective,
        keep,
        ablation,
        train_split,
        train_limit,
        "test",
        100,
        "strict",
        dtype,
        seed,
        private_seed,
        prepend_bos,
    )
    job = _job(plan, output, device)
    for name, scores in job.localize().items():
        names = ", ".join(scores.place_name(int(flat)) for flat in scores.ranking("magnitude")[:3])
        typer.echo(
            f"{name}: {len(scores.ranking('value')):,} scores in {job.folder.scores_file(name)};"
            f" strongest: {names}"
        )
    _exit(job)


@app.command("evaluate")
def evaluate(
    scores: Annotated[
        list[Path],
        typer.Argument(help="Score files (.safetensors), or the folder of `circuits localize`."),
    ],
    model: ModelOption,
    task: TaskOption,
    output: OutputOption = Path("runs/evaluation"),
    counterfactual: CounterfactualOption = None,
    objective: ObjectiveOption = None,
    keep: KeepOption = "all",
    ablation: AblationOption = "counterfactual",
    split: TestSplit = "test",
    limit: TestLimit = 100,
    profile: ProfileOption = "strict",
    device: DeviceOption = "cpu",
    dtype: DtypeOption = "float32",
    seed: SeedOption = 0,
    private_seed: PrivateSeed = None,
    prepend_bos: BosOption = False,
) -> None:
    """Measure the faithfulness of circuits cut from score files."""
    from mechassay.circuits.node_scores import load_scores

    files = _score_files(scores)
    # Read before the model is loaded: a bad file is then found at once.
    loaded = {file.stem: load_scores(file) for file in files}
    plan = _plan(
        model,
        task,
        [],
        counterfactual,
        objective,
        keep,
        ablation,
        "train",
        100,
        split,
        limit,
        profile,
        dtype,
        seed,
        private_seed,
        prepend_bos,
        tuple(map(str, files)),
    )
    job = _job(plan, output, device)
    _finish(job, job.evaluate(loaded), loaded)


@app.command("convert")
def convert(
    source: Annotated[
        Path,
        typer.Argument(
            help=(
                "Scores or circuit of EAP-IG or MIB (.json, .pt), or scores of ours (.safetensors)."
            )
        ),
    ],
    target: Annotated[Path, typer.Argument(help="File to write, in the form of its ending.")],
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            help="Model that the file has to fit; needed to write from .safetensors.",
        ),
    ] = None,
) -> None:
    """Translate edge scores and circuits between our files and those of EAP-IG and MIB."""
    from mechassay.circuits.formats import ENDINGS, write_graph_file
    from mechassay.circuits.formats import read_graph_file as read
    from mechassay.circuits.scores import EdgeScores
    from mechassay.errors import BadFile, BadUsage, GraphMismatch, UnknownName

    known = (".safetensors", *ENDINGS)
    for path in (source, target):
        if path.suffix not in known:
            raise UnknownName(
                "ending of files of scores and circuits", path.suffix or path.name, known
            )
    loaded = load(model, "float32", "cpu") if model else None
    graph = None if loaded is None else loaded.graph
    if source.suffix == ".safetensors":
        if loaded is None:
            raise BadUsage(
                f"{source}: their files say how wide the model is, ours do not: name it with"
                " --model."
            )
        write_graph_file(target, EdgeScores.load(source, graph), d_model=loaded.decoder.d_model)
    elif target.suffix == ".safetensors":
        scores = read(source, graph).scores
        if scores is None:
            raise BadFile(f"{source}: has no edge scores.")
        scores.save(target)
    else:
        file = read(source, graph)
        if loaded is not None and file.d_model != loaded.decoder.d_model:
            raise GraphMismatch(
                f"{source}: is about a model {file.d_model} wide; {loaded.name} is"
                f" {loaded.decoder.d_model} wide."
            )
        file.write(target)
    typer.echo(f"Written: {target}")


@app.command("validate")
def validate(
    folder: Annotated[Path, typer.Argument(help="Folder of a submission to MIB's circuit track.")],
) -> None:
    """List every problem of a submission; nothing in it is executed."""
    from mechassay.circuits.submission import validate_submission

    problems = validate_submission(folder)
    for problem in problems:
        typer.echo(f"{problem.path}: {problem.message}", err=True)
    if problems:
        typer.echo(f"{len(problems)} problem{'s' * (len(problems) > 1)} in {folder}", err=True)
        raise typer.Exit(1)
    typer.echo(f"{folder}: a valid submission")


def _plan(
    model: str,
    task: str,
    methods: list[str],
    counterfactual: str | None,
    objective: str | None,
    keep: str,
    ablation: str,
    train_split: str,
    train_limit: int,
    split: str,
    limit: int,
    profile: str,
    dtype: str,
    seed: int,
    private_seed: int | None,
    prepend_bos: bool,
    scores: tuple[str, ...] = (),
) -> CircuitRun:
    from mechassay.circuits.faithfulness import PROFILES
    from mechassay.errors import UnknownName
    from mechassay.runs.circuits import CircuitRun
    from mechassay.tasks.task import keep_named

    if profile not in PROFILES:
        raise UnknownName("profile", profile, PROFILES)
    return CircuitRun(
        model=model,
        task=task,
        methods=tuple(methods),
        scores=scores,
        counterfactual=counterfactual,
        objective=objective,
        keep=keep_named(keep),
        ablation=ablation,
        train_split=train_split,
        train_limit=train_limit,
        test_split=split,
        test_limit=limit,
        profile="strict" if profile == "strict" else "mib-2025",
        dtype=dtype,
        prepend_bos=prepend_bos,
        seed=seed,
        private_seed=private_seed,
    )


def _job(plan: CircuitRun, output: Path, device: str) -> CircuitJob:
    from mechassay.runs.circuits import CircuitJob

    return CircuitJob(plan, output, lambda: load(plan.model, plan.dtype, device, plan.prepend_bos))


def _score_files(given: list[Path]) -> list[Path]:
    from mechassay.errors import BadFile

    files: list[Path] = []
    for path in given:
        folder = path / "scores" if (path / "scores").is_dir() else path
        found = sorted(folder.glob("*.safetensors")) if folder.is_dir() else [path]
        if not found:
            raise BadFile(
                f"{path}: the folder has no score files (.safetensors), neither by itself nor in a"
                " folder named scores."
            )
        files += found
    return files


def _finish(job: CircuitJob, records: list[Record], scores: Mapping[str, Scores]) -> None:
    from rich.console import Console

    from mechassay.report.reports import print_report
    from mechassay.runs.circuits import write_report

    console = Console()
    print_report(records, job.failures, console, "faithfulness")
    page = write_report(job.folder, records, scores)
    console.print(f"Report: {page}", soft_wrap=True)
    console.print(f"Records: {job.folder.path / 'records'}", soft_wrap=True)
    _exit(job)


def _exit(job: CircuitJob) -> None:
    for failure in job.failures:
        typer.echo(f"mechassay: {failure.cell.get('method', '')}: {failure.message}", err=True)
    if job.failures:
        raise typer.Exit(1)
