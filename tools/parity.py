"""The table of docs/models.md: logits of tiny random models of every family against transformers'.

    python tools/parity.py           print it
    python tools/parity.py --write   write it into docs/models.md, between its two marks

A number is the largest absolute difference of a logit at the last column of three prompts of seven
and five tokens, the shorter one padded on the left here and bare in transformers. The largest
logit is that of the float64 model. There transformers rounds norms, softmaxes and routers to
float32; the column is without that (`mechassay.models.hooks_reference.exact_precision`).
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path

import torch
import transformers

from mechassay.models.decoder import at_least_fp32
from mechassay.models.hooks_reference import exact_precision
from mechassay.models.model import make_model
from mechassay.testing.tiny import FAMILIES, build, configs, token_pairs

DTYPES = (torch.float64, torch.float32, torch.bfloat16)
PAGE = Path(__file__).parents[1] / "docs" / "models.md"
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


def table() -> str:
    """All families, with the versions that made it."""
    lines = [
        "| tiny model | type | largest logit | float64 | float32 | bfloat16 |",
        "|---|---|---|---|---|---|",
    ]
    tiny = configs()
    for name in FAMILIES:
        errors, largest = zip(*(largest_error(name, dtype) for dtype in DTYPES), strict=True)
        cells = " | ".join(f"{error:.0e}" for error in errors)
        lines.append(f"| {name} | `{tiny[name].model_type}` | {largest[0]:.1f} | {cells} |")
    made = f"transformers {transformers.__version__}, PyTorch {torch.__version__.split('+')[0]}"
    return "\n".join([*lines, "", f"Made by `python tools/parity.py --write` with {made}."])


def main() -> None:
    """Print the table, or put it into the page."""
    made = table()
    if "--write" not in sys.argv[1:]:
        print(made)
        return
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{made}\n{END}{after}", "utf-8")


if __name__ == "__main__":
    main()
