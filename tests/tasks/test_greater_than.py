"""The greater-than task: its examples, its counterfactuals,
and what tokenizers of each kind compare.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import cache
from importlib.resources import files
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from mechassay.errors import BadPairs, BadUsage, UnknownName
from mechassay.models.objectives import ProbDiff
from mechassay.prompts.batch import Batch
from mechassay.prompts.pairs import Example, Pair, Prompt, align_pairs
from mechassay.prompts.tokenization import ALIKE, LENGTHS, Misaligned, token_position
from mechassay.tasks import load_task
from mechassay.tasks.greater_than import CENTURIES, MATCHED, UNMATCHED, YEARS, GreaterThan
from mechassay.tasks.task import SPLITS

NOUNS: dict[str, list[str]] = json.loads(
    files("mechassay.tasks").joinpath("data/greater_than.json").read_text(encoding="utf-8")
)
PROMPT = re.compile(r"The ([a-z]+) lasted from the year (\d\d)(\d\d) to (\d\d)(\d?)")
PRIVATE = 987
# How tokenizers write a year. A space that is a token of its own stands before numbers in the
# second and fourth.
WORD = r" ?[A-Za-z]+"
PATTERNS = {
    "17|33": rf" ?\d\d|{WORD}",
    "173|3, space apart": rf"\d{{1,3}}| (?=\d)|{WORD}",
    "173|3": rf" ?\d{{1,3}}|{WORD}",
    "1|7|3|3": rf"\d| (?=\d)|{WORD}",
    "1733": rf" ?\d+|{WORD}",
    # As GPT-2: whole round years, and a beginning that takes a third digit along.
    "mixed": rf" 1\d00| 1280| 130|\d(?!\d)| ?\d\d|{WORD}",
}


def parse(text: str) -> tuple[str, str, int, str, str]:
    """Noun, century, year, the century to be continued, and the digit after it."""
    found = PROMPT.fullmatch(text)
    assert found, text
    noun, century, year, again, digit = found.groups()
    return noun, century, int(year), again, digit


def solve(text: str) -> tuple[set[str], set[str]]:
    """Right and wrong continuations, from the text alone."""
    _, century, year, again, digit = parse(text)
    right: set[str] = set()
    wrong: set[str] = set()
    for end in range(int(century + "00"), int(century + "99") + 1):
        written = str(end)
        if written.startswith(again + digit):
            (right if end > int(century) * 100 + year else wrong).add(
                written.removeprefix(again + digit)
            )
    return right, wrong


@cache
def tokenizer_of(kind: str) -> PreTrainedTokenizerFast:
    """A tokenizer that knows all words of the task and writes numbers in one way."""
    texts = [f" 1{c}{y:02d}" for c in range(1, 8) for y in range(100)] + [
        f" {c}{rest}" for c in CENTURIES for rest in ("", *"0123456789")
    ]
    texts += [f"The {noun} lasted from the year to" for nouns in NOUNS.values() for noun in nouns]
    pieces = sorted({piece for text in texts for piece in re.findall(PATTERNS[kind], text)})
    tokenizer = Tokenizer(
        models.WordLevel(
            {piece: i for i, piece in enumerate(["[UNK]", *pieces])}, unk_token="[UNK]"
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(PATTERNS[kind]), "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")


@cache
def byte_level() -> PreTrainedTokenizerFast:
    """A GPT-2-like tokenizer, trained on years: it merges what it happens to have seen often."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    years = [
        f" {c}{y:02d}"
        for c in range(11, 18)
        for y in range(0, 100, 3 if c % 2 else 7)
        for _ in range(y)
    ]
    words = [f"The {noun} lasted from the year to" for noun in NOUNS["test"]]
    tokenizer.train_from_iterator(years + words, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@cache
def many(digit: str) -> dict[str, list[Example]]:
    """Examples of each split, enough to have all of its years."""
    return {
        split: list(
            islice(GreaterThan(digit).generate(split, 3), 3000 if split == "train" else 1500)
        )
        for split in SPLITS
    }


def of_year(digit: str, century: str, year: str) -> Example:
    """An example of one year, of whatever split has it."""
    tags = {"century": century, "year": year}
    return next(
        each
        for found in many(digit).values()
        for each in found
        if tags.items() <= each.tags.items()
    )


@cache
def one_a_year(digit: str, kind: str) -> list[Example]:
    """An example of each year of the test split, under a tokenizer."""
    found = {
        (each.tags["century"], each.tags["year"]): each
        for each in islice(GreaterThan(digit).generate("test", 0, tokenizer_of(kind)), 1200)
    }
    assert len(found) > 90, "of 129, or somewhat fewer where the tokenizer leaves some out"
    return list(found.values())


def compared(
    pair: Pair, tokenizer: PreTrainedTokenizerFast
) -> tuple[str, set[str], set[str]] | str:
    """The end of the aligned prompt and the tokens compared there, as texts;
    or why there are none.
    """
    (found,) = align_pairs([pair], tokenizer)
    if isinstance(found, Misaligned):
        return found.reason
    answers, foils = (
        tokenizer.convert_ids_to_tokens(found.answers),
        tokenizer.convert_ids_to_tokens(found.foils),
    )
    assert len(answers) == len(set(answers)) and len(foils) == len(set(foils))
    prompt = "".join(tokenizer.convert_ids_to_tokens(found.clean))
    assert len(found.clean) == len(found.counterfactual)
    return prompt[prompt.index(" to") :], set(answers), set(foils)


def numbers(begin: int, end: int, before: str = "", width: int = 1) -> set[str]:
    """Numbers from begin to end, both included, as texts."""
    return {f"{before}{number:0{width}d}" for number in range(begin, end + 1)}


def test_nouns_are_many_plain_and_split() -> None:
    nouns = [noun for split in SPLITS for noun in NOUNS[split]]
    assert len(nouns) == len(set(nouns)) == 168
    short = {
        "battle",
        "celebration",
        "chase",
        "fight",
        "flight",
        "hearing",
        "holiday",
        "race",
        "session",
        "tournament",
        "vigil",
        "winter",
    }
    assert not short & set(nouns), (
        "what takes hours or weeks does not last from one year to another"
    )
    assert all(re.fullmatch(r"[a-z]{3,}", noun) for noun in nouns)


@settings(max_examples=25, deadline=None)
@given(
    split=st.sampled_from(SPLITS),
    seed=st.integers(0, 2**70),
    digit=st.sampled_from(["first", "last"]),
)
def test_examples_are_right_by_their_text(split: str, seed: int, digit: str) -> None:
    for example in islice(GreaterThan(digit).generate(split, seed), 30):
        noun, century, year, again, written = parse(example.prompt.text)
        assert again == century and noun in NOUNS[split]
        assert written == ("" if digit == "first" else f"{year:02d}"[0])
        assert dict(example.tags) == {
            "noun": noun,
            "century": century,
            "year": f"{year:02d}",
            "tens": f"{year:02d}"[0],
        }
        assert (set(example.prompt.answers), set(example.foils or ())) == solve(example.prompt.text)
        assert sorted((*example.prompt.answers, *(example.foils or ()))) == list(
            example.prompt.choices
        )
        assert len(example.prompt.choices) == (100 if digit == "first" else 10)
        assert list(example.counterfactuals) == [MATCHED, UNMATCHED]
        for kind, other in example.counterfactuals.items():
            noun_2, century_2, year_2, again_2, written_2 = parse(other.text)
            assert (year_2, again_2, written_2) == (1, century_2, written)
            assert noun_2 in NOUNS[split] and century_2 in CENTURIES
            assert (noun_2, century_2) == (noun, century) or kind == UNMATCHED
            assert (
                set(other.answers) == solve(other.text)[0]
                and other.choices == example.prompt.choices
            )
        for prompt in (example.prompt, *example.counterfactuals.values()):
            check_spans(prompt)


def check_spans(prompt: Prompt) -> None:
    noun, century, year, again, written = parse(prompt.text)
    parts = {"noun": noun, "century": century, "year": f"{year:02d}", "century_2": again} | (
        {"digit": written} if written else {}
    )
    assert {name: prompt.part(name) for name in prompt.spans} == parts
    assert prompt.spans["year"][0] == prompt.spans["century"][1] < prompt.spans["century_2"][0]
    assert max(end for _, end in prompt.spans.values()) == len(prompt.text)


def test_prompts_are_those_of_the_papers() -> None:
    """The first row of table 6 of Uit de Bos and Garriga-Alonso:
    noun, century and year exchanged, nothing else.
    """
    clean, other = (
        "The dispute lasted from the year 1694 to 16",
        "The voyage lasted from the year 1601 to 16",
    )
    for pair in GreaterThan().pairs("test", limit=50):
        filled = (
            clean.replace("dispute", pair.tags["noun"])
            .replace("16", pair.tags["century"])
            .replace("94", pair.tags["year"])
        )
        assert pair.clean == filled
        assert pair.counterfactual == other.replace("voyage", pair.tags["noun"]).replace(
            "16", pair.tags["century"]
        )
        if pair.tags["year"] == "94":
            assert pair.answers == ("95", "96", "97", "98", "99")
    ninety_four = of_year("first", "16", "94")
    assert ninety_four.prompt.answers == ("95", "96", "97", "98", "99")
    assert ninety_four.foils == tuple(f"{year:02d}" for year in range(95))
    assert ninety_four.counterfactuals[MATCHED].answers == tuple(
        f"{year:02d}" for year in range(2, 100)
    )


def test_unmatched_prompts_are_independent_of_the_clean_ones() -> None:
    pairs = GreaterThan().pairs("train", counterfactual=UNMATCHED, limit=2000)
    count = Counter((pair.tags["century"], parse(pair.counterfactual)[1]) for pair in pairs)
    # 49 combinations, about 41 pairs each; 5 sigma are 32.
    assert len(count) == 49 and all(abs(n - len(pairs) / 49) < 32 for n in count.values())
    assert {parse(pair.counterfactual)[0] for pair in pairs} == set(NOUNS["train"])
    same = sum(parse(pair.counterfactual)[0] == pair.tags["noun"] for pair in pairs)
    assert 5 < same < 55, "2000 pairs / 72 nouns are 28"


def test_clean_prompts_do_not_depend_on_the_counterfactual() -> None:
    for default, other in zip(
        *(
            GreaterThan().pairs("test", limit=40, counterfactual=kind)
            for kind in (MATCHED, UNMATCHED)
        ),
        strict=True,
    ):
        assert (
            default.id,
            default.clean,
            default.answers,
            default.foils,
            default.tags,
            default.spans,
        ) == (
            other.id,
            other.clean,
            other.answers,
            other.foils,
            other.tags,
            other.spans,
        )


def test_splits_share_no_noun_no_year_and_no_prompt() -> None:
    task = GreaterThan()
    splits = many("first")
    nouns = [{each.tags["noun"] for each in found} for found in splits.values()]
    years = [
        {(each.tags["century"], each.tags["year"]) for each in found} for found in splits.values()
    ]
    for parts in (nouns, years):
        assert len(set.union(*parts)) == sum(map(len, parts))
    assert (
        set.union(*years) == {(century, year) for century in CENTURIES for year in YEARS}
        and len(YEARS) == 97
    )
    prompts = [each.prompt.text for found in splits.values() for each in found]
    assert len(set(prompts)) == len(prompts) == 3000 + 3 * 1500
    corrupted = [
        {other.text for each in found for other in each.counterfactuals.values()}
        for found in splits.values()
    ]
    assert len(set.union(*corrupted)) == sum(map(len, corrupted))
    assert not set(prompts) & set.union(*corrupted)
    for found in splits.values():
        assert {each.tags["year"] for each in found} == set(YEARS) and {
            each.tags["century"] for each in found
        } == set(CENTURIES)
        assert len({each.id for each in found}) == len(found)
    assert [task.population(split) for split in SPLITS] == [20_952, 4_128, 4_128, 4_160]


def test_the_population_with_the_last_digit() -> None:
    task = GreaterThan("last")
    examples = list(task.generate("test", 0))
    assert len(examples) == task.population("test") == 32 * 117
    assert {each.tags["year"] for each in examples} == {year for year in YEARS if year[1] != "9"}
    with pytest.raises(UnknownName, match=r"split 'tset'.*'test'"):
        task.population("tset")


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    split=st.sampled_from(SPLITS),
    seed=st.integers(0, 2**70),
    n=st.integers(1, 20),
    more=st.integers(0, 20),
)
def test_stream_properties(split: str, seed: int, n: int, more: int) -> None:
    task = GreaterThan()
    call: dict[str, Any] = {"seed": seed, "private_seed": seed, "counterfactual": UNMATCHED}
    short, long = task.pairs(split, limit=n, **call), task.pairs(split, limit=n + more, **call)
    assert (
        short == long[:n] and short.content_hash == task.pairs(split, limit=n, **call).content_hash
    )
    assert (
        len({pair.clean for pair in long})
        == len({pair.id for pair in long})
        == len(long)
        == n + more
    )
    other: dict[str, Any] = {**call, "seed": seed + 1, "private_seed": seed + 1}
    assert task.pairs(split, limit=n + 3, **call) != task.pairs(split, limit=n + 3, **other)


