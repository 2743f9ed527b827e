"""Values print as one line, show themselves in a notebook, and give tables and pictures.

The line of a bar: everything is on it in 80 columns, and rates are read at a glance.

Numbers and names as short texts.
"""

from __future__ import annotations

import io
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from rich.console import Console

import mechassay as ma
from mechassay.adversarial.evaluation import Divergences
from mechassay.circuits.evaluation.curve import FaithfulnessCurve
from mechassay.circuits.evaluation.differences import Differences
from mechassay.errors import BadFile, BadPairs, BadUsage, MissingExtra
from mechassay.models.model import Model
from mechassay.utils import display as progress
from mechassay.utils.display import (
    SILENT,
    Bar,
    briefly,
    counted,
    data_frame,
    drawn,
    html_facts,
    html_table,
    line,
    progress_line,
    rate,
)
from mechassay.utils.files import read_tensors, write_tensors

NAME = "truth-ioi"
LIMITS: dict[str, Any] = {"train_limit": 6, "limit": 6, "random_rankings": 5}
LONGEST_LINE = 420


@pytest.fixture(scope="module")
def model() -> Model:
    return ma.load_model(NAME)


@pytest.fixture(scope="module")
def held(model: Model, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One of everything that a user may hold."""
    task, circuits = ma.load_task(NAME), ma.circuits
    train, test = (task.pairs(split, model, limit=6) for split in ("train", "test"))
    scores = ma.load_method("eap").score(model, train, progress=SILENT)
    neurons = ma.load_method("nap-ig:steps=2,level=neuron").score(model, train, progress=SILENT)
    circuit = ma.load_circuit("truth", model)
    curve = circuits.faithfulness_curve(model, scores, test, progress=SILENT)
    record = curve.record()
    experiment = ma.CircuitsExperiment(models=(NAME,), methods=("eap",), **LIMITS)
    return {
        "model": model,
        "pairs": train,
        "pair": train[0],
        "list of pairs": [train[0]],
        "batch": model.batch(train),
        "task": task,
        "hypothesis": ma.variables.hypotheses(NAME)["answer"],
        "examples": task.examples("train", limit=2),
        "scores": scores,
        "neuron scores": neurons,
        "circuit": circuit,
        "curve": curve,
        "sweep": curve.sweeps["value"],
        "controls": curve.controls,
        "record": record,
        "measure": record.measures[0],
        "table": record.table("curve"),
        "values": record.values,
        "completeness": circuits.completeness(model, circuit, test, progress=SILENT),
        "minimality": circuits.minimality(model, circuit, test, progress=SILENT),
        "recovery": circuits.recovery_of(scores, circuit),
        "overlap": circuits.overlap_of(circuit, scores.top(5)),
        "differences": circuits.differences_of([curve, curve]),
        "truth": ma.load_truth(NAME),
        "drawing": circuit.draw(scores),
        "results": ma.run(experiment, tmp_path_factory.mktemp("run"), progress=SILENT),
    }


class _Parsed(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data.strip())


def test_every_value_prints_as_one_line(held: dict[str, Any]) -> None:
    long = {
        name: repr(value)
        for name, value in held.items()
        if "\n" in repr(value)
        or len(repr(value)) > LONGEST_LINE
        # Results of a run and curves are read: they print the first sentence of their page.
        or (repr(value) != str(value) and name not in ("results", "curve"))
    }
    assert not long


def test_lines_say_what_matters(held: dict[str, Any]) -> None:
    assert repr(held["model"]) == (
        "Model(name='truth-ioi', family='gpt2', layers=3, heads=4, edges=262, dtype='float32',"
        " device='cpu')"
    )
    assert "method='eap'" in repr(held["scores"]) and "n=6" in repr(held["pairs"])
    assert repr(held["circuit"]).startswith("Circuit(edges=9, of=262")
    curve = held["curve"]
    assert f"cpr=<{curve.cpr:.1f}" in repr(curve) or "cpr=<undefined" in repr(curve)


def test_a_line_shortens_what_is_long() -> None:
    assert briefly(np.zeros((3, 4))) == "float64[3, 4]"
    assert briefly(tuple(range(9))) == "<9 items>" and briefly(("a",)) == "('a',)"
    assert len(line("Many", {f"field{n}": "x" * 100 for n in range(50)})) < 400


@pytest.mark.parametrize(
    "name",
    [
        *("model", "pairs", "scores", "neuron scores", "circuit", "curve", "record", "results"),
        *("task", "batch", "hypothesis"),
    ],
)
def test_notebooks_get_well_formed_html(held: dict[str, Any], name: str) -> None:
    html = held[name]._repr_html_()
    assert not _Parsed(html.split("<svg")[0] if "<svg" not in html else _without_svg(html)).open
    assert "<script" not in html


def _without_svg(html: str) -> str:
    start, end = html.index("<svg"), html.rindex("</svg>") + len("</svg>")
    ElementTree.fromstring(html[start:end])
    return html[:start] + html[end:]


def test_html_shows_what_it_is_about(held: dict[str, Any]) -> None:
    scores, strongest = held["scores"], next(iter(held["scores"].strongest(1)))
    assert strongest in _Parsed(scores._repr_html_()).texts[:-1] or (
        strongest.replace(">", "&gt;") in scores._repr_html_()
    )
    assert "logits against the original" in held["model"]._repr_html_()
    assert held["pair"].clean in held["pairs"]._repr_html_()
    assert "<svg" in held["circuit"]._repr_html_() and "<svg" in held["curve"]._repr_html_()
    assert "CPR" in held["results"]._repr_html_()
    assert NAME in held["task"]._repr_html_() and "logit_diff" in held["task"]._repr_html_()
    assert "right" in held["hypothesis"]._repr_html_()
    assert "tokens" in held["batch"]._repr_html_()


def test_text_in_html_is_escaped() -> None:
    html = html_facts("<b>", {"<i>": "&"}, html_table(("<u>",), [("<p>",)], "<a>"))
    assert not {"<b>", "<i>", "<u>", "<p>", "<a>"} & {html[i : i + 3] for i in range(len(html))}
    assert _Parsed(html).texts.count("<p>") == 1


def test_pictures_are_figures_that_show_themselves(held: dict[str, Any]) -> None:
    for name in ("curve", "record", "results", "scores", "neuron scores"):
        figure = held[name].plot()
        assert isinstance(figure, Figure)
        ElementTree.fromstring(figure._repr_svg_())  # pyright: ignore[reportAttributeAccessIssue]
    ElementTree.fromstring(held["drawing"]._repr_svg_())


def test_a_picture_is_drawn_on_axes_that_are_given(held: dict[str, Any]) -> None:
    figure = Figure()
    left, right = figure.subplots(1, 2)
    assert held["curve"].plot(left, ranking="magnitude") is figure
    assert "CMD" in left.get_title("left") and len(left.lines) > 2
    assert held["scores"].plot(right) is figure and right.patches
    f = held["curve"].faithfulness["magnitude"]
    drawn = [np.asarray(x.get_ydata()) for x in left.lines]
    assert any(len(y) == len(f) and np.allclose(y, f, equal_nan=True) for y in drawn)


def test_differences_are_a_picture_of_every_pair(held: dict[str, Any]) -> None:
    better = np.array([[False, True, False], [False] * 3, [False] * 3])
    values = np.array([[0.0, -0.5, 0.001], [0.5, 0.0, np.nan], [-0.001, np.nan, 0.0]])
    found = Differences("cmd", ("a", "$b$", "c"), values, values - 0.1, values + 0.1)
    assert found.better.tolist() == better.tolist()
    figure = found.plot()
    (ax,) = figure.axes
    said = sorted(text.get_text() for text in ax.texts)
    # Nothing where a difference is undefined; brackets where it is not resolved.
    assert said == ["(0.00)", "(0.00)", "+0.50", "-0.50"]
    assert [tick.get_text().strip() for tick in ax.get_yticklabels()] == ["a", "$b$", "c"]
    shown = np.asarray(ax.images[0].get_array())
    # Lower is better: the first row's method is the better one.
    assert shown[0, 1] == 1 and shown[1, 0] == -1 and shown[0, 2] == 0
    inside = Figure().subplots()
    assert held["differences"].plot(inside) is inside.figure


def test_divergences_are_shares_of_pairs_at_least_so_far() -> None:
    grid = np.array([[0.0, 1.0], [2.0, np.nan]], dtype=np.float32)
    found = Divergences(np.stack((grid, 10 * grid)), grid + 4)
    ax = Figure().subplots()
    assert found.plot(ax, names=("mine", "$other$")) is ax.figure
    lines = {str(line.get_label()).strip(): line for line in ax.lines}
    assert set(lines) == {"mine", "$other$", "empty circuit", "_worst"}
    for name, largest in (("mine", 2.0), ("$other$", 20.0), ("empty circuit", 6.0)):
        x, y = (np.asarray(axis) for axis in lines[name].get_data())
        assert (x[0], y[0]) == (0.0, 1.0) and (x[-1], y[-1]) == pytest.approx((largest, 1 / 3))
        # Of three pairs, two are at least as far as the second one.
        assert y[2] == pytest.approx(2 / 3)
    assert len(found.plot().axes[0].lines) == 6
    with pytest.raises(BadUsage, match="names must be 2"):
        found.plot(names=("one",))


@pytest.mark.slow
def test_an_adversarial_run_has_its_histograms(tmp_path: Path) -> None:
    experiment = ma.AdversarialExperiment(
        NAME,
        NAME,
        ("truth", "random@9"),
        n_clean=12,
        n_corrupted=12,
        n_resamples=30,
        n_permutations=30,
    )
    results = ma.run(experiment, tmp_path, progress=SILENT)
    figure = results.plot()
    assert [ax.get_title("left") for ax in figure.axes] == [
        record.method.name for record in results.records
    ]
    record = results.records[0]
    assert len(record.plot().axes) == 2 and "<svg" in record._repr_html_()
    ax = Figure().subplots()
    assert record.plot(ax) is ax.figure and ax.get_yscale() == "log"
    drawn = sum(float(np.sum(each.get_data().values)) for each in ax.patches[:1])
    assert drawn == record.n == 144


def test_a_record_without_a_figure_says_so(held: dict[str, Any]) -> None:
    with pytest.raises(BadUsage, match="of the kind circuits has no figure"):
        held["record"].changed(tables=[]).plot()


def test_tables_have_one_row_for_each_thing(held: dict[str, Any]) -> None:
    pytest.importorskip("pandas")
    scores, curve, record = held["scores"], held["curve"], held["record"]
    frame = scores.to_pandas()
    assert len(frame) == 262 and frame["edge"][0] == scores.place_name(int(scores.ranking()[0]))
    assert frame["score"].is_monotonic_decreasing
    assert len(held["circuit"].to_pandas()) == 9
    assert held["pairs"].to_pandas()["clean"].tolist() == [x.clean for x in held["pairs"]]
    assert len(curve.to_pandas()) == len(record.table("curve"))
    assert record.to_pandas()["value"][0] == pytest.approx(curve.cpr, nan_ok=True)
    everything = held["results"].to_pandas()
    assert set(everything["method"]) == {"eap"} and {"model", "task", "name"} <= set(everything)
    assert len(everything) == sum(len(x.measures) for x in held["results"].records)


def test_without_pandas_one_line_names_the_extra(
    held: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(MissingExtra, match=r"pip install 'mechassay\[pandas\]'"):
        data_frame({})
    with pytest.raises(MissingExtra):
        held["scores"].to_pandas()
    assert len(held["scores"].columns()["edge"]) == 262


def test_pairs_are_stored_with_their_source(held: dict[str, Any], tmp_path: Path) -> None:
    pairs, path = held["pairs"], tmp_path / "pairs.jsonl"
    pairs.save(path)
    again = ma.Pairs.load(path)
    assert again == pairs and again.content_hash == pairs.content_hash
    assert again.source == pairs.source and again.dropped == pairs.dropped
    lines = path.read_text("utf-8").splitlines()
    path.write_text("\n".join(lines[:-1]) + "\n", encoding="utf-8")
    with pytest.raises(BadFile, match="truncated or changed"):
        ma.Pairs.load(path)
    path.write_text('{"kind": "other"}\n', encoding="utf-8")
    with pytest.raises(BadFile, match="holds no pairs"):
        ma.Pairs.load(path)
    with pytest.raises(BadFile, match="not a file of pairs"):
        ma.Pairs.load(tmp_path / "none.jsonl")


def test_a_record_is_stored(held: dict[str, Any], tmp_path: Path) -> None:
    held["curve"].save(tmp_path / "record.json")
    again = ma.read_record(tmp_path / "record.json")
    assert again.value("cmd") == pytest.approx(held["curve"].cmd, nan_ok=True)
    assert ma.read_record(str(tmp_path / "record.json")).n == again.n
    with pytest.raises(BadFile, match="cannot be read"):
        ma.read_record(tmp_path / "none.json")
    assert again.table("curve").rows() == held["record"].table("curve").rows()


def test_a_whole_curve_is_stored(held: dict[str, Any], tmp_path: Path) -> None:
    curve, file = held["curve"], tmp_path / "curve.safetensors"
    assert curve.save(file) == file
    again = FaithfulnessCurve.load(file)
    told = {"exclude": {"provenance"}}
    assert again.record().model_dump_json(**told) == curve.record().model_dump_json(**told)
    assert (again.label, again.model, again.seed) == (curve.label, curve.model, curve.seed)
    assert again.drawn.keys() == curve.drawn.keys() == {"random", "random-paths"}
    for seed, sweep in curve.drawn["random-paths"].items():
        np.testing.assert_array_equal(
            again.drawn["random-paths"][seed].per_example, sweep.per_example
        )
    assert again.random_cmd == pytest.approx(curve.random_cmd, nan_ok=True)
    np.testing.assert_array_equal(
        ma.circuits.differences_of([again, curve]).values, np.zeros((2, 2))
    )


def test_a_curve_is_not_read_from_other_files(held: dict[str, Any], tmp_path: Path) -> None:
    curve = held["curve"]
    record = curve.save(tmp_path / "curve.json")
    with pytest.raises(BadFile, match="a record of a faithfulness curve; `read_record` reads it"):
        FaithfulnessCurve.load(record)
    with pytest.raises(BadUsage, match=r"ends in \.safetensors or \.json"):
        curve.save(tmp_path / "curve.csv")
    scores = tmp_path / "scores.safetensors"
    held["scores"].save(scores)
    with pytest.raises(BadFile, match="holds 'edge_scores'; expected 'faithfulness curve'"):
        FaithfulnessCurve.load(scores)
    tensors, header = read_tensors(curve.save(tmp_path / "other.safetensors"), curve.file_kind)
    for broken, reason in (
        ({"fields": {}}, "it lacks 'label'"),
        ({"fields": [1]}, "the whole is no JSON object"),
        ({"fields": {**header["fields"], "seed": "7"}}, "seed is no int: '7'"),
        ({"fields": {**header["fields"], "profile": "x"}}, "Unknown profile 'x'"),
    ):
        write_tensors(scores, tensors, {**header, **broken})
        with pytest.raises(BadFile, match=f"holds no faithfulness curve of this version .{reason}"):
            FaithfulnessCurve.load(scores)
    flat = {**tensors, "controls.empty": tensors["controls.empty"][None]}
    write_tensors(scores, flat, header)
    with pytest.raises(BadFile, match="controls.empty is an array of another type or shape"):
        FaithfulnessCurve.load(scores)


def test_differences_are_stored(held: dict[str, Any], tmp_path: Path) -> None:
    values = np.array([[0.0, -0.5, np.nan], [0.5, 0.0, np.nan], [np.nan] * 3])
    first = Differences("cmd", ("a", "b", "c"), values, values - 0.1, values + 0.2, 0.9)
    first.low[[0, 1], [0, 1]] = first.high[[0, 1], [0, 1]] = 0
    first.low[1, 0], first.high[1, 0] = 0.3, 0.6  # What is turned round has its ends exchanged.
    for number, found in enumerate((first, held["differences"])):
        file = found.save(tmp_path / f"{number}.json")
        again = Differences.load(file)
        assert (again.area, again.names, again.level) == (found.area, found.names, found.level)
        for name in ("values", "low", "high"):
            np.testing.assert_allclose(getattr(again, name), getattr(found, name))
        assert again.ranks() == found.ranks()
    for wrong in ("", "{}", file.read_text().replace('"cpr"', '"cpp"').replace('"cmd"', '"cmm"')):
        file.write_text(wrong)
        with pytest.raises(BadFile, match="not a file of differences"):
            Differences.load(file)


def test_one_pair_is_a_batch_of_one(model: Model, held: dict[str, Any]) -> None:
    assert len(model.batch(held["pair"])) == 1
    curve: FaithfulnessCurve = held["curve"]
    (value,) = ma.circuits.evaluate(
        model, ma.circuits.Circuit.full(model.graph), ma.load_task(NAME).pairs("test", model)[0]
    )
    assert value == pytest.approx(curve.controls.full[0], abs=1e-4)


def test_what_are_no_pairs_is_said(model: Model) -> None:
    with pytest.raises(BadPairs, match="at least one pair"):
        model.batch([])


@pytest.mark.parametrize(
    ("speed", "text"),
    [
        (29330.4, "29,330"),
        (1234567.0, "1,234,567"),
        (293.34, "293"),
        (29.334, "29.3"),
        (2.9334, "2.93"),
        (0.12345, "0.123"),
        (0.0000012345, "0.00000123"),
        (0.0, "0"),
    ],
)
def test_rates(speed: float, text: str) -> None:
    assert rate(speed) == text


@pytest.mark.parametrize(
    ("label", "shown"),
    [
        ("running 12 circuits on pairs", "running 12 circuits on pairs"),
        ("x" * 60, "x" * 27 + "…"),
        ("a[b]", "a[b]"),
    ],
)
def test_a_line_fits_into_80_columns(label: str, shown: str) -> None:
    out = io.StringIO()
    now = [0.0]
    bar = drawn(
        Console(width=80, file=out, force_terminal=True, color_system=None, legacy_windows=False)
    )
    bar.get_time = lambda: now[0]
    task = bar.add_task(label, total=1_000_000)
    for _ in range(10):
        now[0] += 1
        bar.advance(task, 29330)
    bar.console.print(bar.make_tasks_table(bar.tasks))
    (line,) = out.getvalue().splitlines()
    words = line.removeprefix(shown).split()
    assert line.startswith(shown) and len(line.rstrip()) <= 80
    assert words[1:] == ["293300/1000000", "29,330/s", "0:00:10", "left", "0:00:25"]
    assert set(words[0]) <= set("━╸")  # without colours the part that is not done is blank
    assert line.index("293300") - len(shown) >= 7


def test_a_line_for_a_log() -> None:
    assert (
        progress_line("eap", 120, 1000, 40.0)
        == "eap: 120 of 1,000, 3.00/s, 0:00:40 elapsed, 0:04:53 left"
    )
    assert progress_line("eap", 1000, 1000, 40.0) == "eap: 1,000 of 1,000, 25.0/s, 0:00:40 elapsed"
    assert progress_line("eap", 0, 10, 0.0) == "eap: 0 of 10, 0/s, 0:00:00 elapsed"


def test_without_a_terminal_a_line_is_written_every_30_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with Bar().track("eap", 50) as advance:
        for _ in range(7):
            now[0] += 10
            advance(5)
    lines = capsys.readouterr().err.splitlines()
    assert [each.partition(",")[0] for each in lines] == [
        "eap: 15 of 50",
        "eap: 30 of 50",
        "eap: 35 of 50",
    ]


def test_what_takes_less_leaves_a_log_empty(capsys: pytest.CaptureFixture[str]) -> None:
    with Bar().track("eap", 3) as advance:
        advance(3)
    assert capsys.readouterr().err == ""


def test_a_notebook_has_a_bar() -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    code = """
import time
from mechassay.utils.display import BAR
with BAR.track("eap", 4) as advance:
    for _ in range(4):
        time.sleep(0.2)
        advance(1)
with BAR.track("short", 2) as advance:
    advance(2)
try:
    with BAR.track("stopped", 9) as advance:
        advance(3)
        raise KeyboardInterrupt
except KeyboardInterrupt:
    pass
"""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    shown, short, stopped = notebook.cells[0].outputs
    assert "short: 2 of 2" in short["data"]["text/plain"]
    assert "stopped: 3 of 9" in stopped["data"]["text/plain"]
    assert shown["output_type"] == "display_data"
    assert "eap: 4 of 4" in shown["data"]["text/plain"]
    assert '<progress value="4" max="4"' in shown["data"]["text/html"]


@pytest.mark.parametrize(
    ("n", "names", "told"),
    [
        (0, ("row",), "0 rows"),
        (1, ("row",), "1 row"),
        (2000, ("row",), "2,000 rows"),
        (1, ("batch", "batches"), "1 batch"),
        (3, ("batch", "batches"), "3 batches"),
        (1, ("piece of evidence was", "pieces of evidence were"), "1 piece of evidence was"),
    ],
)
def test_one_is_said_otherwise_than_several(n: int, names: tuple[str, ...], told: str) -> None:
    assert counted(n, *names) == told
