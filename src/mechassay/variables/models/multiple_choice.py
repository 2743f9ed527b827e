"""Multiple choice: find the choice that is right, then say its label (MIB, figure 7).

    color, choices             what is asked for, and the texts of the choices in their order
    symbols                    the labels of the choices
    answer_pointer   X_Order   the place of the right choice
    answer           O_Answer  symbols[answer_pointer]

Interchanges: of the pointer, the *base's* symbol at the place of the source's right choice; of the
answer, the source's symbol. In ARC, `knowledge`, the text of the right choice, stands in the place
of the color: the question does not say it, so it is read from the task's answer.

*Readings of Mueller et al. 2025.* Section 4.2 has the pointer as a number from 1 to 4, and figure
7b counts alike; their code counts from 0, and so does this model. Appendix G.5.1 has the answer's
counterfactuals keep the place of the right choice, section 4.2 has sets in which place and letters
change together; labels follow from the prompts, so both can be used, and `distinguish` says which
tell the pointer from the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mechassay.errors import BadUsage
from mechassay.examples import Prompt
from mechassay.variables.causal_model import CausalModel, Undecided, Variable
from mechassay.variables.models.written import space_before

LEAST, MOST_CHOICES = 2, 13


def mcqa_model(n_choices: int = 4) -> CausalModel:
    """The causal model of `mcqa`.

    Raises:
        BadUsage: a number of choices outside of 2 to 13.
    """
    return _model("mcqa", "color", n_choices)


def arc_model() -> CausalModel:
    """The causal model of `arc-easy` and `arc-challenge`."""
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
        write=_write,
    )


def _place(asked: str, choices: tuple[str, ...]) -> int:
    if choices.count(asked) != 1:
        raise Undecided("not one choice that is right")
    return choices.index(asked)


def _write(symbol: str, base: Prompt) -> tuple[str, ...]:
    return (f"{space_before(base)}{symbol}",)
