import pytest

from mechassay.testing import check_task
from my_task.agreement import Agreement


@pytest.mark.parametrize("attractor", ["any", "other"])
def test_it_is_a_task(attractor: str) -> None:
    check_task(Agreement(attractor))


def test_only_the_number_of_the_subject_changes() -> None:
    for pair in Agreement().pairs("train"):
        begin, end = pair.spans["subject"]
        is_plural = pair.clean[begin:end].endswith("s")
        assert pair.answers == ((" are",) if is_plural else (" is",))
        assert pair.foils == ((" is",) if is_plural else (" are",))
        clean, other = pair.clean.split(), pair.counterfactual.split()
        assert clean[2:] == other[2:] and clean[1].rstrip("s") == other[1].rstrip("s")


def test_attractors_may_disagree() -> None:
    tags = [pair.tags for pair in Agreement("other").pairs("test", limit=50)]
    assert all(each["number"] != each["attractor_number"] for each in tags)