def test_the_stream_is_pinned() -> None:
    """A change of these hashes changes every result on the task: raise GreaterThan.version."""
    assert GreaterThan.version == 2
    assert (
        GreaterThan().pairs("test").content_hash
        == "ceeea9db5c853ab5cc7647efe47d193ed90a816f1505d3f94507ab27f81aa848"
    )
    assert (
        GreaterThan("last").pairs("test", counterfactual=UNMATCHED).content_hash
        == "88cd3657315747fa1818ec0ef274ea50f2da36b6a56d2178b56279ff6f578551"
    )


def test_whole_splits() -> None:
    small = {"validation": 1_000, "test": 1_000, "private": 1_000}
    assert (
        GreaterThan.sizes == {"train": 10_000, **small}
        and GreaterThan("last").population("train") > 10_000
    )
    assert {
        split: len(GreaterThan().pairs(split, private_seed=PRIVATE)) for split in small
    } == small
    with pytest.raises(BadPairs, match="3744 usable pairs of 3745"):
        GreaterThan("last").pairs("test", limit=3745)
    with pytest.raises(BadUsage, match="private_seed"):
        GreaterThan().pairs("private")


# What is compared in the year 17YY: the end of the prompt, answers and foils, worked out by hand.
HAND = {
    ("17|33", "first", 33): (" to 17", numbers(34, 99), numbers(0, 33, width=2)),
    ("17|33", "first", 95): (" to 17", numbers(96, 99), numbers(0, 95, width=2)),
    ("17|33", "last", 33): (" to 17", numbers(34, 39), numbers(30, 33)),
    ("1733", "first", 33): (" to", numbers(1734, 1799, " "), numbers(1700, 1733, " ")),
    ("1733", "first", 95): (" to", numbers(1796, 1799, " "), numbers(1700, 1795, " ")),
    ("1733", "last", 95): (" to", numbers(1796, 1799, " "), numbers(1790, 1795, " ")),
    ("173|3", "first", 33): (" to", numbers(174, 179, " "), numbers(170, 172, " ")),
    ("173|3", "first", 39): (" to", numbers(174, 179, " "), numbers(170, 173, " ")),
    ("173|3", "first", 95): ALIKE,
    ("173|3", "first", 5): ALIKE,
    ("173|3", "last", 33): (" to 173", numbers(4, 9), numbers(0, 3)),
    ("173|3, space apart", "first", 33): (" to ", numbers(174, 179), numbers(170, 172)),
    ("173|3, space apart", "first", 95): ALIKE,
    ("173|3, space apart", "last", 95): (" to 179", numbers(6, 9), numbers(0, 5)),
    ("1|7|3|3", "first", 33): (" to 17", numbers(4, 9), numbers(0, 2)),
    ("1|7|3|3", "first", 39): (" to 17", numbers(4, 9), numbers(0, 3)),
    ("1|7|3|3", "first", 9): (" to 17", numbers(1, 9), numbers(0, 0)),
    ("1|7|3|3", "first", 89): (" to 17", numbers(9, 9), numbers(0, 8)),
    ("1|7|3|3", "first", 95): ALIKE,
    ("1|7|3|3", "first", 5): ALIKE,
    ("1|7|3|3", "last", 33): (" to 173", numbers(4, 9), numbers(0, 3)),
    ("1|7|3|3", "last", 95): (" to 179", numbers(6, 9), numbers(0, 5)),
    ("1|7|3|3", "last", 2): (" to 170", numbers(3, 9), numbers(0, 2)),
}


