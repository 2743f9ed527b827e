"""A SyntaxGym suite in a model and as a template: surprisals, accuracy, mixed regions."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers.suites import ITEMS, WORDS, number_suite
from helpers.tiny_gguf import of_words
from mechassay.cli.main import main
from mechassay.errors import BadFile, BadUsage, UnknownName
from mechassay.gym.suites import (
    grammatical,
    measure_suite,
    region_surprisals,
    template_of,
    write_template,
)
from mechassay.gym.syntaxgym import Suite, read_suite
from mechassay.models.model import Model, make_model
from mechassay.testing import tiny


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    file = tmp_path / "number.json"
    file.write_text(json.dumps(number_suite()))
    return read_suite(file)


@pytest.fixture(scope="module")
def model() -> Model:
    return make_model(tiny.build("gpt2"), of_words(list(WORDS)))


def test_surprisals_are_those_of_a_plain_forward(suite: Suite, model: Model) -> None:
    values = region_surprisals(model, suite, batch=5)
    tokenizer, hf = model.tokenizer, model.hf
    assert tokenizer is not None
    for item, by_condition in enumerate(suite.contents):
        for column, texts in enumerate(by_condition):
            ids = tokenizer(" ".join(" ".join(texts).split()))["input_ids"]
            logp = hf(torch.tensor([ids])).logits[0].log_softmax(-1)
            bits = [-float(logp[n, token]) / math.log(2) for n, token in enumerate(ids[1:])]
            lengths = [len(text.split()) for text in texts]
            # The first word has nothing before it.
            ends = np.cumsum(lengths) - 1
            begins = np.maximum(0, np.concatenate(([0], ends[:-1])))
            expected = [sum(bits[a:b]) for a, b in zip(begins, ends, strict=True)]
            np.testing.assert_allclose(values[item, column], expected, atol=1e-4)


def test_accuracy_has_an_interval_and_random_weights_beside_it(suite: Suite, model: Model) -> None:
    result = measure_suite(model, suite)
    columns = result.columns()
    assert columns["prediction"][-1] == "all of them" and columns["items"] == [3, 3, 3]
    for value, low, high in zip(columns["accuracy"], columns["low"], columns["high"], strict=True):
        assert low <= value <= high and high - low > 0.5  # Three items say little.
    assert len(columns["untrained"]) == 3


def test_grammatical_conditions_are_those_on_the_left_of_the_predictions(suite: Suite) -> None:
    assert grammatical(suite) == ("match_sing", "match_plural", 4)
    plain = number_suite()
    plain["predictions"] = plain["predictions"][:1]
    with pytest.raises(BadUsage, match="name two of match_sing, mismatch_sing"):
        grammatical(read_of(plain))


def read_of(plain: dict[str, Any]) -> Suite:
    from mechassay.gym.syntaxgym import _suite  # pyright: ignore[reportPrivateUsage]

    return _suite(plain, "number")


def test_a_template_mixes_regions_of_items(suite: Suite, tmp_path: Path) -> None:
    task = write_template(
        tmp_path / "number.yaml", template_of(suite, "match_sing", "match_plural", 4)
    )
    # Subjects by type, objects of any item, one preposition.
    assert task.n_sentences == 2 * 3 * 3 and task.varied == ("subject",)
    assert task.labels == {"match_sing": (" is",), "match_plural": (" are",)}
    assert task.tested == ("subject", "prep", "object")
    drawn = {
        example.prompt.text
        for split in ("train", "validation", "test")
        for example in task.generate(split, 0)
    }
    mixed = {text for text in drawn if "author" in text and "driver" in text}
    assert mixed and all("near the" in text for text in drawn)


def test_regions_that_belong_together_stay_so(suite: Suite, tmp_path: Path) -> None:
    task = write_template(
        tmp_path / "number.yaml",
        template_of(suite, "match_sing", "match_plural", 4, [("subject", "object")]),
    )
    assert task.n_sentences == 2 * 3
    for split in ("train", "validation", "test"):
        for example in task.generate(split, 0):
            assert any(a in example.prompt.text and b in example.prompt.text for a, b in ITEMS)


@pytest.mark.parametrize(
    ("named", "match"),
    [
        (("match_sing", "other", 4), "condition"),
        (("match_sing", "match_plural", 9), "region"),
        (("match_sing", "mismatch_plural", 4), "both have 'is' there"),
        (("match_sing", "mismatch_sing", 4), "say the same before region 4"),
    ],
)
def test_what_makes_no_task_is_refused_in_a_line(
    suite: Suite, named: tuple[str, str, int], match: str
) -> None:
    with pytest.raises((BadUsage, UnknownName), match=match) as error:
        template_of(suite, *named)
    assert "\n" not in str(error.value)


def test_a_suite_with_unequal_regions_is_one_line(tmp_path: Path) -> None:
    plain = number_suite()
    del plain["items"][1]["conditions"][0]["regions"][2]
    file = tmp_path / "number.json"
    file.write_text(json.dumps(plain))
    with pytest.raises(BadFile, match=r"items\[1\].conditions\[0\].regions must be those") as error:
        read_suite(file)
    assert "\n" not in str(error.value)


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, task, bits = (tmp_path / name for name in ("number.json", "number.yaml", "bits.csv"))
    file.write_text(json.dumps(number_suite()))
    assert run(["gym", "template", str(file), "-o", str(task)]) == 0
    assert "18 sentences of 3 items" in capsys.readouterr().out
    folder = tmp_path / "model"
    tiny.build("gpt2").save_pretrained(folder)
    of_words(list(WORDS)).save_pretrained(folder)
    assert run(["gym", "suite", str(file), "-m", str(folder), "-o", str(bits), "--json"]) == 0
    said = capsys.readouterr().out
    assert json.loads(said.partition("Written")[0])[2]["prediction"] == "all of them"
    assert bits.read_text("utf-8").splitlines()[0] == "item,condition,region,text,bits"
    assert run(["gym", "template", str(file), "-o", str(task), "--first", "match_sing"]) != 0
    assert "give all three or none" in capsys.readouterr().err


def run(words: list[str]) -> int:
    with pytest.raises(SystemExit) as done:
        main(words)
    return int(done.value.code or 0)
