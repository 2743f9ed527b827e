"""Interchange batches: what holds for a row holds whatever stands beside it in the batch."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizer, PreTrainedTokenizerFast

from mechassay.errors import BadFile, BadPairs, BadUsage, UnknownName
from mechassay.prompts.batch import NO_TOKEN, Batch
from mechassay.prompts.interchange_batch import InterchangeBatch
from mechassay.prompts.interchanges import InterchangePair
from mechassay.prompts.pairs import Pair, Pairs, filled

N = NO_TOKEN

# --- what a batch is, without its padding: one row at a time, in plain Python ---------------------


def row_of(batch: InterchangeBatch, row: int) -> dict[str, Any]:
    """All that a batch says of a row, counted from the prompts' own first tokens."""
    base = [t for t, m in zip(batch.base[row], batch.base_mask[row], strict=True) if m]
    source = [t for t, m in zip(batch.source[row], batch.source_mask[row], strict=True) if m]
    skip = batch.base.shape[1] - len(base), batch.source.shape[1] - len(source)
    own = None if batch.base_labels is None else batch.base_labels[row].tolist()
    return {
        "base": list(map(int, base)),
        "source": list(map(int, source)),
        "label": [t for t in batch.labels[row].tolist() if t != N],
        "base_label": None if own is None else [t for t in own if t != N],
        "columns": {
            name: (int(a[row]) - skip[0], int(b[row]) - skip[1])
            for name, (a, b) in batch.columns.items()
        },
        "names": (batch.ids[row], batch.groups[row], batch.kinds[row]),
        "value": None if batch.values is None else finite(float(batch.values[row])),
    }


def finite(value: float) -> float | None:
    return None if math.isnan(value) else value


def rows_of(batch: InterchangeBatch) -> list[dict[str, Any]]:
    return [row_of(batch, row) for row in range(len(batch))]


tokens = st.lists(st.integers(0, 5), min_size=1, max_size=7)
label = st.lists(st.integers(0, 5), min_size=1, max_size=4)


@st.composite
def given_rows(draw: st.DrawFn) -> dict[str, Any]:
    """The arguments of `from_tokens`, of rows of unequal lengths."""
    n = draw(st.integers(1, 6))
    base, source = (draw(st.lists(tokens, min_size=n, max_size=n)) for _ in range(2))
    at = tuple([draw(st.integers(-len(row), len(row) - 1)) for row in x] for x in (base, source))
    some = st.one_of(st.none(), label)
    return {
        "base": base,
        "source": source,
        "labels": draw(st.lists(label, min_size=n, max_size=n)),
        "base_labels": draw(st.lists(some, min_size=n, max_size=n)),
        "columns": {"x": at, "first": 0},
        "kinds": [draw(st.sampled_from("ab")) for _ in range(n)],
        "groups": [draw(st.one_of(st.none(), st.just("g"))) for _ in range(n)],
        "values": [draw(st.sampled_from([None, math.nan, 0.0, -2.5])) for _ in range(n)],
    }


# --- known answers --------------------------------------------------------------------------------


def two() -> InterchangeBatch:
    """A base of three tokens and a longer source; a base of five and a source of one."""
    return InterchangeBatch.from_tokens(
        base=[[1, 2, 3], [4, 5, 6, 7, 8]],
        source=[[1, 2, 9, 9], [4]],
        labels=[[11], [12, 13, 14]],
        base_labels=[[15, 16], None],
        columns={"x": ([1, -2], [-1, 0]), "first": 0},
        ids=["p", "q"],
        groups=[None, "g"],
    )