@pytest.mark.parametrize(("kind", "digit", "year"), HAND)
def test_what_is_compared(kind: str, digit: str, year: int) -> None:
    example = of_year(digit, "17", f"{year:02d}")
    for each in (MATCHED, UNMATCHED):
        assert compared(example.pair(each), tokenizer_of(kind)) == HAND[kind, digit, year]


@pytest.mark.parametrize("kind", ["173|3", "1|7|3|3"])
def test_both_digits_together_are_the_exact_objective(kind: str) -> None:
    """Larger tens, and of the same tens the larger ones: exactly the years above."""
    tokenizer = tokenizer_of(kind)
    last = {(each.tags["century"], each.tags["year"]): each for each in one_a_year("last", kind)}
    kept = Counter[str]()
    for example in one_a_year("first", kind):
        century, year = example.tags["century"], example.tags["year"]
        found = compared(example.pair(MATCHED), tokenizer)
        kept[found if isinstance(found, str) else "kept"] += 1
        # A pair that is dropped has larger tens (05) or has not (95); either way nothing is
        # compared.
        tens = (
            {str(n) for n in range(int(year[0]) + 1, 10)}
            if isinstance(found, str)
            else {token[-1] for token in found[1]}
        )
        right = {ten + one for ten in tens for one in "0123456789"}
        if year[1] != "9":
            ones = compared(last[century, year].pair(MATCHED), tokenizer)
            assert (
                not isinstance(ones, str)
                and ones[1].isdisjoint(ones[2])
                and len(ones[1] | ones[2]) == 10
            )
            right |= {year[0] + one for one in ones[1]}
        assert right == {f"{n:02d}" for n in range(int(year) + 1, 100)}
    years = [each.tags["year"] for each in one_a_year("first", kind)]
    dropped = sum(year < "09" or year > "89" for year in years)
    assert kept == {"kept": len(years) - dropped, ALIKE: dropped}


