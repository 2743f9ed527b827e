"""Arrays of the package are checked while the tests run, and nothing else is."""

from __future__ import annotations

import jaxtyping
import numpy as np
import pytest
import torch
from jaxtyping import Float, TypeCheckError

from helpers.shapes import ALIASES
from mechassay.features.sae import SAE
from mechassay.measurement.metrics.k_composition import composition_scores
from mechassay.models.graph import Graph
from mechassay.stats.intervals import BootstrapEstimate, student_interval, trapezoid
from mechassay.utils.display import number


def test_a_wrong_shape_is_an_error() -> None:
    with pytest.raises(jaxtyping.TypeCheckError):
        student_interval(np.zeros((2, 3)))
    with pytest.raises(jaxtyping.TypeCheckError):
        trapezoid(np.zeros((2, 3)), np.arange(4.0))


def test_what_passed_before_is_checked_again() -> None:
    given = torch.zeros(2, 5)
    matrix, row, square = Float[torch.Tensor, "a b"], Float[torch.Tensor, "b"], "a a"
    with jaxtyping.jaxtyped("context"):
        for _ in range(2):
            assert isinstance(given, matrix) and isinstance(torch.zeros(5), row)
            assert not isinstance(torch.zeros(4), row) and not isinstance(given.long(), matrix)
            assert not isinstance(given[None], matrix) and isinstance(torch.zeros(5), row)
        assert not isinstance(torch.zeros(2, 4), matrix) and isinstance(given, matrix)
        assert not isinstance(given, Float[torch.Tensor, square])
    # Sizes are those of one call.
    assert isinstance(torch.zeros(4), row)


def test_the_message_says_which_argument_is_wrong() -> None:
    with pytest.raises(TypeCheckError, match="typechecking parameter 'values'"):
        student_interval(values=np.zeros((2, 3)))
    with pytest.raises(TypeError, match="missing a required argument"):
        student_interval(value=np.zeros(3))  # pyright: ignore[reportCallIssue]


def test_a_dataclass_checks_its_fields() -> None:
    with pytest.raises(jaxtyping.TypeCheckError):
        BootstrapEstimate(0.0, np.zeros((2, 2)), 2)


def test_types_of_arrays_that_have_a_name_are_known() -> None:
    assert {"Values", "Features"} <= ALIASES
    for function in (SAE.encode, SAE.decode, composition_scores):
        assert hasattr(function, "__wrapped__"), function


def test_what_has_no_arrays_is_left_alone() -> None:
    assert hasattr(student_interval, "__wrapped__")
    assert not hasattr(number, "__wrapped__")


def test_shapes_are_checked_while_tests_run() -> None:
    """The import hook is at work: without it, wrong shapes would pass into the arithmetic."""
    with pytest.raises(TypeCheckError, match="edges"):
        Graph(2, 2).on_paths(torch.zeros(3, 4))
