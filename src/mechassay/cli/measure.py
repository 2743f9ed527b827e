"""`mechassay measure`: can the instrument be trusted? Metrics as published and repaired."""

from __future__ import annotations

from typing import Annotated

import typer

from mechassay.cli.command import command, seed_option
from mechassay.cli.names import check_names
from mechassay.cli.output import JsonOption, show_columns
from mechassay.measurement.options import MeasureOptions

app = typer.Typer(help="Whether measurements can be trusted.", no_args_is_help=True)
app.command("run")(command(MeasureOptions, arguments=("metrics",)))


@app.command("list")
def list_metrics(json: JsonOption = False) -> None:
    """The metrics of the measurement page: names, scripts, what each needs and is evidence for."""
    from mechassay.measurement.gauges import list_gauges

    show_columns(list_gauges().columns(), json, ("page passes if", "page's criteria", "script"))


@app.command("null")
def null(
    metric: Annotated[str, typer.Argument(help="Metric, or the name of its script.")],
    n: Annotated[
        int | None,
        typer.Option("--n", min=2, help="Size of the inputs: prompts, runs, circuits."),
    ] = None,
    simulations: Annotated[
        int, typer.Option("--simulations", min=1, help="Of each scenario.")
    ] = 1000,
    seed: Annotated[int, seed_option("the simulated inputs")] = 0,
    json: JsonOption = False,
) -> None:
    """How often a metric's thresholds err: false alarms on worthless inputs, power on sound ones.

    The inputs are simulated; no model is run.
    """
    check_names("measurements", [metric])
    from mechassay.measurement.metric import null_table
    from mechassay.measurement.page import rates_table
    from mechassay.results.console import print_tables, standard_output

    rates = null_table(metric, n, n_simulations=simulations, seed=seed)
    if not json:
        print_tables([rates_table(rates)], standard_output(), "--json")
        return
    show_columns(rates.columns(), json)
