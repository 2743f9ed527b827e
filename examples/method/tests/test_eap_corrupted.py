import pytest
import torch

from mechassay.circuits import EAP, CleanCorrupted
from mechassay.testing import check_method, tiny
from my_method.eap_corrupted import EAPCorrupted


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2"])
def test_it_is_a_method(family: str) -> None:
    subject = tiny.subject(family)
    check_method(EAPCorrupted(), subject.model, subject.batch)


def test_clean_corrupted_is_the_mean_of_eap_and_this() -> None:
    model, batch = tiny.subject("gpt2").model, tiny.subject("gpt2").batch
    ends = [method.score(model, batch).values for method in (EAP(), EAPCorrupted())]
    both = CleanCorrupted().score(model, batch).values
    torch.testing.assert_close(sum(ends) / 2, both, equal_nan=True)