def test_tables_have_their_own_widths() -> None:
    batch = two()
    assert batch.base.tolist() == [[0, 0, 1, 2, 3], [4, 5, 6, 7, 8]]
    assert batch.base_mask.tolist() == [[False, False, True, True, True], [True] * 5]
    assert batch.source.tolist() == [[1, 2, 9, 9], [0, 0, 0, 4]]
    assert batch.source_mask.tolist() == [[True] * 4, [False, False, False, True]]
    assert batch.labels.tolist() == [[11, N, N], [12, 13, 14]]
    assert batch.base_labels is not None
    assert batch.base_labels.tolist() == [[15, 16], [N, N]]
    columns = {name: (a.tolist(), b.tolist()) for name, (a, b) in batch.columns.items()}
    assert columns == {
        "last": ([4, 4], [3, 3]),
        "x": ([3, 3], [3, 3]),
        "first": ([2, 0], [0, 3]),
    }
    assert (batch.ids, batch.groups, batch.kinds) == (("p", "q"), ("p", "g"), ("", ""))
    assert [x.tolist() for x in batch.column("x")] == [[3, 3], [3, 3]]


def test_the_first_difference_is_counted_from_the_prompts_starts() -> None:
    batch = InterchangeBatch.from_tokens(
        base=[[1, 2, 3], [4, 5, 6, 7, 8], [1, 2], [1, 2, 3], [9]],
        source=[[1, 2, 9, 9], [4], [1, 2, 3], [1, 2, 3], [8]],
        labels=[0] * 5,
    )
    #       base columns: __123 differs in the third; 45678 goes on where its source ends; ___12 is
    #       the beginning of its source, __123 is its source; ____9 differs at once.
    assert batch.first_difference().tolist() == [4, 1, 5, 5, 4]


def test_the_labels_tokens_are_written_after_the_prompt_all_but_the_last() -> None:
    forced = two().teacher_forced()
    #                              p: 1 2 3 | q: 4 5 6 7 8 12 13
    assert forced.base.tolist() == [[0, 0, 0, 0, 1, 2, 3], [4, 5, 6, 7, 8, 12, 13]]
    assert forced.base_mask.sum(dim=1).tolist() == [3, 7]
    assert forced.targets.tolist() == [[N, N, 11], [12, 13, 14]]
    assert forced.columns["last"][0].tolist() == [6, 4] and forced.columns["last"][1].tolist() == [
        3,
        3,
    ]
    assert forced.columns["x"][0].tolist() == [5, 3]
    assert forced.source.tolist() == two().source.tolist()


def test_the_bases_own_labels_are_forced_alike() -> None:
    batch = two().select([0])
    forced = batch.teacher_forced(base_labels=True)
    assert forced.base.tolist() == [[1, 2, 3, 15]] and forced.targets.tolist() == [[15, 16]]
    # From a batch that is forced by another label too.
    again = batch.teacher_forced().teacher_forced(base_labels=True)
    assert again.base.tolist() == forced.base.tolist()
    with pytest.raises(BadPairs, match="Pair q has no label of its base"):
        two().teacher_forced(base_labels=True)
    with pytest.raises(BadPairs, match="Pair 0 has no label of its base"):
        InterchangeBatch.from_tokens([[1]], [[2]], [3]).teacher_forced(base_labels=True)


def test_single_tokens_leave_the_bases_as_they_are() -> None:
    batch = InterchangeBatch.from_tokens([[1, 2], [3]], [[4], [5, 6]], torch.tensor([7, 8]))
    forced = batch.teacher_forced()
    assert forced.base.tolist() == batch.base.tolist()
    assert forced.targets.tolist() == batch.labels.tolist() == [[7], [8]]


def test_ids_of_any_form_are_read() -> None:
    ids, mask = torch.tensor([[1, 2, 0], [3, 4, 5]]), torch.tensor([[1, 1, 0], [1, 1, 1]]) > 0
    batch = InterchangeBatch.from_tokens(
        ids,
        torch.tensor([[6, 7], [8, 9]]),
        torch.tensor([[1, N], [2, 3]]),
        columns={"same": [1, 0], "tensor": (torch.tensor([0, 1]), 1)},
        base_mask=mask,
    )
    assert [row["base"] for row in rows_of(batch)] == [[1, 2], [3, 4, 5]]
    assert [row["label"] for row in rows_of(batch)] == [[1], [2, 3]]
    assert [row["columns"] for row in rows_of(batch)] == [
        {"last": (1, 1), "same": (1, 1), "tensor": (0, 1)},
        {"last": (2, 1), "same": (0, 0), "tensor": (1, 1)},
    ]


