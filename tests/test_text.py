"""Numbers and names as short texts."""

from __future__ import annotations

import pytest

from mechassay.text import counted


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
