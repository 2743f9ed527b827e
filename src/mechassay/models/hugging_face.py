"""What transformers loads, quietly, and never with tensors that it made up."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from mechassay.errors import BadFile

if TYPE_CHECKING:
    from transformers import PreTrainedModel


UNREADABLE = (
    OSError,
    ValueError,
    KeyError,
    IndexError,
    TypeError,
    RuntimeError,
    ImportError,
    SafetensorError,
)
"""What reading a file that is damaged, or no model, raises."""


def load_whole(source: str, **options: Any) -> PreTrainedModel:
    """The model, refused when it lacks tensors, which transformers would fill at random."""
    from transformers import AutoModelForCausalLM

    loaded: Any = AutoModelForCausalLM.from_pretrained(
        source, output_loading_info=True, trust_remote_code=False, **options
    )
    model, loading = loaded
    if missing := sorted(loading["missing_keys"]):
        raise BadFile(
            f"The weights of {source!r} lack {len(missing)} of the model's tensors, for example"
            f" {missing[0]}."
        )
    return model


@contextlib.contextmanager
def quiet() -> Generator[None]:
    """No progress bars and no log below an error from transformers and huggingface_hub."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars
    from huggingface_hub.utils import logging as hub_log
    from transformers.utils import logging as log

    level, hub_level = log.get_verbosity(), hub_log.get_verbosity()
    bars, no_hub_bars = log.is_progress_bar_enabled(), are_progress_bars_disabled()
    log.set_verbosity_error()
    hub_log.set_verbosity_error()
    log.disable_progress_bar()  # the hub's too, as does its counterpart below
    try:
        yield
    finally:
        log.set_verbosity(level)
        hub_log.set_verbosity(hub_level)
        if bars:
            log.enable_progress_bar()
        if bars and no_hub_bars:
            disable_progress_bars()