def test_a_batch_prints_as_one_line() -> None:
    line = repr(two())
    assert line == (
        "InterchangeBatch(n=2, base='3 to 5', source='1 to 4', label='1 to 3',"
        " columns=('last', 'x', 'first'), device='cpu')"
    )
    html = replace(two(), kinds=("a", "a"), alignment={"<why>": 2})._repr_html_()
    assert "2 interchanges" in html and "2 a" in html and "2 &lt;why&gt;" in html


# --- properties -----------------------------------------------------------------------------------


@given(given_rows())
def test_a_batch_says_of_a_row_what_was_given(rows: dict[str, Any]) -> None:
    batch = InterchangeBatch.from_tokens(**rows)
    known = any(rows["base_labels"])
    for i, row in enumerate(rows_of(batch)):
        base, source, at = rows["base"][i], rows["source"][i], rows["columns"]["x"]
        assert row == {
            "base": base,
            "source": source,
            "label": rows["labels"][i],
            "base_label": (rows["base_labels"][i] or []) if known else None,
            "columns": {
                "last": (len(base) - 1, len(source) - 1),
                "x": (at[0][i] % len(base), at[1][i] % len(source)),
                "first": (0, 0),
            },
            "names": (str(i), rows["groups"][i] or str(i), rows["kinds"][i]),
            "value": None if rows["values"][i] is None else finite(rows["values"][i]),
        }


@given(given_rows(), st.data())
def test_selection_changes_no_row(rows: dict[str, Any], data: st.DataObject) -> None:
    batch = InterchangeBatch.from_tokens(**rows)
    if data.draw(st.booleans()):
        batch = batch.teacher_forced()
    chosen = data.draw(st.lists(st.integers(0, len(batch) - 1), min_size=1, max_size=8))
    part = batch.select(chosen if data.draw(st.booleans()) else torch.tensor(chosen))
    assert rows_of(part) == [row_of(batch, row) for row in chosen]
    assert bool(part.base_mask.any(dim=0).all()) and bool(part.source_mask.any(dim=0).all())
    assert bool((part.labels != N).any(dim=0).all())


@given(given_rows(), st.integers(1, 40))
def test_chunks_lose_nothing_and_keep_to_their_size(rows: dict[str, Any], most: int) -> None:
    batch = InterchangeBatch.from_tokens(**rows)
    seen: dict[int, dict[str, Any]] = {}
    for numbers, part in batch.chunks(most):
        assert len(part) == 1 or max(part.base.numel(), part.source.numel()) <= most
        seen |= dict(zip(numbers, rows_of(part), strict=True))
    assert [seen[row] for row in range(len(batch))] == rows_of(batch)


@given(given_rows(), st.integers(0, 9), st.booleans())
def test_what_fills_the_padding_and_where_it_stands_is_irrelevant(
    rows: dict[str, Any], pad: int, left: bool
) -> None:
    made = InterchangeBatch.from_tokens(**rows)
    tables: dict[str, Any] = {}
    for side in ("base", "source"):
        width = max(map(len, rows[side])) + 2
        gaps = [[pad] * (width - len(row)) for row in rows[side]]
        whole = [g + r if left else r + g for g, r in zip(gaps, rows[side], strict=True)]
        real = [
            [not left] * (len(r) if not left else len(g))
            + [left] * (len(g) if not left else len(r))
            for g, r in zip(gaps, rows[side], strict=True)
        ]
        tables |= {side: torch.tensor(whole), f"{side}_mask": torch.tensor(real)}
    again = InterchangeBatch.from_tokens(**{**rows, **tables}, pad=pad)
    assert rows_of(again) == rows_of(made)
    assert again.content_hash == made.content_hash
    assert again.first_difference().tolist() == made.first_difference().tolist()
    assert rows_of(again.teacher_forced()) == rows_of(made.teacher_forced())


