"""A child that kills its worker in cells of one submission, and is the real one else.

`service_fatal_cell.py NAME ...`: NAME is what the submission declares, or "wait": then every cell
is begun and stays. What follows are the words of the child.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from mechassay.service.cell import main


def waits() -> None:
    """Say that a cell has begun, and stay in it."""
    Path(os.environ["XDG_BEGUN"]).touch()
    time.sleep(600)


if __name__ == "__main__":
    which, *words = sys.argv[1:]
    declared = Path(words[1]) / "checked.json"
    told = declared.read_text("utf-8") if words[0] == "run" else ""
    if words[0] == "run" and which == "wait":
        waits()
    if f'"name": "{which}"' in told:
        os.kill(os.getppid(), signal.SIGKILL)
    code = main(words)
    sys.stderr.flush()
    os._exit(code)
