"""Options that several jobs have: each stands once, with its help."""

from __future__ import annotations

from mechassay.runs.job import Option, option

_MODELS = "Packaged model, ground truth, hub id, local folder or .gguf file. Repeat for several{}."
_TASKS = "Task, see `mechassay tasks list`. Repeat for several{}."
MODELS = option(
    _MODELS.format("; `truth` stands for all ground truths, each on its own task"),
    "--model",
    "-m",
    complete="models",
)
TASKS = option(
    _TASKS.format("; a ground truth needs none"), "--task", "-t", complete="tasks", first=True
)
LOADED_MODELS = option(_MODELS.format(""), "--model", "-m", complete="models")
"""Where every model runs on every task: a ground truth is a model like any other."""
LOADED_TASKS = option(_TASKS.format(""), "--task", "-t", complete="tasks")
TASKS_OR_ALL = option(
    _TASKS.format("; all but those of ground truths if not given"),
    "--task",
    "-t",
    complete="tasks",
    first=True,
)
MODEL = option(
    "Packaged model, ground truth, hub id, local folder or .gguf file.",
    "--model",
    "-m",
    complete="models",
)
TASK = option(
    "Task, see `mechassay tasks list`; that of a ground truth has its name.",
    "--task",
    "-t",
    complete="tasks",
)
METHODS = option(
    "Method, with settings if wanted: eap-ig-inputs:steps=10,points=midpoint. Repeat for several.",
    "--method",
    "-M",
    complete="methods",
    first=True,
)
COUNTERFACTUAL = option("Kind of corrupted prompts; the task's default if not given.")
OBJECTIVE = option(
    "What a circuit is to preserve: logit_diff, prob_diff, kl, js, cross_entropy, accuracy. The"
    " task's own if not given."
)
KEEP = option("Only pairs whose prompts the model answers right.")
_ABLATED = (
    "What ablated edges carry: counterfactual, zero, {}mean or positional-mean (of the train"
    " pairs), or optimal (constants learned on them)."
)
ABLATION = option(_ABLATED.format("resample, "))
PAIR_ABLATION = option(_ABLATED.format(""))
"""Where prompts are paired by the design: resampling would pair them again."""
PAIRING = option(
    "Corrupted prompts that a method looks for its circuit with: matched (each prompt's own),"
    " random (another example's, of equal length) or same-template (random, of the same template)."
)
PROFILE = option("mib-2025 is exactly the benchmark's code.")
METRICS = option(
    "Metric beside faithfulness: recovery, completeness or minimality; with settings, as"
    " completeness:size=0.01. All three where a circuit is known. Repeat for several.",
    "--metric",
    complete="metrics",
)
DTYPE = option("float32, float64, bfloat16 or float16.")


def seed_of(what: str) -> Option:
    """The seed of all that a run draws.

    Args:
        what: that is, for the help.
    """
    return option(f"Seed of {what}.", least=0, most=2**62 - 1)


SEED = seed_of("the task's examples and of the bootstrap")
PRIVATE_SEED = option("Seed of the private split; never stored.", role="secret")
BOS = option(
    "Put BOS before every prompt where the tokenizer does not (as TransformerLens does for GPT-2)."
)
