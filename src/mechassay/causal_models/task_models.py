"""Causal models by the name of their task: ours, those of MIB, and those of other packages.

    arithmetic-addition     add two numbers of up to two digits by carrying the one
    docstring               find the parameter described last, and say the next
    greater-than            any year that is later than the one said before
    mcqa, arc-*             find the choice that is right, then say its label
    ravel                   recall three facts about a city, then say the one that is asked for

The models of addition, multiple choice and RAVEL are MIB's (Mueller et al. 2025); those of
docstring and greater-than are ours. IOI and the ground truths have theirs in
`causal_models.ioi_model` and `causal_models.truths`. Each model's function gives its variables and
its readings of the paper.

Other packages add models under the entry point group `mechassay.causal_models`; each is a
function that returns a `CausalModel`, whose parameters are its settings. Values are written
after a prompt as the task writes its own answers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from mechassay.causal_models.causal_model import CausalModel, Undecided, Variable
from mechassay.errors import BadUsage, UnknownName
from mechassay.prompts.pairs import Example, Examples, Prompt, filled
from mechassay.tasks.docstring import NAMES, PARAMETERS, TEMPLATE, WORDS
from mechassay.tasks.ravel import ATTRIBUTES, ENTITY, NO_FACT, NOTHING, Query, continuations
from mechassay.utils.arguments import checked
from mechassay.utils.registry import Registry

_TRUTHS = "mechassay.causal_models.truths"

CAUSAL_MODELS = Registry(
    "causal model",
    {
        "arc-challenge": "mechassay.causal_models.task_models:arc_model",
        "arc-easy": "mechassay.causal_models.task_models:arc_model",
        "arithmetic-addition": "mechassay.causal_models.task_models:addition_model",
        "docstring": "mechassay.causal_models.task_models:docstring_model",
        "greater-than": "mechassay.causal_models.task_models:greater_than_model",
        "ioi": "mechassay.causal_models.ioi_model:ioi_model",
        "mcqa": "mechassay.causal_models.task_models:mcqa_model",
        "ravel": "mechassay.causal_models.task_models:ravel_model",
        "truth-addition": f"{_TRUTHS}:added_tens_model",
        "truth-fraction": f"{_TRUTHS}:share_model",
        "truth-greater-than": f"{_TRUTHS}:larger_model",
        "truth-induction": f"{_TRUTHS}:following_word_model",
        "truth-ioi": f"{_TRUTHS}:repeated_name_model",
        "truth-mcqa": f"{_TRUTHS}:choices_model",
        "truth-previous-token": f"{_TRUTHS}:previous_word_model",
    },
    plural="causal_models",
)
"""By the name of the task."""


@checked
def load_causal_model(name: str, **settings: Any) -> CausalModel:
    """The causal model of a task.

    Args:
        name: of the task.
        settings: the model's own, such as `n_choices` of mcqa or the coefficients of ioi.

    Raises:
        UnknownName: no such causal model, or setting of it.
        BadUsage: a setting outside of its range.
    """
    make = CAUSAL_MODELS.load(name)
    known = inspect.signature(make).parameters
    for setting in settings:
        if setting not in known:
            raise UnknownName(f"setting of the causal model {name!r}", setting, known)
    return make(**settings)


def greater_than_model() -> CausalModel:
    """The causal model of `greater-than` (Hanna et al. 2023): any later year is right.

        year               YY of the first year
        tens, ones         its digits
        endings, written   what may follow the base, and the tens digit that it has already
        answers            the endings that make a year with more than 10 tens + ones

    Several endings are right, so a label is all of them, and 99 is right after any year: to
    write it is no sign of a variable. `prompt` gives the prompt with the year that the
    interchange amounts to, and what the language model writes after that one is the label
    (`variables.variable_pairs`). In all counterfactuals of the task the year is 01, so that an
    interchange of the tens allows nearly every ending; `with_other_years` adds a kind with
    other years.

    The model is ours; MIB has none. It does not say in which century a year is: the base says
    it.
    """
    return CausalModel(
        "greater-than",
        {
            "year": range(100),
            "endings": tuple,
            "written": ("", *"0123456789"),
            "tens": Variable(range(10), lambda year: year // 10),
            "ones": Variable(range(10), lambda year: year % 10),
            "answers": Variable(tuple, _later),
        },
        read=_read_years,
        write=lambda value, base: value,
        prompt=_prompt_before,
    )


def _prompt_before(endings: tuple[str, ...], base: Prompt) -> str:
    """The base with the year after which the endings begin."""
    written = base.part("digit") if "digit" in base.spans else ""
    begin, end = base.spans["year"]
    year = int(written + endings[0]) - 1
    return f"{base.text[:begin]}{year:02d}{base.text[end:]}"


OTHER_YEAR = "other_year_counterfactual"


@checked
def with_other_years(examples: Sequence[Example]) -> Examples:
    """The examples of `greater-than` with a counterfactual whose year is another example's.

    It is that of the next example of the same century whose year is another one; nothing is drawn.
    An example that is alone in its century has none.
    """
    years: dict[str, list[tuple[int, str]]] = {}
    for number, example in enumerate(examples):
        years.setdefault(example.tags["century"], []).append((number, example.tags["year"]))
    made: list[Example] = []
    for number, example in enumerate(examples):
        after = sorted(years[example.tags["century"]], key=lambda x: (x[0] <= number, x[0]))
        other = next((year for _, year in after if year != example.tags["year"]), None)
        more = {} if other is None else {OTHER_YEAR: _with_year(example.prompt, other)}
        made.append(replace(example, counterfactuals={**example.counterfactuals, **more}))
    return Examples(made, getattr(examples, "dropped", {}))


def _with_year(prompt: Prompt, year: str) -> Prompt:
    begin, end = prompt.spans["year"]
    written = prompt.part("digit") if "digit" in prompt.spans else ""
    return replace(
        prompt,
        text=prompt.text[:begin] + year + prompt.text[end:],
        answers=_later(prompt.choices, written, int(year[0]), int(year[1])),
    )


def _later(endings: tuple[str, ...], written: str, tens: int, ones: int) -> tuple[str, ...]:
    return tuple(ending for ending in endings if int(written + ending) > 10 * tens + ones)


def _read_years(prompt: Prompt) -> Mapping[str, Any]:
    if "year" not in prompt.spans:
        raise Undecided("a prompt without a year")
    written = prompt.part("digit") if "digit" in prompt.spans else ""
    return {"year": int(prompt.part("year")), "endings": prompt.choices, "written": written}


class City(NamedTuple):
    """A city and its facts; an empty one is not known."""

    name: str
    Continent: str
    Country: str
    Language: str


def ravel_model() -> CausalModel:
    """The causal model of `ravel` (MIB, figure 16).

        entity               the city, with what is known of it
        query       A_Query  Continent, Country or Language; "wikipedia": nothing is asked
        Continent, Country, Language
                             the facts
        answer      O        the fact that is asked for

    An interchange of Country changes the answer of a base that asks for the country, and of no
    other. A prompt that asks for nothing has no answer, so the variables query and answer of a
    Wikipedia sentence cannot be exchanged; its facts can. Facts are those that the task knows
    of each prompt's city. One with commas ("Arabic,Berberi") has several right continuations.

    *Reading of Mueller et al. 2025.* Appendix G.5.3 has all counterfactuals either ask for
    another attribute or be sentences; which attribute they ask for makes no difference to a
    fact's label. In the public code a sentence's answer is "", which is compared with what the
    model writes; here it is no label.
    """
    return CausalModel(
        "ravel",
        {
            "entity": City,
            "query": (*ATTRIBUTES, NOTHING),
            **{name: Variable(str, _fact(name), parents=("entity",)) for name in ATTRIBUTES},
            "answer": Variable(str, _answer, parents=("query", *ATTRIBUTES)),
        },
        read=_read_entity,
        write=_write_attribute,
    )


def _fact(attribute: str) -> Callable[[City], str]:
    def fact(entity: City) -> str:
        return str(getattr(entity, attribute))

    return fact


def _answer(query: str, *facts: str) -> str:
    if query == NOTHING:
        raise Undecided("a prompt that asks for nothing")
    known = facts[list[str](ATTRIBUTES).index(query)]
    if not known:
        raise Undecided(NO_FACT)
    return known


def _read_entity(prompt: Prompt) -> Mapping[str, Any]:
    if not isinstance(prompt, Query):
        raise Undecided("a prompt without facts")
    columns = prompt.columns
    if columns["attribute"] not in (*ATTRIBUTES, NOTHING):
        raise Undecided("a prompt that asks for something else")
    facts = {name: columns.get(name, "") for name in ATTRIBUTES}
    return {"entity": City(columns[ENTITY], **facts), "query": columns["attribute"]}


def _write_attribute(value: str, base: Prompt) -> tuple[str, ...]:
    return continuations(base.text, [value])


def space_before(prompt: Prompt) -> str:
    """What stands between a prompt and its continuations; a space where it has none.

    So a value is written after a prompt as the task writes its own answers.
    """
    known = (*prompt.answers, *prompt.choices)
    return known[0][: len(known[0]) - len(known[0].lstrip())] if known else " "


DIGIT = Variable(range(10))


def addition_model() -> CausalModel:
    """The causal model of `arithmetic-addition`: carrying the one (MIB, figures 6 and 14).

        x10, x1, y10, y1     the digits of the operands; tens are 0 where there are none
        carry      X_Carry   1 if x1 + y1 >= 10, else 0
        ones       O_1       (x1 + y1) mod 10
        tens, hundreds       (x10 + y10 + carry) mod 10, and whether it is 10 or more
        answer               100 hundreds + 10 tens + ones

    `tens_sum`, x10 + y10 + carry, is O_110 of section 4.3: the one variable that stands between
    the carry and the two digits. The answer is written without zeros before it ("42").

    *Readings of Mueller et al. 2025.* Section 4.3 and figure 6 have a carry where x1 + y1 > 10,
    the caption of figure 14 where it "exceeds 9": it is 10 or more, else 5 + 5 were 0. Appendix
    G.5.2 has "3" as the tens digit of 57 + 66, figure 14b has 2: it is 2, as the sum is 123.
    Section 4.3 speaks of counterfactuals "that do not change the carry-the-one variable" (base
    17+75, counterfactual 11+71): they change it, from 1 to 0, and the same section goes on to
    say that they always require a change. The public code has the label "042" for 42, which no
    model of the paper writes; the labels here have no such zeros.
    """
    return CausalModel(
        "arithmetic-addition",
        {
            "x10": DIGIT,
            "x1": DIGIT,
            "y10": DIGIT,
            "y1": DIGIT,
            "carry": Variable((0, 1), lambda x1, y1: int(x1 + y1 >= 10)),
            "ones": Variable(range(10), lambda x1, y1: (x1 + y1) % 10),
            "tens_sum": Variable(range(20), lambda x10, y10, carry: x10 + y10 + carry),
            "tens": Variable(range(10), lambda tens_sum: tens_sum % 10),
            "hundreds": Variable((0, 1), lambda tens_sum: tens_sum // 10),
            "answer": Variable(
                range(200), lambda hundreds, tens, ones: 100 * hundreds + 10 * tens + ones
            ),
        },
        read=_read_sum,
        write=written_after,
    )


def _read_sum(prompt: Prompt) -> Mapping[str, Any]:
    operands = [int(prompt.part(name)) for name in ("op1", "op2") if name in prompt.spans]
    if len(operands) != 2 or max(operands) > 99:
        raise Undecided("not two operands of up to two digits")
    (x10, x1), (y10, y1) = (divmod(operand, 10) for operand in operands)
    return {"x10": x10, "x1": x1, "y10": y10, "y1": y1}


def written_after(value: object, base: Prompt) -> tuple[str, ...]:
    """Return the only label of a value: its text, spaced as the answers of the base prompt."""
    return (f"{space_before(base)}{value}",)


SHIFTED, REORDERED = "shifted_counterfactual", "reordered_counterfactual"
# The place of the first of the two that are described; the original's is 2.
SHIFTS = (3, 0, 1)
REORDERINGS = (0, 3, 1, 2)


def docstring_model() -> CausalModel:
    """The causal model of `docstring` (Heimersheim and Janiak 2023).

        parameters        the six of the function's first line, in their order
        described         those that the docstring has described, in its order
        last_described    the last of them
        answer_pointer    its place in the first line, plus one
        answer            parameters[answer_pointer]

    The task's own counterfactuals describe names that are no parameters, so none of these
    variables has a value there; `with_shifts` adds two kinds that have. The model is ours; MIB
    has none.
    """
    return CausalModel(
        "docstring",
        {
            "parameters": tuple,
            "described": tuple,
            "last_described": Variable(str, lambda described: described[-1]),
            "answer_pointer": Variable(range(1, len(PARAMETERS)), _next),
            "answer": Variable(str, lambda parameters, answer_pointer: parameters[answer_pointer]),
        },
        read=_read_docstring,
        write=lambda value, base: (f"{space_before(base)}{value}",),
    )


@checked
def with_shifts(examples: Sequence[Example]) -> Examples:
    """The examples of `docstring` with the counterfactuals shifted and reordered.

    - shifted: another two neighbours are described;
    - reordered: the first line has the parameters in reverse, and two neighbours of it are
      described.

    A shifted prompt does not tell `last_described`, `answer_pointer` and `answer` from each
    other; a reordered one does (parameters p1, p2, a, b, c, s1 and described s1, c: the base
    should go on with what follows c, or with its third parameter, or with the source's answer
    b).

    What is described takes turns over the examples; nothing is drawn.
    """
    made = [
        replace(
            example,
            counterfactuals={
                **example.counterfactuals,
                SHIFTED: _described(example.prompt, SHIFTS[number % len(SHIFTS)], 1),
                REORDERED: _described(example.prompt, REORDERINGS[number % len(REORDERINGS)], -1),
            },
        )
        for number, example in enumerate(examples)
    ]
    return Examples(made, getattr(examples, "dropped", {}))


def _next(parameters: tuple[str, ...], last_described: str) -> int:
    if last_described not in parameters:
        raise Undecided("what is described last is no parameter")
    place = parameters.index(last_described) + 1
    if place == len(parameters):
        raise Undecided("the last parameter is described")
    return place


def _described(base: Prompt, first: int, step: int) -> Prompt:
    """The base with two neighbours described, of its parameters in their order or in reverse."""
    parameters = [base.part(name) for name in PARAMETERS][::step]
    fields = {name: base.part(name) for name in (*NAMES, *WORDS)}
    fields |= dict(zip(PARAMETERS, parameters, strict=True))
    fields |= {"a_2": parameters[first], "b_2": parameters[first + 1]}
    space = space_before(base)
    choices = tuple(f"{space}{name}" for name in parameters)
    return filled(TEMPLATE, fields, (choices[first + 2],), choices)


def _read_docstring(prompt: Prompt) -> Mapping[str, Any]:
    if not {*PARAMETERS, "a_2", "b_2"} <= prompt.spans.keys():
        raise Undecided("a prompt without a docstring")
    return {
        "parameters": tuple(prompt.part(name) for name in PARAMETERS),
        "described": (prompt.part("a_2"), prompt.part("b_2")),
    }


LEAST, MOST_CHOICES = 2, 13


def mcqa_model(n_choices: int = 4) -> CausalModel:
    """The causal model of `mcqa`: say the label of the right choice (MIB, figure 7).

        color, choices            what is asked for, and the texts of the choices in their order
        symbols                   the labels of the choices
        answer_pointer  X_Order   the place of the right choice
        answer          O_Answer  symbols[answer_pointer]

    Interchanges: of the pointer, the *base's* symbol at the place of the source's right choice;
    of the answer, the source's symbol.

    *Readings of Mueller et al. 2025.* Section 4.2 has the pointer as a number from 1 to 4, and
    figure 7b counts alike; their code counts from 0, and so does this model. Appendix G.5.1 has
    the answer's counterfactuals keep the place of the right choice, section 4.2 has sets in
    which place and letters change together; labels follow from the prompts, so both can be
    used, and `distinguish` says which tell the pointer from the answer.

    Raises:
        BadUsage: a number of choices outside of 2 to 13.
    """
    return _model("mcqa", "color", n_choices)


def arc_model() -> CausalModel:
    """The causal model of `arc-easy` and `arc-challenge`: that of `mcqa` but for one variable.

    `knowledge` stands in the place of `color`. It is the text of the right choice: the question
    does not say it, so it is read from the task's answer.
    """
    return _model("arc", "knowledge", 4)


def _model(name: str, asked: str, n: int) -> CausalModel:
    if not LEAST <= n <= MOST_CHOICES:
        raise BadUsage(
            f"n_choices of the causal model {name!r} must be between {LEAST} and {MOST_CHOICES};"
            f" got {n}."
        )

    def several(value: Any) -> bool:
        return isinstance(value, tuple) and len(value) == n

    def read(prompt: Prompt) -> Mapping[str, Any]:
        if f"symbol_{n - 1}" not in prompt.spans or f"symbol_{n}" in prompt.spans:
            raise Undecided("another number of choices")
        # A question of other words does not say where its color is, but its answer does.
        part = "color" if asked == "color" and "color" in prompt.spans else "correct_choice"
        return {
            asked: prompt.part(part),
            "choices": tuple(prompt.part(f"choice_{i}") for i in range(n)),
            "symbols": tuple(prompt.part(f"symbol_{i}") for i in range(n)),
        }

    return CausalModel(
        name,
        {
            asked: str,
            "choices": several,
            "symbols": several,
            "answer_pointer": Variable(range(n), _place, parents=(asked, "choices")),
            "answer": Variable(str, lambda symbols, answer_pointer: symbols[answer_pointer]),
        },
        read=read,
        write=written_after,
    )


def _place(asked: str, choices: tuple[str, ...]) -> int:
    if choices.count(asked) != 1:
        raise Undecided("not one choice that is right")
    return choices.index(asked)