@given(given_rows())
def test_first_differences_are_those_of_each_row(rows: dict[str, Any]) -> None:
    batch = InterchangeBatch.from_tokens(**rows)
    wide = batch.base.shape[1]
    for base, source, found in zip(
        rows["base"], rows["source"], batch.first_difference().tolist(), strict=True
    ):
        alike = 0
        while alike < min(len(base), len(source)) and base[alike] == source[alike]:
            alike += 1
        assert found == wide - len(base) + alike


@given(given_rows())
def test_each_token_of_a_label_is_predicted_where_the_formula_says(rows: dict[str, Any]) -> None:
    batch = InterchangeBatch.from_tokens(**rows)
    forced = batch.teacher_forced()
    w, m = forced.base.shape[1], forced.labels.shape[1]
    for i, (base, said) in enumerate(zip(rows["base"], rows["labels"], strict=True)):
        before = [t for t in base + said[:-1]]
        assert forced.base[i, w - len(before) :].tolist() == before
        assert forced.base_mask[i].tolist() == [False] * (w - len(before)) + [True] * len(before)
        for j, token in enumerate(said):
            column = w - len(said) + j
            read = [t for t, k in zip(forced.base[i], forced.base_mask[i], strict=True) if k]
            context = read[: column + 1 - (w - len(before))]
            assert list(map(int, context)) == base + said[:j]
            assert forced.targets[i, m - (w - column)] == token
        assert [t for t in forced.targets[i].tolist() if t != N] == said
        columns = row_of(forced, i)["columns"]
        assert columns == row_of(batch, i)["columns"], "those of the prompt"
    assert rows_of(forced.teacher_forced()) == rows_of(forced)
    assert forced.content_hash == batch.content_hash


@settings(deadline=None)
@given(rows=given_rows())
def test_files_hold_all_of_a_batch(tmp_path_factory: Any, rows: dict[str, Any]) -> None:
    path = tmp_path_factory.mktemp("saved") / "batch.jsonl"
    batch = InterchangeBatch.from_tokens(**rows)
    batch = replace(batch, alignment={"cut": 1}, absent={"y": "No y."})
    for each in (batch, batch.teacher_forced()):
        read = InterchangeBatch.load(each.save(path))
        assert rows_of(read) == rows_of(batch) and read.content_hash == batch.content_hash
        assert (read.alignment, read.absent) == (batch.alignment, batch.absent)


def test_files_that_are_truncated_foreign_or_changed_are_refused(tmp_path: Path) -> None:
    path = two().save(tmp_path / "a" / "batch.jsonl")
    lines = path.read_text("utf-8").splitlines()
    for text, said in (
        ("\n".join(lines[:-1]), "truncated or changed"),
        (path.read_text("utf-8").replace("[11]", "[12]"), "truncated or changed"),
        ("", "not a file of interchanges"),
        (lines[0].replace("interchanges", "pairs"), "holds no interchanges"),
        ('{"kind": "interchanges", "format": 1}\n', "not a file of interchanges"),
    ):
        path.write_text(text)
        with pytest.raises(BadFile, match=said):
            InterchangeBatch.load(path)
    with pytest.raises(BadFile, match="not a file of interchanges"):
        InterchangeBatch.load(tmp_path / "missing.jsonl")


