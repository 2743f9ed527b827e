"""A claim about one's own prompts, of several lengths: a verdict, and what could not be tested."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import transformers

from helpers.tiny_models import with_words
from mechassay.claims.judgments import read_judgments
from mechassay.cli.main import main


@pytest.mark.slow
def test_an_assay_on_prompts_of_several_lengths_writes_a_verdict_and_ends_with_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hf, tokenizer = with_words()
    assert isinstance(tokenizer, transformers.PreTrainedTokenizerFast)
    for part in (hf, tokenizer):
        part.save_pretrained(tmp_path / "mine")
    with (tmp_path / "own.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["clean", "counterfactual", "answer", "foil", "name", "split"])
        for n in range(180):
            one, other = ("Mary", "John") if n % 2 else ("John", "Mary")
            words = ["went", "to", "the", "store"] * (1 + n % 30)
            text = f"When {{}} {' '.join(words[: 1 + n % 60])} gave to"
            split = ("train", "test", "validation")[n % 3]
            table.writerow([*map(text.format, (one, other)), f" {one}", f" {other}", one, split])
    claim = {"id": "own", "statement": "The names run through two heads.", "components": ["a1.h0"]}
    claim |= {"model": str(tmp_path / "mine"), "task": str(tmp_path / "own.csv")}
    claim |= {"description_mode": "implementational-connectomic"}
    prediction = {"measure": "circuit", "direction": "above", "threshold": 0.7}
    (tmp_path / "claim.json").write_text(json.dumps({**claim, "predictions": [prediction]}))
    words = ["assay", str(tmp_path / "claim.json"), "-o", str(tmp_path / "runs")]
    words += ["--limit", "20", "--train-limit", "20", "--grid", "12", "--left-out", "2"]
    with pytest.raises(SystemExit) as done:
        main(words)
    shown = capsys.readouterr()
    assert done.value.code == 0, shown.err
    assert "own: " in shown.out and "NOT TESTED" in shown.err and "of 12 clean" not in shown.out
    judged = read_judgments(tmp_path / "runs" / "judgments.json").claims[0]
    assert judged.statuses["E5"] == "NOT TESTED"
    assert (tmp_path / "runs" / "report.html").is_file()
