"""What quotes can be about, what counts once, and what a document says against itself."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.judges import CODES, made_judgments, quoted
from helpers.quotes import ONE_TRUE, SENTENCES
from mechassay.claims.claim import Claim
from mechassay.claims.document import PagedDocument, skeleton
from mechassay.claims.evidence import check_evidence, score_judgments
from mechassay.claims.pages import ClaimsPage
from mechassay.claims.quote_rules import (
    can_be_about,
    find_limitations,
    is_one_passage,
    objections,
    quote_rules,
)
from mechassay.claims.rubric import Status, load_rubric
from mechassay.results.page import Report, markdown
from mechassay.testing import check_record


def test_every_criterion_has_a_rule_and_sentences() -> None:
    rules = quote_rules()
    assert tuple(rules.criteria) == CODES == tuple(SENTENCES) and rules.rubric == "mv-27@1"
    known = set(CODES)
    for each in rules.limitations:
        assert {*each.denies, *each.denies_yes, *each.doubts} <= known
        assert not set(each.denies) & set(each.denies_yes)


@pytest.mark.parametrize("code", CODES)
def test_sentences_that_can_be_about_a_criterion_and_that_cannot(code: str) -> None:
    can, cannot = SENTENCES[code]
    assert len(can) >= 2 and len(cannot) >= 2
    assert [text for text in can if not can_be_about(code, text)] == []
    assert [text for text in cannot if can_be_about(code, text)] == []


def test_one_true_sentence_can_be_about_little() -> None:
    assert [code for code in CODES if can_be_about(code, ONE_TRUE)] == ["V3"]


def test_sentences_of_one_criterion_are_not_about_all() -> None:
    """Rules are not so wide that any sentence passes: of others' sentences, fewer than a third."""
    pairs = [
        (code, text)
        for code in CODES
        for other, (can, _) in SENTENCES.items()
        if other != code
        for text in can
    ]
    share = sum(can_be_about(code, text) for code, text in pairs) / len(pairs)
    assert 0.05 < share < 1 / 3


def test_another_model_is_none_of_the_claims_family() -> None:
    own = Claim(id="ioi", statement="Heads of GPT-2 small copy the name.")
    assert not can_be_about("E6", "GPT-2 small has 26 such heads.", own)
    assert can_be_about("E6", "Pythia-1.4B has 31 such heads.", own)
    # Whose it is is not known: one name alone may be the claim's own model.
    assert not can_be_about("E6", "Pythia-1.4B has 31 such heads.")
    named = Claim(id="ioi", statement="Heads copy the name.", model="pythia-1.4b")
    assert not can_be_about("E6", "Pythia-1.4B has 31 such heads.", named)


def test_line_ends_change_nothing() -> None:
    assert can_be_about("M1", "the stan-\ndard devi-\nation is 1.1 %")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("Without them 88 % is lost", "Without them 88 % is lost under ablation.", True),
        ("the eleven heads alone", "The ELEVEN heads, alone", True),
        # The end of one is the beginning of the other, and so it stands in the document.
        ("Alone the heads", "the heads recover", True),
        ("copy the name", "the name alone", False),
        # One sentence in the abstract, nearly the same at the end.
        ("Twenty heads of the model copy the name", "These heads of the model copy the name", True),
        ("Alone they recover 81 % of it here", "Alone they recover 71 % of it here", False),
        ("The heads do copy the name", "The heads do not copy the name", False),
        ("88 % is lost under resample ablation", "91 % under zero ablation", False),
    ],
)
def test_one_passage(one: str, other: str, same: bool) -> None:
    letters = skeleton("Alone the heads recover 81 % of it. They copy the name.")
    assert is_one_passage(one, other, letters) == is_one_passage(other, one, letters) == same


CLAIM = Claim(id="a", statement="Eleven heads close brackets.")
LOST = "Without them 88 % is lost under resample ablation."


def statuses(**said: Status) -> dict[str, Status]:
    return {code: said.get(code, "NO") for code in CODES}


