"""IOI: token and position of the subject, and a linear logit difference (MIB, figure 19).

    names               A, B and C: two people, and who does something in the second clause
    subject_token       S_Tok, the name C
    subject_position    S_Pos, which of A and B it is: 0 or 1
    logit_difference    bias + position * p + token * t

p is 1 if the position is that which the base's names imply, else -1; t likewise for the token. The
output is the logit of the indirect object minus that of the subject, both of the base.

    S1 flip (B A | C)     the other position, the same token        p = -1, t = 1
    S2 flip (A B | D)     the other position, the other token       p = -1, t = -1
    S1 and S2 flip        the same position, the other token        p = 1,  t = -1

A token that is neither of the base's people is undecided: Wang et al. (2023) gave it t = 0, MIB
leaves it out (footnote 13). A prompt whose C is a third person has no subject.

*Readings of Mueller et al. 2025.* Appendix G.5.4 has the S2 flip keep the position and both flips
invert it; with two names that cannot be, and the code fits the table above. It has the difference
as S minus IO, section 4.4 as IO minus S: the coefficients are positive, so it is IO - S. Figure 19b
prints 3.16; its terms sum to .069 + 2.018 + .687 = 2.774. By table 18 the token is best aligned
with head 7.9 alone (2.80), not with 8.10 (2.82) as in the text. The public code fits its first
batch only, the paper says its dataset: here all rows given are fitted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mechassay.causal_models.causal_model import CausalModel, Undecided, Variable
from mechassay.causal_models.task_models import space_before
from mechassay.prompts.pairs import Prompt

BIAS, POSITION, TOKEN = 0.069, 2.018, 0.687
"""Of GPT-2 small in the paper."""


def ioi_model(bias: float = BIAS, position: float = POSITION, token: float = TOKEN) -> CausalModel:
    """The causal model of `ioi`, with the paper's coefficients of GPT-2 small unless others are
    given, such as `LogitDifference.model` gives those that were fitted.
    """

    def difference(names: tuple[str, str, str], subject_token: str, subject_position: int) -> float:
        a, b, _ = names
        if subject_token not in (a, b):
            raise Undecided("a subject who is not in the base")
        p = 1 if subject_position == position_of(names) else -1
        t = 1 if subject_token == token_of(names) else -1
        return float(bias + position * p + token * t)

    return CausalModel(
        "ioi",
        {
            "names": lambda value: isinstance(value, tuple) and len(value) == 3,
            "subject_token": Variable(str, token_of, parents=("names",)),
            "subject_position": Variable((0, 1), position_of, parents=("names",)),
            "logit_difference": Variable(float, difference),
        },
        read=names_of,
        contrast=people_of,
    )


def token_of(names: tuple[str, str, str]) -> str:
    """The name that the subject has, of a prompt's three names.

    Raises:
        Undecided: the third is neither of the others, or both.
    """
    a, b, c = names
    if (c == a) == (c == b):
        raise Undecided("a prompt without a subject")
    return c


def position_of(names: tuple[str, str, str]) -> int:
    """Which of the first two names the subject is; errors are those of `token_of`."""
    return names.index(token_of(names))


def names_of(prompt: Prompt) -> Mapping[str, Any]:
    """The inputs that a prompt has.

    Raises:
        Undecided: it has not three names.
    """
    parts = ("name_A", "name_B", "name_C")
    if not set(parts) <= prompt.spans.keys():
        raise Undecided("a prompt without three names")
    return {"names": tuple(prompt.part(name) for name in parts)}


def people_of(base: Prompt) -> tuple[str, str]:
    """The indirect object and the subject, as an answer has them.

    Raises:
        Undecided: the prompt has no subject.
    """
    if not {"subject", "indirect_object"} <= base.spans.keys():
        raise Undecided("a prompt without a subject")
    space = space_before(base)
    return space + base.part("indirect_object"), space + base.part("subject")