def test_the_objective_is_the_difference_of_probability() -> None:
    assert GreaterThan.objective == ProbDiff.name


@pytest.mark.few(2)
@pytest.mark.parametrize("digit", ["first", "last"])
@pytest.mark.parametrize("kind", ["17|33", "1733", "173|3", "173|3, space apart", "1|7|3|3"])
def test_tokenizers_with_one_way_to_write_years_leave_all_examples(kind: str, digit: str) -> None:
    task, tokenizer = GreaterThan(digit), tokenizer_of(kind)
    plain = list(islice(task.generate("test", 0), 200))
    assert list(islice(task.generate("test", 0, tokenizer), 200)) == plain
    for counterfactual in task.counterfactuals:
        pairs = task.pairs("test", tokenizer, limit=12, counterfactual=counterfactual)
        batch = Batch.from_pairs(pairs, tokenizer)
        assert set(pairs.dropped) <= {ALIKE} and len(batch) == 12
        looked_at = [
            each.pair(counterfactual) for each in plain[: 12 + sum(pairs.dropped.values())]
        ]
        assert [pair.id for pair in pairs] == [
            pair.id for pair in looked_at if not isinstance(compared(pair, tokenizer), str)
        ]


@pytest.mark.parametrize(
    ("kind", "first", "last"),
    [
        ("17|33", "33", "33"),
        ("1733", " 1733", " 1733"),
        ("1|7|3|3", "3", "3"),
        ("173|3", " 173", "3"),
    ],
)
def test_the_position_of_the_year(kind: str, first: str, last: str) -> None:
    pair, tokenizer = of_year("first", "17", "33").pair(MATCHED), tokenizer_of(kind)
    tokens = tokenizer.convert_ids_to_tokens(tokenizer(pair.clean)["input_ids"])
    places = [
        token_position([pair.clean], [pair.spans], name, tokenizer)[0]
        for name in ("year.first", "year.last")
    ]
    assert [tokens[place] for place in places if place is not None] == [first, last]
    assert (
        tokens.index(" to")
        == (token_position([pair.clean], [pair.spans], "year", tokenizer)[0] or 0) + 1
    )


