"""The file of divergences: what is written comes back, and nothing else is read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from mechassay.adversarial.divergence import DivergenceFile
from mechassay.errors import BadFile
from mechassay.stats.partial_grid import PartialGrid


def test_values_come_back_from_their_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    grid = DivergenceFile(
        ("one", "two"),
        rng.normal(size=(2, 300, 4)).astype(np.float32),
        rng.normal(size=(300, 4)).astype(np.float32),
    )
    for number in range(2):
        grid.save(tmp_path / f"{number}.parquet")
    assert (tmp_path / "0.parquet").read_bytes() == (tmp_path / "1.parquet").read_bytes()
    back = DivergenceFile.load(tmp_path / "0.parquet", ("two", "one"))
    assert (
        np.array_equal(back.circuits, grid.circuits[::-1])
        and np.array_equal(back.corrupted, grid.corrupted)
        and back.paired
    )
    table = pyarrow.parquet.read_table(tmp_path / "0.parquet")
    assert [str(field.type) for field in table.schema][:2] == ["uint16", "uint8"]
    assert table["clean"].to_pylist()[:9] == [0, 0, 0, 0, 1, 1, 1, 1, 2] and table[
        "corrupted"
    ].to_pylist()[:5] == [0, 1, 2, 3, 0]
    alone = DivergenceFile(("one",), grid.circuits[:1, :, 0], grid.corrupted[:, 0], paired=False)
    alone.save(tmp_path / "alone.parquet")
    assert not DivergenceFile.load(tmp_path / "alone.parquet", ("one",)).paired
    with pytest.raises(BadFile, match="not a file of divergences of three"):
        DivergenceFile.load(tmp_path / "0.parquet", ("three",))
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "0.parquet").read_bytes()[:100])
    with pytest.raises(BadFile, match="cut.parquet: not a file of divergences"):
        DivergenceFile.load(tmp_path / "cut.parquet", ("one",))


def test_the_file_has_the_pairs_of_the_part_alone(tmp_path: Path) -> None:
    part = PartialGrid.of("aab", "abba")
    values = np.where(part.mask, np.arange(12.0).reshape(3, 4), np.nan).astype(np.float32)
    DivergenceFile(("one",), values[None] + 1, values).save(tmp_path / "v.parquet")
    back = DivergenceFile.load(tmp_path / "v.parquet", ["one"])
    np.testing.assert_array_equal(back.corrupted, values)
    np.testing.assert_array_equal(back.circuits[0], values + 1)
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(tmp_path / "v.parquet")
    assert list(zip(table["clean"].to_pylist(), table["corrupted"].to_pylist(), strict=True)) == [
        (0, 0),
        (0, 3),
        (1, 0),
        (1, 3),
        (2, 1),
        (2, 2),
    ]
    smaller = table.replace_schema_metadata({"shape": "2,4"})
    pyarrow.parquet.write_table(smaller, tmp_path / "w.parquet")
    with pytest.raises(BadFile, match="not a file of divergences"):
        DivergenceFile.load(tmp_path / "w.parquet", ["one"])