def test_a_passage_counts_once_for_the_first_criterion_that_it_can_be_about() -> None:
    said = statuses(C1="YES", I1="YES", E1="YES")
    found = objections(CLAIM, said, [("E1", LOST), ("I1", LOST), ("C1", LOST)])
    assert found[1] == ""
    assert found[0] == "the passage is counted for I1, and counts once"
    assert found[2].startswith("the quote is not about it: C1 takes what would refute the claim")


def test_criteria_share_passages_so_that_as_many_as_possible_have_one() -> None:
    other = "Zero ablation of the eleven heads costs 91 %."
    said = statuses(I1="YES", E1="YES")
    # I1 comes first, but has another quote; E1 has this one alone.
    assert objections(CLAIM, said, [("I1", LOST), ("I1", other), ("E1", LOST)]) == [
        "the passage is counted for E1, and counts once",
        "",
        "",
    ]


def test_a_quote_for_no_takes_nothing_away() -> None:
    said = statuses(I1="NO", E1="YES")
    assert objections(CLAIM, said, [("I1", LOST), ("E1", LOST)]) == ["", ""]


@given(st.lists(st.tuples(st.sampled_from(CODES), st.sampled_from("abcde")), max_size=30))
def test_no_passage_supports_two_criteria(pairs: list[tuple[str, str]]) -> None:
    """Whatever is quoted for what, and in whatever order."""
    texts = dict(zip("abcde", [LOST, ONE_TRUE, *SENTENCES["M3"][0]], strict=True))
    quotes = [(code, texts[letter]) for code, letter in pairs]
    found = objections(CLAIM, dict.fromkeys(CODES, "YES"), quotes)
    held = {}
    for (code, text), against in zip(quotes, found, strict=True):
        if not against:
            assert held.setdefault(text, code) == code
    again = objections(CLAIM, dict.fromkeys(CODES, "YES"), list(reversed(quotes)))
    supported = {code for (code, _), against in zip(quotes, found, strict=True) if not against}
    assert len(supported) == len(
        {code for (code, _), against in zip(reversed(quotes), again, strict=True) if not against}
    )


def paper(*pages: str) -> PagedDocument:
    return PagedDocument("a.txt", "0" * 64, pages, len(pages))


@pytest.mark.parametrize(
    ("sentence", "denied"),
    [
        ("We did not test other tasks or other models.", {"E6", "C3", "E3"}),
        ("Another model was not looked at.", {"E6"}),
        ("We only study GPT-2 small.", {"E6"}),
        ("All experiments use a single model.", {"E6"}),
        ("We leave larger models to future work.", {"E6"}),
        ("The circuit does not generalise to other models.", {"E6"}),
        ("Other architectures were not examined.", {"E6"}),
        ("Whether it holds on other tasks was not investigated, as we used only one task.", {"C3"}),
        ("We haven't evaluated held-out prompts.", {"E5", "M2"}),
        ("We use a single seed.", {"M1", "I4"}),
        ("We report no confidence intervals.", {"M1"}),
        ("We do not compare with random circuits.", {"M3"}),
        ("Our evidence is correlational.", {"I1", "I2", "E1"}),
        ("We cannot rule out that the heads merely detect repetition.", {"V4"}),
        ("The circuit may not be the smallest, and is not minimal.", {"C4"}),
        ("This analysis was exploratory.", {"C1"}),
        ("We did not look at the weights of these heads.", {"C2"}),
    ],
)
def test_limitations_are_found_with_what_they_deny(sentence: str, denied: set[str]) -> None:
    found = find_limitations(paper("The heads copy it.", f"So it is. {sentence} It is so."))
    codes = {code for each in found for code in (*each.denies, *each.denies_yes)}
    assert denied <= codes
    assert {(each.page, each.text) for each in found} == {(2, sentence)}


@pytest.mark.parametrize(
    "sentence",
    ["Our results may not generalise.", "It remains to be seen whether this transfers."],
)
def test_doubts_are_shown_and_deny_nothing(sentence: str) -> None:
    (found,) = find_limitations(paper(sentence))
    assert set(found.doubts) == {"E5", "E6"}
    assert not any(found.contradicts(code, "YES") for code in CODES)


