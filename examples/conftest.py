"""In this repository, tests of these packages run with its checks of the shapes of arrays."""

from helpers.shapes import check_arrays_alone

check_arrays_alone()
