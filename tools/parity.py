"""The table of docs/models.md: logits of tiny random models of every family against transformers'.

    python tools/parity.py             print the errors with the installed transformers, as JSON
    python tools/parity.py --write     in an environment for each of VERSIONS, and write the table
                                       into docs/models.md, between its two marks

A number is the largest absolute difference of a logit at the last column of three prompts of seven
and five tokens, the shorter one padded on the left here and bare in transformers. The largest
logit is that of the float64 model. There transformers rounds norms, softmaxes and routers to
float32; the column is without that (`exact_precision` in tests/helpers/hooks_reference.py).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import torch

from mechassay.errors import MechassayError, first_line
from mechassay.models.decoder import at_least_fp32
from mechassay.models.model import make_model
from mechassay.testing.tiny import FAMILIES, build, configs, token_pairs

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from helpers.hooks_reference import exact_precision  # noqa: E402

VERSIONS = ("5.19.0", "5.23.0", "5.24.0")
"""Of transformers: the oldest that is allowed, that of `constraints.txt`, the newest."""
DTYPES = (torch.float64, torch.float32, torch.bfloat16)
PAGE = ROOT / "docs" / "models.md"
BEGIN, END = "<!-- parity -->", "<!-- /parity -->"


@torch.no_grad()
def largest_error(name: str, dtype: torch.dtype) -> tuple[float, float]:
    """Of a family's tiny model in a dtype, and its largest logit."""
    model, batch = make_model(build(name, dtype)), token_pairs()
    ours = model.run(batch)[0].readout(model.decoder).all()
    with exact_precision(model.hf) if dtype == torch.float64 else nullcontext():
        rows = [tokens[real][None] for tokens, real in zip(batch.clean, batch.mask, strict=True)]
        theirs = torch.cat([model.hf(row, use_cache=False).logits[:, -1] for row in rows])
    theirs = at_least_fp32(theirs)
    return float((ours - theirs).abs().max()), float(theirs.abs().max())


def errors() -> dict[str, list[float] | str]:
    """Of each family, with the installed transformers: the errors by dtype and the largest logit,
    or why it is refused.
    """
    known: dict[str, list[float] | str] = {}
    for name in FAMILIES:
        try:
            by_dtype, largest = zip(*(largest_error(name, dtype) for dtype in DTYPES), strict=True)
        except MechassayError as error:
            known[name] = first_line(error)
        else:
            known[name] = [*by_dtype, largest[0]]
    return known


def errors_with(version: str) -> dict[str, list[float] | str]:
    """The same in an environment of its own with a version of transformers."""
    folder = ROOT / ".venv-parity" / version
    python, uv = folder / "bin/python", [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "-q", "--clear", "--python", sys.executable, folder], check=True)
    links = {"UV_FIND_LINKS": os.environ.get("PIP_FIND_LINKS", "")}
    pins = [
        line for line in (ROOT / "constraints.txt").read_text().splitlines() if "torch==" in line
    ]
    wanted = [f"transformers=={version}", *pins, "-e", str(ROOT)]
    install = [*uv, "pip", "install", "-q", "--python", str(python), *wanted]
    subprocess.run(install, check=True, env={**os.environ, **links})
    run = subprocess.run([python, __file__], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(run.stdout)


def table() -> str:
    """All families and dtypes: one number where all versions agree, else a number each."""
    known = {version: errors_with(version) for version in VERSIONS}
    lines = [
        "| tiny model | type | largest logit | float64 | float32 | bfloat16 |",
        "|---|---|---|---|---|---|",
    ]
    tiny = configs()
    for name in FAMILIES:
        of_versions, cells = [known[version][name] for version in VERSIONS], list[str]()
        for place in range(len(DTYPES)):
            texts = [x if isinstance(x, str) else f"{x[place]:.0e}" for x in of_versions]
            cells.append(texts[0] if len(set(texts)) == 1 else " / ".join(texts))
        newest = of_versions[-1]
        largest = "" if isinstance(newest, str) else f"{newest[-1]:.1f}"
        lines.append(f"| {name} | `{tiny[name].model_type}` | {largest} | {' | '.join(cells)} |")
    made = f"PyTorch {torch.__version__.split('+')[0]} and transformers {', '.join(VERSIONS)}"
    return "\n".join([*lines, "", f"Made by `python tools/parity.py --write` with {made}."])


def main() -> None:
    """Print the errors of this environment, or put those of all versions into the page."""
    if "--write" not in sys.argv[1:]:
        print(json.dumps(errors()))
        return
    made = table()
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{made}\n{END}{after}", "utf-8")


if __name__ == "__main__":
    main()