@pytest.mark.parametrize(
    "sentence",
    [
        "We test five other models.",
        "Prior work did not test other models.",
        "Smith et al. did not test other tasks; they used a single seed.",
        "We did not find that other models differ.",
        "No baseline reaches 10 %.",
        "We replace activations in one run with those of another.",
        "The loss is not comparable on different tasks.",
        "We use one seed per model and five models of each kind.",
        "In all experiments we do not intervene on layer norms.",
        "Without intervention the variable has its own value.",
        ONE_TRUE,
    ],
)
def test_what_is_no_limitation_of_the_document(sentence: str) -> None:
    assert find_limitations(paper(sentence)) == ()


def test_a_partial_may_stand_where_a_yes_is_denied() -> None:
    (found,) = find_limitations(paper("We use a single seed."))
    assert found.contradicts("M1", "YES") and not found.contradicts("M1", "PARTIAL")
    (found,) = find_limitations(paper("Another model was not looked at."))
    assert found.contradicts("E6", "PARTIAL") and not found.contradicts("E6", "NO")


OTHER = "The same heads are found in another model of a different family."
LIMIT = "We did not test other models."


def test_a_denied_yes_is_flagged_and_not_supported() -> None:
    document = paper(f"{OTHER} Five seeds gave the same heads.", f"{LIMIT} We thank all.")
    evidence = {
        "E6": quoted(OTHER),
        "I4": quoted("Five seeds gave the same heads."),
        "V5": quoted(LIMIT),
    }
    judged = made_judgments(statuses=dict.fromkeys(evidence, "YES"), evidence=evidence)
    found = score_judgments(judged, [document])
    assert found.evidence.missing["ioi"] == () and found.evidence.unsupported["ioi"] == ("E6",)
    assert found.evidence.why("ioi", "E6") == f"the document denies it: “{LIMIT}”"
    record = found.records()[0]
    check_record(record)
    text = markdown(ClaimsPage().sections(Report([record])))
    assert f"ioi, E6 YES: “{LIMIT}”" in text and "The document denies what was judged" in text
    assert re.search(rf"\| 2 \| {re.escape(LIMIT)} \| E6 YES", text)
    # Without the sentence it stands.
    calm = score_judgments(judged, [paper(document.pages[0], LIMIT.replace(" not", ""))])
    assert "E6" not in calm.evidence.unsupported["ioi"]


def test_every_unsupported_status_says_why_on_the_page() -> None:
    """One sentence for three criteria, one of which it can be about; and one without a quote."""
    document = paper(f"It is so. {ONE_TRUE}")
    codes = ("C1", "V3", "V4")
    judged = made_judgments(
        statuses={**dict.fromkeys(codes, "YES"), "I1": "YES"},
        evidence={code: quoted(ONE_TRUE) for code in codes},
    )
    found = check_evidence(judged, [document])
    assert found.unsupported["ioi"] == ("C1", "I1", "V4") and found.missing["ioi"] == ("I1",)
    assert found.why("ioi", "I1") == "no quote" and found.why("ioi", "V3") == ""
    record = score_judgments(judged, [document]).records()[0]
    text = markdown(ClaimsPage().sections(Report([record])))
    for code in ("C1", "V4"):
        takes = quote_rules().criteria[code].takes
        assert f"[the quote is not about it: {code} takes {takes}]" in text
    assert any("2 YES or PARTIAL have quotes that exist" in each for each in record.warnings)


def test_no_page_speaks_of_verified_scores() -> None:
    judged = made_judgments(statuses={"C1": "YES"}, evidence={"C1": quoted(ONE_TRUE)})
    record = score_judgments(judged, [paper(ONE_TRUE)]).records()[0]
    text = markdown(ClaimsPage().sections(Report([record]))) + record.model_dump_json()
    assert "verified" not in text.lower()
    assert "quote exists" in text and "supported" in text
    assert load_rubric().codes == CODES
