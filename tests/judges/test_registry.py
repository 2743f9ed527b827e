"""A registry over papers: agreement, contradiction and silence, and what a score over papers is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers.judges import CIRCUIT, DUPLICATE, MOVERS, claim, run
from mechassay.claims.judgments import Judgments, SourceDocument
from mechassay.cli.main import main
from mechassay.errors import BadUsage
from mechassay.judges.registry import AGREEMENT, ALONE, CONTRADICTION, CircuitRegistry
from mechassay.testing import check_record

QUOTE = {"I2": ["Alone they do nothing."]}


def papers() -> dict[str, Judgments]:
    return {
        "first": run(claim("circuit", CIRCUIT, {"I1": "YES", "I2": "YES", "M1": "YES"})),
        "second": run(
            claim("whole", CIRCUIT, {"I1": "PARTIAL", "I2": "NO", "M3": "YES"}, evidence=QUOTE),
            claim("other", DUPLICATE, {"I1": "YES"}),
        ),
    }


def test_what_papers_agree_on_contradict_and_say_alone() -> None:
    registry = CircuitRegistry.of(papers())
    shared, alone = registry.circuits
    assert list(shared.claims) == ["first", "second"] and list(alone.claims) == ["second"]
    kinds = {code: shared.kind(code) for code in ("I1", "I2", "M1", "M3", "E6")}
    assert kinds == {"I1": AGREEMENT, "I2": CONTRADICTION, "M1": ALONE, "M3": ALONE, "E6": ""}
    # The best of each criterion over papers.
    assert [shared.best()[code] for code in ("I1", "I2", "M3", "E6")] == ["YES", "YES", "YES", "NO"]


def test_a_no_without_evidence_contradicts_nothing() -> None:
    both = papers()
    both["second"] = run(claim("whole", CIRCUIT, {"I1": "PARTIAL", "I2": "NO"}))
    [shared] = CircuitRegistry.of(both).circuits
    assert shared.kind("I2") == ALONE


def test_claims_on_parts_are_not_the_circuit() -> None:
    registry = CircuitRegistry.of(
        {"a": run(claim("circuit", CIRCUIT)), "b": run(claim("movers", MOVERS))}
    )
    assert [len(circuit.claims) for circuit in registry.circuits] == [1, 1]
    record = registry.record()
    assert record.value("agreements") == 0


def test_the_record_has_a_page_and_every_claim() -> None:
    record = CircuitRegistry.of(papers()).record()
    check_record(record)
    assert record.value("agreements") == 1 and record.value("contradictions") == 1
    assert len(record.table("claims")) == 3
    first = record.table("circuits").rows()[0]
    assert first["n_papers"] == 2 and float(str(first["together"])) >= float(
        str(first["best_alone"])
    )


def test_one_paper_is_no_registry() -> None:
    with pytest.raises(BadUsage, match="two papers or more; got 1"):
        CircuitRegistry.of({"only": run(claim("circuit", CIRCUIT))})


def test_a_paper_does_not_agree_with_itself() -> None:
    documents = (SourceDocument(sha256="a" * 64, name="paper.md"),)
    twice = {
        name: own.model_copy(update={"documents": documents}) for name, own in papers().items()
    }
    with pytest.raises(BadUsage, match="'first' and 'second' judge one document"):
        CircuitRegistry.of(twice)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / f"{name}.json" for name in papers()]
    for file, own in zip(files, papers().values(), strict=True):
        own.save(file)
    page, record = tmp_path / "page.html", tmp_path / "record.json"
    words = ["claims", "registry", *map(str, files), "-o", str(page), "--json", str(record)]
    with pytest.raises(SystemExit) as done:
        main(words)
    said = capsys.readouterr()
    assert done.value.code == 0, said.err
    assert "1 circuit is claimed by two papers or more." in page.read_text("utf-8")
    assert json.loads(record.read_text("utf-8"))["kind"] == "claims-registry"
    with pytest.raises(SystemExit) as twice:
        main(["claims", "registry", str(files[0]), str(files[0])])
    assert twice.value.code != 0
    assert "Two files of judgments are of the paper 'first'" in capsys.readouterr().err