def test_values_are_part_of_what_a_batch_says(tmp_path: Path) -> None:
    with_values = replace(two(), values=torch.tensor([1.5, math.nan], dtype=torch.float64))
    assert with_values.content_hash != two().content_hash
    nothing = replace(two(), values=torch.full((2,), math.nan, dtype=torch.float64))
    assert nothing.content_hash == two().content_hash
    assert with_values.select([1]).content_hash == two().select([1]).content_hash
    read = InterchangeBatch.load(with_values.save(tmp_path / "batch.jsonl"))
    assert read.values is not None and read.values.tolist()[0] == 1.5
    assert math.isnan(float(read.values[1])) and read.content_hash == with_values.content_hash
    assert with_values.to_pandas()["value"].iloc[0] == 1.5
    assert InterchangeBatch.load(nothing.save(tmp_path / "no.jsonl")).values is None
    pairs = [InterchangePair(str(v), "a b", "a c", " d", " b", value=v) for v in (math.nan, 2.0)]
    assert pairs[0] == replace(pairs[0], value=float("nan")) != replace(pairs[0], value=0.0)


def test_rows_as_a_table() -> None:
    table = two().to_pandas()
    assert list(table["base"]) == [[1, 2, 3], [4, 5, 6, 7, 8]]
    assert table["columns"][1] == {"x": [3, 0], "first": [0, 0]}
    assert list(two().select([]).to_pandas().columns) == list(table.columns)


@pytest.mark.gpu
def test_other_devices_give_the_same() -> None:
    here, there = two(), two().to("cuda")
    assert there.select([1, 0]).places.device.type == "cuda"
    for make in (
        lambda x: x,
        lambda x: x.select([1, 0]),
        lambda x: x.teacher_forced(),
        lambda x: x.select([0]).teacher_forced(base_labels=True),
    ):
        ours, theirs = make(here), make(there)
        assert rows_of(theirs) == rows_of(ours) and theirs.content_hash == ours.content_hash
        assert theirs.targets.tolist() == ours.targets.tolist()
        assert theirs.first_difference().tolist() == ours.first_difference().tolist()
    with pytest.raises(BadPairs, match="Pair q has no label of its base"):
        there.teacher_forced(base_labels=True)


# --- what cannot be done --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"base": [], "source": []}, "at least one interchange"),
        ({"source": [[1]]}, "A batch of 2 bases needs 2 sources; got 1."),
        ({"labels": [3]}, "needs 2 labels; got 1."),
        ({"ids": ["p"]}, "needs 2 ids; got 1."),
        ({"base_labels": [3]}, "needs 2 base labels; got 1."),
        ({"base": [[1], []]}, "Pair 1: its base has no tokens."),
        ({"source": [[], [2]]}, "Pair 0: its source has no tokens."),
        ({"labels": [[1], []]}, "Pair 1: its label has no tokens."),
        ({"labels": [[1], [N]]}, "Pair 1: its label has no tokens."),
        ({"columns": {"x": ([0, 2], 0)}}, "Pair 1: its base has 1 tokens, and no token 2"),
        ({"columns": {"x": (0, [0, -4])}}, "Pair 1: its source has 3 tokens, and no token -4"),
        (
            {"columns": {"x": [0]}},
            r"columns\['x'\] needs an index for each of 2 base prompts; got 1",
        ),
    ],
)
def test_token_ids_that_make_no_batch(changes: dict[str, Any], said: str) -> None:
    rows = {"base": [[1, 2], [3]], "source": [[4], [5, 6, 7]], "labels": [8, 9]} | changes
    with pytest.raises(BadPairs, match=said) as refused:
        InterchangeBatch.from_tokens(**rows)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"columns": {"last": 0}}, "columns has 'last', which means the last token of prompts"),
        ({"columns": {"all": 0}}, "which means the all tokens of prompts"),
        ({"columns": {"x": (0, 0, 0)}}, "got a tuple of 3"),
        (
            {"base_mask": torch.ones(1, 2) > 0},
            r"base_mask must be a tensor or array .* \(1, 2\) for tokens of lists",
        ),
    ],
)
def test_arguments_that_mean_nothing(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(BadUsage, match=said):
        InterchangeBatch.from_tokens([[1, 2]], [[4]], [8], **changes)


def test_a_column_that_is_not_there() -> None:
    with pytest.raises(UnknownName, match="Unknown column 'frist'. Did you mean 'first'"):
        two().column("frist")


# --- text -----------------------------------------------------------------------------------------

VOCABULARY = ["[UNK]", "[BOS]", *"0123456789", "+", "=", " is", " ", " 7", "Ann", " saw", " Bob"]


def tokenizer() -> PreTrainedTokenizerFast:
    """Digits are tokens; a space joins with a word, and with the digit 7."""
    made = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(VOCABULARY)}, unk_token="[UNK]")
    )
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r" 7| ?[A-Za-z]+|."), behavior="isolated")  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]", bos_token="[BOS]")


