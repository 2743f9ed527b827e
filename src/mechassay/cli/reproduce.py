"""`mechassay reproduce`: the tables of a paper beside ours."""

from __future__ import annotations

from mechassay.cli.command import command
from mechassay.reproduction.options import ReproductionOptions

reproduce = command(ReproductionOptions, arguments=("paper",))
