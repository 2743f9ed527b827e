"""The published exchange of indices, against a slow version of what the public call does."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from helpers.tiny_gguf import of_bytes, of_words
from mechassay.errors import UnknownName
from mechassay.gym import compat_batches, load_gym_task, region_lengths
from mechassay.models.model import make_model
from mechassay.prompts.interchange_batch import InterchangeBatch
from mechassay.testing.tiny import build

PAD = 0


def slow(batch: InterchangeBatch, region: str) -> list[dict[str, Any]]:
    """Prompts padded on the right to the longest, and pyvene's reading of the call

    unit_locations = {"sources->base": ([None, pos[1]], pos)} with pos = [source, base]: the
    source is read at pos[1], the base of the pair that is collected at pos[0].
    """
    rows: list[dict[str, Any]] = []
    for row in range(len(batch)):
        base, source = (
            table[row][mask[row]].tolist()
            for table, mask in ((batch.base, batch.base_mask), (batch.source, batch.source_mask))
        )
        at = [
            int(column[row]) - (table.shape[1] - len(own))
            for column, table, own in zip(
                batch.columns[region], (batch.base, batch.source), (base, source), strict=True
            )
        ]
        pos = [at[1], at[0]]
        rows.append(
            {
                "written": base[at[0]],
                "read": seen_on_the_right(source, pos[1]),
                "fitted": seen_on_the_right(base, pos[0]),
                "logits": seen_on_the_right(base, len(base) - 1),
            }
        )
    return rows


Seen = tuple[list[int], int, int]


def seen_on_the_right(tokens: list[int], place: int) -> Seen:
    """What the token at a place of a prompt padded on the right sees; itself, and its place."""
    padded = tokens + [PAD] * (place + 1 - len(tokens))
    return tokens[: place + 1], padded[place], place


def seen(tokens: Any, mask: Any, column: int) -> Seen:
    """The same of a column of a table, as `Decoder.context` reads its mask."""
    begin = mask.tolist().index(True)
    return tokens[: column + 1][mask[: column + 1]].tolist(), int(tokens[column]), column - begin


@pytest.mark.parametrize("name", ["garden_mvrr", "gss_subord_pp", "garden_npz_obj", "agr_gender"])
def test_the_mix_up_is_that_of_the_public_call(name: str) -> None:
    task = load_gym_task(name)
    pairs = task.interchanges("train", limit=40)
    batch = pairs.batch(of_bytes())
    mixed = compat_batches(batch, "causalgym-2024", pad=PAD)
    different = 0
    for region in task.tested:
        expected = slow(batch, region)
        for row, each in enumerate(expected):
            at = [[int(side[row]) for side in of.columns[region]] for of in mixed]
            intervened, fitted = mixed
            assert int(intervened.base[row, at[0][0]]) == each["written"]
            read = seen(intervened.source[row], intervened.source_mask[row], at[0][1])
            assert read == each["read"]
            assert seen(fitted.base[row], fitted.base_mask[row], at[1][0]) == each["fitted"]
            last = int(intervened.columns["last"][0][row])
            logits = seen(intervened.base[row], intervened.base_mask[row], last)
            assert logits == each["logits"]
            right = seen(
                batch.source[row], batch.source_mask[row], int(batch.columns[region][1][row])
            )
            different += read != right
    report = region_lengths(batch, task.tested)
    assert different == int(report.shifted.sum()) > 0


def test_it_changes_nothing_where_regions_end_at_the_same_places() -> None:
    task = load_gym_task("npi_any_subj-relc")
    pairs = task.interchanges("test", limit=20)
    words = of_words(text for pair in pairs for text in (pair.base, pair.source, *pair.labels))
    batch = pairs.batch(words)
    assert region_lengths(batch, task.tested).share == 0
    for each in compat_batches(batch):
        assert each.content_hash == batch.content_hash


def test_one_constructed_pair() -> None:
    """Base [5 6 7 8], source [5 7 8]; the region ends at 2 in the base and at 1 in the source."""
    batch = InterchangeBatch.from_tokens(
        [[5, 6, 7, 8]], [[5, 7, 8]], [[1]], base_labels=[[2]], columns={"x": ([2], [1])}
    )
    intervened, fitted = compat_batches(batch, pad=9)
    assert intervened.source.tolist() == [[5, 7, 8, 9]] and intervened.base.tolist() == [
        [5, 6, 7, 8]
    ]
    assert [side.tolist() for side in intervened.columns["x"]] == [[2], [2]]
    assert [side.tolist() for side in fitted.columns["x"]] == [[1], [1]]
    assert [side.tolist() for side in intervened.columns["last"]] == [[3], [2]]
    assert [side.tolist() for side in batch.columns["x"]] == [[2], [1]]


def test_without_compat_nothing_happens() -> None:
    batch = InterchangeBatch.from_tokens([[1, 2]], [[3]], [[4]])
    assert compat_batches(batch, None) == (batch, batch)
    with pytest.raises(
        UnknownName, match="Unknown compat 'causalgym'. Did you mean 'causalgym-2024'"
    ):
        compat_batches(batch, "causalgym")


def test_padding_behind_a_prompt_sees_the_prompt_alone() -> None:
    decoder = make_model(build("neox"), check=False).decoder
    ctx = decoder.context(torch.tensor([[False, True, True, False, False]]))
    assert ctx.position_ids.tolist() == [[0, 0, 1, 2, 3]]
    allowed = ctx.allowed[None]
    assert allowed is not None
    assert allowed[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [0, 1, 0, 0, 0],
        [0, 1, 1, 0, 0],
        [0, 1, 1, 0, 0],
        [0, 1, 1, 0, 0],
    ]
