"""In this repository, tests of these packages run with the checks of array shapes of its own."""

import helpers.shapes  # noqa: F401  # pyproject.toml names it, and pytest does not import it