def spelled(ids: list[int]) -> list[str]:
    return [VOCABULARY[i] for i in ids]


def words_of(batch: InterchangeBatch, row: int) -> tuple[list[str], ...]:
    said = row_of(batch, row)
    texts = (said["base"], said["source"], said["label"], said["base_label"] or [])
    return tuple(spelled(ids) for ids in texts)


def a_sum(id: str, ours: tuple[str, str], theirs: tuple[str, str], **changes: Any) -> Pair:
    clean, other = (filled("{a}+{b}=", {"a": a, "b": b}) for a, b in (ours, theirs))
    answers = tuple((str(sum(map(int, terms))),) for terms in (ours, theirs))
    made: dict[str, Any] = {
        "answers": answers[0],
        "foils": ("1",),
        "counterfactual_answers": answers[1],
        "spans": clean.spans,
        "counterfactual_spans": other.spans,
    }
    return Pair(id, clean.text, other.text, **{**made, **changes})


def test_pairs_of_unequal_lengths_become_interchanges() -> None:
    pairs = Pairs(
        [a_sum("p", ("27", "61"), ("5", "314")), a_sum("q", ("9", "1"), ("2", "3"), group="g")],
        source={"counterfactual": "any"},
    )
    batch = InterchangeBatch.from_pairs(pairs, tokenizer(), prepend=[1])
    assert words_of(batch, 0) == (
        ["[BOS]", *"27+61="],
        ["[BOS]", *"5+314="],
        [*"319"],
        [*"88"],
    )
    assert words_of(batch, 1) == (["[BOS]", *"9+1="], ["[BOS]", *"2+3="], ["5"], [*"10"])
    assert row_of(batch, 0)["columns"] == {
        "last": (6, 6),
        "a": (2, 1),
        "a.first": (1, 1),
        "a.last": (2, 1),
        "b": (5, 5),
        "b.first": (4, 3),
        "b.last": (5, 5),
    }
    assert batch.kinds == ("any", "any") and batch.groups == ("p", "g")
    assert dict(batch.alignment) == {"cut": 0, "alternatives": 0}


def test_the_label_is_the_sources_answer_or_the_first_foil() -> None:
    pair = a_sum("p", ("2", "3"), ("1", "1"))
    assert InterchangePair.from_pair(pair).labels == ("2",)
    several = replace(pair, counterfactual_answers=(), foils=("4", "6"))
    batch = InterchangeBatch.from_pairs([several], tokenizer())
    assert words_of(batch, 0)[2] == ["4"] and batch.alignment["alternatives"] == 1
    unknown = replace(several, answers=())
    assert InterchangeBatch.from_pairs([unknown], tokenizer()).base_labels is None


def test_a_part_that_a_prompt_lacks_is_named() -> None:
    bare = a_sum("bare", ("2", "3"), ("1", "1"), counterfactual_spans={"a": (0, 1)})
    batch = InterchangeBatch.from_pairs([a_sum("p", ("2", "3"), ("4", "4")), bare], tokenizer())
    assert set(batch.columns) == {"last", "a", "a.first", "a.last"}
    for name in ("b", "b.first", "b.last"):
        with pytest.raises(BadPairs, match="Pair bare: its source has no token 'b'"):
            batch.column(name)
    with pytest.raises(UnknownName, match=r"Unknown column 'c'.*Known: a, a\.first, a\.last, last"):
        batch.column("c")


