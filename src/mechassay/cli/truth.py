"""`mechassay truth`: models whose circuit is known, and interventions that show it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mechassay.cli.command import seed_option
from mechassay.cli.names import check_names
from mechassay.cli.output import JsonOption, say, show, show_columns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mechassay.truth.verification import Verification


app = typer.Typer(help="Models whose circuit is known.", no_args_is_help=True)


@app.command("list")
def list_truths(json: JsonOption = False) -> None:
    """The models, their circuits for each ablation, how clear these are, and their folders."""
    from mechassay.truth.summary import truth_rows

    show(truth_rows(), json, ("folder", "least share", "margin"))


@app.command("verify")
def verify_truth(
    name: Annotated[
        str,
        typer.Argument(
            help=(
                "Ground truth, see `mechassay truth list`, or the folder of `mechassay truth"
                " train`."
            )
        ),
    ],
    ablation: Annotated[
        str,
        typer.Option(
            help="What ablated edges carry; all that the circuit was verified for if not given."
        ),
    ] = "",
    limit: Annotated[int, typer.Option(help="Pairs.")] = 500,
    split: Annotated[
        str, typer.Option(help="Split of the pairs; the circuit was verified on test, with seed 0.")
    ] = "validation",
    seed: Annotated[int, seed_option("the pairs")] = 1,
) -> None:
    """Ablate every edge alone in fresh pairs:
    do the circuit's edges, and no others, move the output?

    Means are those of the pairs that the circuit was verified on. With fewer pairs the margin can
    be anything: the few that show a rare edge may be missing.
    """
    check_names("truths", [name])
    from mechassay.errors import UnknownName
    from mechassay.truth.ground_truth import load_truth
    from mechassay.truth.verification import verify

    truth = load_truth(name)
    if ablation and ablation not in truth.circuits:
        raise UnknownName("ablation", ablation, truth.circuits)
    pairs = truth.task.pairs(split, truth.model, limit=limit, seed=seed)
    wanted = [ablation] if ablation else list(truth.circuits)
    verifications = {
        how: verify(
            truth.model,
            pairs,
            truth.circuits[how],
            how,
            data=truth.pairs(),
            backups=truth.verified[how].backups,
        )
        for how in wanted
    }
    _say(verifications)
    if not all(verification.holds for verification in verifications.values()):
        raise typer.Exit(1)


@app.command("sites")
def verify_truth_sites(
    name: Annotated[
        str,
        typer.Argument(
            help="Trained ground truth, or the folder of `mechassay truth train` with --like."
        ),
    ],
    like: Annotated[
        str,
        typer.Option(help="Ground truth whose known sites a folder of your own is to have."),
    ] = "",
    limit: Annotated[int, typer.Option(help="Examples.")] = 300,
    split: Annotated[
        str,
        typer.Option(help="Split of the examples; known sites were verified on test, with seed 0."),
    ] = "validation",
    seed: Annotated[int, seed_option("the examples")] = 1,
    json: JsonOption = False,
) -> None:
    """Exchange every writer and block at every part of fresh prompts:
    are the causal variables at their known sites, and nowhere else?
    """
    check_names("truths", [name])
    from mechassay.causal_models.true_sites import known_sites_of, verify_sites
    from mechassay.truth.ground_truth import load_truth

    known_sites_of(like or name)
    verified = verify_sites(load_truth(name), like or name, split=split, seed=seed, limit=limit)
    show_columns(verified.columns(), json)
    if not verified.holds:
        typer.echo(f"mechassay: {name}: the known sites do not hold.", err=True)
        raise typer.Exit(1)


@app.command("train")
def train_truth(
    name: Annotated[
        str, typer.Argument(help="What to train: a ground truth whose name ends in -trained.")
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="Folder for the model; the same command again goes on there."
        ),
    ],
    steps: Annotated[int, typer.Option(help="Optimiser steps.")] = 4000,
    batch_size: Annotated[int, typer.Option(help="Pairs a step.")] = 192,
    pool: Annotated[int, typer.Option(help="Prompts that pairs are drawn from.")] = 20_000,
    rate: Annotated[float, typer.Option(help="Learning rate of the first step.")] = 3e-3,
    limit: Annotated[
        int, typer.Option(help="Pairs to verify the circuit on, with each ablation.")
    ] = 500,
    seed: Annotated[
        int,
        typer.Option(
            min=0,
            max=2**62 - 1,
            help="Seed of the first weights, the prompts and the interventions.",
        ),
    ] = 0,
    start: Annotated[
        Path | None, typer.Option(help="Folder of an earlier training, to train further.")
    ] = None,
) -> None:
    """Train a small model to do a task with a given circuit, verify it edge by edge,
    and write it if the circuit holds.

    Ablations for which it does not hold are left out; without that of counterfactuals, nothing is a
    truth.
    """
    from mechassay.truth.tasks import CAUSAL
    from mechassay.truth.training import Training, make_truth

    causal = CAUSAL.make(name)
    training = Training(steps=steps, batch_size=batch_size, pool=pool, rate=rate, seed=seed)
    losses, verifications = make_truth(causal, training, output, limit=limit, start=start)
    typer.echo(f"loss: first {losses[0]:.3g}, last {losses[-1]:.2g} (mean squared error of logits)")
    _say(verifications)
    advice = "try more --steps or another --seed, in another --output"
    if not verifications["counterfactual"].holds:
        typer.echo(
            f"mechassay: {name}: the circuit is not clear; no truth.json was written: {advice}.",
            err=True,
        )
        raise typer.Exit(1)
    without = [
        ablation for ablation, verification in verifications.items() if not verification.holds
    ]
    if without:
        typer.echo(
            f"mechassay: {name}: no truth for {', '.join(without)} ablation; {advice}.", err=True
        )
    typer.echo(f"Written: {output}; `mechassay truth verify {output}` verifies it on other pairs.")


@app.command("make")
def make_truth_here(
    name: Annotated[
        str, typer.Argument(help="A ground truth that is made here: `mechassay truth list`.")
    ],
) -> None:
    """Train a ground truth of InterpBench's size by its recipe, verify it edge by edge, keep it.

    It takes two to six minutes on one core. Ctrl-C keeps what is done; the same command goes on.
    `mechassay truth verify NAME` verifies it on other pairs.
    """
    from mechassay.truth.training import make_from_recipe

    typer.echo(f"{name}: {make_from_recipe(name)}")


def _say(verifications: Mapping[str, Verification]) -> None:
    for ablation, verification in verifications.items():
        verdict = "holds" if verification.holds else "does not hold"
        outside = (
            f"largest outside {verification.largest_outside:.2g},"
            f" all outside at once {verification.together:.2g}"
        )
        effects = f"smallest effect inside {verification.smallest_inside:.3g}, {outside}"
        size = f"{len(verification.claimed)} of {verification.claimed.graph.n_edges} edges"
        clear = (
            f"margin {verification.margin:,.0f},"
            f" {verification.joint_margin:,.0f} over all outside at once"
        )
        say(f"{ablation}: {verdict}; {size}, {effects}, {clear}, {verification.n_pairs} pairs")
        rare = _rarest(verification)
        if rare:
            say(f"  rarest edge: {rare}")
        for backup in verification.backups:
            say(
                f"  backup {backup.head}: the answer is ahead in {backup.survives:.0%} of the pairs"
                f" without {backup.primary}, and in {1 - backup.lost:.0%} without both; without the"
                f" backup alone it moves by {backup.heard:.2g} or less"
            )
        if verification.contingent:
            say(f"  clear only without one of the two: {', '.join(verification.contingent)}")


def _rarest(done: Verification) -> str:
    """The claimed edge that exceeds those outside in the fewest pairs, if that is defined."""
    inside = done.claimed.edges
    shares, in_pair = done.shares[inside], done.shares_in_pair[inside]
    if not len(shares) or bool(shares.isnan().any()):
        return ""
    place = int(shares.argmin())
    exceeds = f"above every effect outside in {shares[place]:.0%} of the pairs"
    return (
        f"{done.claimed.names()[place]}, {exceeds}, above those of the same pair in"
        f" {in_pair[place]:.0%}"
    )
