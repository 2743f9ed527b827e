"""CPU seconds of what the command line says without running anything: help, lists, mistyped names.

    python benchmarks/command_line.py

Every line is a process of its own, from its start to its end; the median of three.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys

LINES = (
    "--help",
    "circuits --help",
    "circuits run --help",
    "gym list",
    "measure list",
    "methods list",
    "models list",
    "tasks list",
    "truth list",
    "variables list",
    "circuits run -m smolm2-135m",
    "methods show eep",
)


def cpu_seconds(words: list[str]) -> float:
    """User and system time of one process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "mechassay", *words], capture_output=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main() -> None:
    """Print the table."""
    sys.stdout.write("| command | CPU |\n| --- | --- |\n")
    for line in LINES:
        seconds = statistics.median(cpu_seconds(line.split()) for _ in range(3))
        sys.stdout.write(f"| mechassay {line} | {seconds:.2f} s |\n")


if __name__ == "__main__":
    main()