def test_what_a_tokenizer_joins_with_the_label_is_cut_from_both_prompts() -> None:
    pairs = [InterchangePair("p", "2+5= ", "1+2+3= ", "7", base_label="4")]
    batch = InterchangeBatch.from_pairs(pairs, tokenizer())
    assert words_of(batch, 0) == ([*"2+5="], [*"1+2+3="], [" 7"], [" ", "4"])
    assert batch.alignment["cut"] == 1
    with pytest.raises(BadPairs, match=r"Pair q: the tokenizer joins the last token of the base"):
        InterchangeBatch.from_pairs([InterchangePair("q", "2+5= ", "1+1=", "7")], tokenizer())
    # A part that is cut off is no part any more.
    span = {"end": (4, 5)}
    cut = replace(pairs[0], base_spans=span, source_spans={"end": (6, 7)})
    with pytest.raises(BadPairs, match="Pair p: its base has no token 'end'"):
        InterchangeBatch.from_pairs([cut], tokenizer()).column("end")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"label": ""}, "its label is empty"),
        ({"label": ()}, "its label is empty"),
        ({"label": "x"}, "the tokenizer does not know 'x'"),
        ({"base_label": "4x"}, "the tokenizer does not know '4x'"),
    ],
)
def test_texts_that_make_no_batch(changes: dict[str, Any], said: str) -> None:
    pair = replace(InterchangePair("p", "2+3=", "1+1=", "2"), **changes)
    with pytest.raises(BadPairs, match=f"Pair p: {said}"):
        InterchangeBatch.from_pairs([pair], tokenizer())


def test_without_a_tokenizer_text_is_refused() -> None:
    pair = InterchangePair("p", "2+3=", "1+1=", "2")
    for model in (None, object()):
        with pytest.raises(BadUsage, match="InterchangeBatch needs a tokenizer"):
            InterchangeBatch.from_pairs([pair], model)
    with pytest.raises(BadPairs, match="at least one interchange"):
        InterchangeBatch.from_pairs([], tokenizer())


def test_parts_need_a_tokenizer_with_offsets() -> None:
    batch = InterchangeBatch.from_pairs([a_sum("p", ("2", "3"), ("4", "4"))], _Letters())
    assert set(batch.columns) == {"last"} and row_of(batch, 0)["base"] == [*b"2+3="]
    with pytest.raises(BadPairs, match="'a' needs a tokenizer with character offsets; _Letters"):
        batch.column("a")


class _Letters(PreTrainedTokenizer):
    """One token a character, in Python, without offsets."""

    @property
    def vocab_size(self) -> int:
        return 128

    def get_vocab(self) -> dict[str, int]:
        return {chr(i): i for i in range(128)}

    def _tokenize(self, text: str, **_: Any) -> list[str]:
        return list(text)

    def _convert_token_to_id(self, token: str) -> int:
        return ord(token[0])

    def _convert_id_to_token(self, index: int) -> str:
        return chr(index)


def test_batches_of_pairs_are_interchanges_too() -> None:
    pairs = Batch.from_tokens([[1, 2], [3]], [[4, 5], [6]], [7, [8, 9]], [[10, 11], 12])
    batch = InterchangeBatch.from_batch(pairs)
    assert [(r["base"], r["source"]) for r in rows_of(batch)] == [([1, 2], [4, 5]), ([3], [6])]
    assert batch.labels.tolist() == [[10], [12]]
    assert batch.base_labels is not None and batch.base_labels.tolist() == [[7], [8]]
    assert batch.columns["last"][0].tolist() == [1, 1]
    with pytest.raises(BadPairs, match="Pair 1: its label has no tokens"):
        InterchangeBatch.from_batch(Batch.from_tokens([[1], [2]], [[1], [2]], [3, 4], [[5], []]))
