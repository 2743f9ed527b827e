"""What a training of sparse autoencoders costs, in CPU minutes per million values.

Values are random, of the width of SmolLM2-135M; each architecture takes some steps on one thread,
and processor time counts, so that other processes on the machine disturb little. Features of random
values are about as sparse as those of real ones: the work is the same. Beside each row is the share
that the encoder's product alone, which no exact method can go below, takes of it.

    python benchmarks/saes.py [--d 576] [--features 4096] [--k 32] [--batch 1024] [--steps 60]
                              [--architecture topk ...] [--profile]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import get_args

import torch

from mechassay.features import Architecture
from mechassay.saes.architectures import SAESettings
from mechassay.saes.training import LEARNERS, SAETraining, initial_rows

GOALS = {"topk": "3.5"}
"""CPU minutes per million values, at the sizes that are the defaults here."""
WARM = 5
"""Steps before those that count."""


def step_seconds(settings: SAESettings, d: int, *, profile: bool = False) -> float:
    """The median processor time of a step."""
    training = SAETraining(LEARNERS[settings.architecture](settings, initial_rows(d, settings)))
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(8, settings.batch_size, d, generator=generator)

    def one(step: int) -> float:
        begin = time.process_time()
        training.optimiser.zero_grad()
        training.differentiate(step, drawn[step % len(drawn)], generator)
        training.optimiser.step()
        return time.process_time() - begin

    for step in range(WARM):
        one(step)
    if profile:
        with torch.profiler.profile() as found:
            one(WARM)
        table = found.key_averages().table(sort_by="self_cpu_time_total", row_limit=20)
        sys.stdout.write(f"{table}\n")
    return statistics.median(one(step) for step in range(WARM + profile, settings.steps))


def product_seconds(settings: SAESettings, d: int) -> float:
    """The median processor time of x W_enc."""
    x, rows = torch.randn(settings.batch_size, d), initial_rows(d, settings)
    found: list[float] = []
    for _ in range(10):
        begin = time.process_time()
        x @ rows.mT
        found.append(time.process_time() - begin)
    return statistics.median(found)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--d", type=int, default=576)
    parser.add_argument("--features", type=int, default=4096)
    parser.add_argument("--k", type=int, default=32)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--architecture", nargs="+", default=list(get_args(Architecture)))
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    sys.stdout.write(
        f"d {given.d}, {given.features:,} features, k {given.k}, batches of {given.batch:,},"
        f" {given.steps} steps, one thread, torch {torch.__version__}\n\n"
        "| architecture | goal | CPU min per million values | of it x W_enc |\n"
        "| --- | --- | --- | --- |\n"
    )
    for architecture in given.architecture:
        settings = SAESettings(
            architecture,
            given.features,
            given.k,
            steps=given.steps + WARM + given.profile,
            batch_size=given.batch,
        )
        seconds = step_seconds(settings, given.d, profile=given.profile)
        minutes = seconds / given.batch * 1e6 / 60
        share = product_seconds(settings, given.d) / seconds
        goal = GOALS.get(architecture, "")
        sys.stdout.write(f"| {architecture} | {goal} | {minutes:.2f} | {share:.0%} |\n")


if __name__ == "__main__":
    main()