def test_years_written_in_an_unusual_way_are_left_out() -> None:
    """ " 1700" and " 1280" are single tokens, " 130|5" is parted elsewhere:
    they are not compared with " 17|33".
    """
    tokenizer = tokenizer_of("mixed")
    odd = (
        {(century, "00") for century in CENTURIES}
        | {("12", "80")}
        | {("13", f"0{n}") for n in range(1, 10)}
    )
    written = {
        (c, y): re.findall(PATTERNS["mixed"], f" {c}{y}")
        for c in CENTURIES
        for y in ("00", "01", *YEARS)
    }
    assert {
        year
        for year, tokens in written.items()
        if [len(token.strip()) for token in tokens] != [2, 2]
    } == odd
    examples = list(islice(GreaterThan().generate("test", 0, tokenizer), 800))
    # 1301 is written " 130|1", so no counterfactual of that century is.
    assert {each.tags["century"] for each in examples} == set(CENTURIES) - {"13"}
    for example in examples:
        century = example.tags["century"]
        usual = {f"{n:02d}" for n in range(100)} - {year for c, year in odd if c == century}
        assert example.tags["year"] in usual and set(example.prompt.choices) == usual
        assert set(example.prompt.answers) == solve(example.prompt.text)[0] & usual
        assert set(example.foils or ()) == solve(example.prompt.text)[1] & usual
        assert (UNMATCHED in example.counterfactuals) or set(example.counterfactuals) == {MATCHED}
    absent = [each for each in examples if UNMATCHED not in each.counterfactuals]
    assert 0.07 < len(absent) / len(examples) < 0.21, "one century of seven"
    for example in one_a_year("first", "mixed"):
        usual = set(example.prompt.choices)
        right, wrong = (found & usual for found in solve(example.prompt.text))
        assert compared(example.pair(MATCHED), tokenizer) == (
            f" to {example.tags['century']}",
            right,
            wrong,
        )
    plain = {each.id: each.prompt.text for each in islice(GreaterThan().generate("test", 0), 1200)}
    assert all(plain[each.id] == each.prompt.text for each in examples)


