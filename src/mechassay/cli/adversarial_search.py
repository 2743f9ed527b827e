"""`mechassay adversarial search`: pairs that are worse than those of a sample."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mechassay.cli.options import (
    BosOption,
    CounterfactualOption,
    DeviceOption,
    DtypeOption,
    ModelOption,
    ObjectiveOption,
    PairingOption,
    SeedOption,
    TaskOption,
    load,
)

if TYPE_CHECKING:
    from mechassay.adversarial.search import SearchResult

INTERRUPTED = 130


def search(
    model: ModelOption,
    task: TaskOption,
    circuit: Annotated[
        str,
        typer.Option(
            "--circuit",
            "-c",
            help="A circuit as `mechassay adversarial run` takes them: canonical:ioi.",
        ),
    ],
    n_clean: Annotated[
        int, typer.Option("--n-clean", help="Clean prompts that the search begins with.")
    ] = 500,
    n_corrupted: Annotated[
        int, typer.Option("--n-corrupted", help="Corrupted prompts that the search begins with.")
    ] = 500,
    split: Annotated[
        str, typer.Option("--split", help="Split of the prompts: train, validation or test.")
    ] = "test",
    counterfactual: CounterfactualOption = None,
    budget: Annotated[
        int, typer.Option("--budget", help="Pairs to evaluate at the most.")
    ] = 20_000,
    starts: Annotated[
        int, typer.Option("--starts", help="Climbs from the worst pairs of the prompts.")
    ] = 8,
    restarts: Annotated[
        int, typer.Option("--restarts", help="Climbs from random pairs after these.")
    ] = 8,
    compare: Annotated[bool, typer.Option(help="Also evaluate as many random pairs.")] = True,
    train_limit: Annotated[
        int, typer.Option("--train-limit", help="Pairs that a method finds the circuit on.")
    ] = 100,
    objective: ObjectiveOption = None,
    pairing: PairingOption = "matched",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Also write all climbs as JSON.")
    ] = None,
    device: DeviceOption = "cpu",
    dtype: DtypeOption = "float32",
    seed: SeedOption = 0,
    prepend_bos: BosOption = False,
) -> None:
    """Change prompts field by field for a larger divergence: a lower bound on the largest one.
    Ctrl-C ends it with the best so far.
    """
    import json

    from mechassay.runs.adversarial_search import SearchJob, SearchRun
    from mechassay.runs.folder import check_can_write, write_text

    if output is not None:
        check_can_write(output)
    run = SearchRun(
        model=model,
        task=task,
        circuit=circuit,
        n_clean=n_clean,
        n_corrupted=n_corrupted,
        split=split,
        counterfactual=counterfactual,
        budget=budget,
        starts=starts,
        restarts=restarts,
        compare=compare,
        train_limit=train_limit,
        objective=objective,
        pairing=pairing,
        seed=seed,
    )
    try:
        result, no_fields = SearchJob(run, lambda: load(model, dtype, device, prepend_bos)).search()
    except KeyboardInterrupt:
        raise _interrupted("nothing was found yet") from None
    _say(result)
    if no_fields:
        typer.echo(no_fields)
    if output is not None:
        write_text(
            output,
            json.dumps(
                {**run.about(), **result.as_dict()}, indent=1, ensure_ascii=False, default=str
            ),
        )
    if not result.finished:
        raise _interrupted(
            "what was found so far is above" + (f" and in {output}" if output is not None else "")
        )


def _interrupted(kept: str) -> SystemExit:
    """The end after Ctrl-C. Unlike other commands, a search does not go on where it was;
    so the common message is not for it.
    """
    typer.echo(f"mechassay: interrupted; {kept}. The same command begins anew.", err=True)
    return SystemExit(INTERRUPTED)


def _say(result: SearchResult) -> None:
    from rich.console import Console

    from mechassay.report.tables import Table, print_tables

    rows = tuple(
        (
            f"{number}",
            f"{climb.kl:.6g}",
            f"{climb.steps[0].kl:.6g}",
            f"{len(climb.steps) - 1}",
            "yes" if climb.is_local_maximum else "no",
        )
        for number, climb in enumerate(result.climbs, start=1)
    )
    console, best = Console(), result.best
    print_tables(
        [
            Table.of(
                "Climbs, in nats",
                ("climb", "divergence", "at its start", "changes", "local maximum"),
                rows,
            )
        ],
        console,
    )

    def line(text: str) -> None:
        console.print(text, soft_wrap=True, markup=False, highlight=False)

    line(f"clean      {best.clean.text}")
    line(f"corrupted  {best.corrupted.text}")
    for step in best.steps:
        line(f"  {step.kl:.6g}  {step.change or 'start'}")
    line(f"L{str(result)[1:]}")