def test_the_last_digit_with_unusual_years() -> None:
    for example in one_a_year("last", "mixed"):
        found = compared(example.pair(MATCHED), tokenizer_of("mixed"))
        century, year = example.tags["century"], example.tags["year"]
        assert not isinstance(found, str) and not year.endswith("9")
        # 1200 and 1280 are whole, so 120 and 128 are continued with nine digits.
        others = {"0"} if year[0] == "0" or (century, year[0]) == ("12", "8") else set[str]()
        assert set(example.prompt.choices) == set("0123456789") - others
        assert found[1] == {year[0] + one for one in example.prompt.answers}
        assert found[2] == {year[0] + one for one in example.foils or ()}


def test_a_bpe_of_many_ways_compares_only_like_with_like() -> None:
    tokenizer = byte_level()
    for counterfactual in (MATCHED, UNMATCHED):
        pairs = GreaterThan().pairs("test", tokenizer, limit=30, counterfactual=counterfactual)
        # Trained on some years only, it writes others in other ways: not all hundred continuations
        # are left.
        assert any(len(pair.answers) + len(pair.foils) < 100 for pair in pairs)
        batch = Batch.from_pairs(pairs, tokenizer)
        assert len(batch) == 30
        for pair in pairs:
            lengths = {
                len(tokenizer(pair.clean + end)["input_ids"])
                for end in (*pair.answers, *pair.foils)
            }
            assert len(lengths) == 1


def test_unequal_lengths_are_dropped_and_counted() -> None:
    tokenizer = tokenizer_of("17|33")
    short = NOUNS["test"][0]
    split_nouns = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    split_nouns.pre_tokenizer = pre_tokenizers.Split(
        Regex(rf" {short}| ?\d\d|(?<=The) |{WORD}"), "isolated"
    )
    other = PreTrainedTokenizerFast(tokenizer_object=split_nouns, unk_token="[UNK]")
    assert GreaterThan("last").pairs("test", other, limit=100).dropped == {}
    unmatched = GreaterThan("last").pairs("test", other, limit=100, counterfactual=UNMATCHED)
    assert set(unmatched.dropped) == {LENGTHS}


def test_a_tokenizer_that_leaves_nothing() -> None:
    """All years 01 are written otherwise than their century."""
    tokenizer = Tokenizer.from_str(tokenizer_of("17|33").backend_tokenizer.to_str())
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(rf" 1\d01| ?\d\d|{WORD}"), "isolated")
    with pytest.raises(BadPairs, match="'test' of greater-than has 0 usable pairs of 10"):
        GreaterThan().pairs(
            "test", PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]"), limit=10
        )


def test_settings() -> None:
    task: Any = load_task("greater-than:digit=last")
    assert (
        task == GreaterThan("last")
        and task.name == "greater-than"
        and task.default_counterfactual in task.counterfactuals
    )
    pairs = task.pairs("test", limit=2)
    assert pairs.source["settings"] == {"digit": "last", "words": "own"}
    with pytest.raises(UnknownName, match=r"digit 'lst'.*Did you mean 'last'"):
        load_task("greater-than", digit="lst")
    with pytest.raises(UnknownName, match="Did you mean 'matched_counterfactual'"):
        task.pairs("test", counterfactual="matched_counterfact")
