"""What MIB's causal track evaluates, and how its names are ours (Mueller et al. 2025, section 4).

    folder      TASK_MODELCLASS_VARIABLE, such as arithmetic_Gemma2ForCausalLM_ones_carry
    unit        ResidualStream(Layer-3,Token-last_token) or AttentionHead(Layer-7,Head-3,Token-all)

A class names one model: Qwen2ForCausalLM is Qwen2.5 0.5B. Names are those of the public code
(verify_submission.py). A position is a token of a part of the prompt, its last one, as a column of
ours of that part is. The code takes the first capital letter that equals the right symbol, which
can stand in the question; ours is that of the choices.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from mechassay.errors import BadUsage, UnknownName, one_of
from mechassay.graph import Graph
from mechassay.interventions.model_shape import ModelShape
from mechassay.interventions.site import ALL, LAST, Part, Site, load_site

_TOKEN = re.compile(r"Token[-:_](?P<token>[\w.-]+)\)$")


@dataclass(frozen=True)
class BoardTask:
    """A task of the track.

    Attributes:
        name: of our task.
        variables: our names by MIB's.
        positions: our columns by MIB's positions.
        models: classes of the models that it is evaluated on.
        part: where its units are.
    """

    name: str
    variables: Mapping[str, str]
    positions: Mapping[str, str]
    models: tuple[str, ...]
    part: Part = "resid"


@dataclass(frozen=True)
class BoardModel:
    """A model of the track: its id on the hub, and its sizes."""

    name: str
    shape: ModelShape


@dataclass(frozen=True)
class MIBBoard:
    """What a folder may hold: tasks by MIB's names, models by their classes."""

    tasks: Mapping[str, BoardTask]
    models: Mapping[str, BoardModel]

    def parsed(self, folder: str) -> tuple[str, str, str]:
        """Task, class of the model and variable of a folder's name, as MIB calls them.

        Raises:
            BadUsage: the track has no such task, model or variable, or not together.
        """
        task = next((name for name in self.tasks if folder.startswith(f"{name}_")), None)
        if task is None:
            raise UnknownName("task at the beginning of a folder's name", folder, self.tasks)
        kind, _, variable = folder.removeprefix(f"{task}_").partition("_")
        one_of("class of a model of MIB's causal track", kind, self.models)
        one_of(f"variable of {task}", variable, self.tasks[task].variables)
        self._check_evaluated(task, kind)
        return task, kind, variable

    def named(self, task: str, variable: str, model: str, shape: ModelShape | None) -> str:
        """The folder's name of our task and variable; a model is told by its id or its shape.

        Raises:
            BadUsage: the track has no such task, model or variable, or not together.
        """
        theirs = {each.name: name for name, each in self.tasks.items()}
        name = theirs[one_of("task of MIB's causal track", task, theirs)]
        variables = {ours: other for other, ours in self.tasks[name].variables.items()}
        one_of(f"variable of {task} in MIB's causal track", variable, variables)
        kinds = {kind: kind for kind in self.models}
        kinds |= {each.name: kind for kind, each in self.models.items()}
        same = [kind for kind, each in self.models.items() if each.shape == shape]
        if model not in kinds and len(same) == 1:
            kinds[model] = same[0]
        ids = [each.name for each in self.models.values()]
        if model not in kinds:
            raise UnknownName("model of MIB's causal track", model, ids)
        self._check_evaluated(name, kinds[model])
        return f"{name}_{kinds[model]}_{variables[variable]}"

    def _check_evaluated(self, task: str, kind: str) -> None:
        known = self.tasks[task].models
        if kind not in known:
            raise BadUsage(
                f"MIB's causal track does not evaluate {kind} on {task}; it does"
                f" {', '.join(known)}."
            )

    def site(self, task: str, unit: str) -> Site:
        """The site of a unit's name, its position a column of ours.

        Raises:
            BadUsage: no name of a unit, of another part than the task's, or a position that needs
                code.
        """
        site, about = load_site(unit), self.tasks[task]
        if site.part != about.part:
            raise BadUsage(f"units of {task} are of part {about.part!r}; got {site.part!r}.")
        if site.part == "heads" and not site.heads:
            raise BadUsage("a unit of attention names one head; got none.")
        match = _TOKEN.search(unit)
        token = "" if match is None else match["token"]
        if token not in about.positions:
            raise BadUsage(
                f"Position {token!r} is none of {task}, which are"
                f" {', '.join(about.positions)}; others need token_position.py, which is not run."
            )
        return site.at(about.positions[token])

    def unit(self, task: str, site: Site) -> str:
        """The unit's name of a site.

        Raises:
            BadUsage: MIB has no such position in the task, or no such unit.
        """
        about = self.tasks[task]
        tokens = {ours: theirs for theirs, ours in about.positions.items()}
        if site.part != about.part or site.position not in tokens:
            raise BadUsage(
                f"MIB's {task} has sites of part {about.part!r} at {', '.join(tokens)}; got {site}."
            )
        return site.mib(tokens[str(site.position)])


def _same(*names: str) -> Mapping[str, str]:
    return MappingProxyType({name: name for name in names})


_GPT2, _QWEN, _GEMMA, _LLAMA = (
    "GPT2LMHeadModel",
    "Qwen2ForCausalLM",
    "Gemma2ForCausalLM",
    "LlamaForCausalLM",
)
_CHOICES = {"correct_symbol": "correct_symbol", "last_token": LAST}
_PERIOD = {"correct_symbol_period": "correct_symbol_period"}
MIB_BOARD = MIBBoard(
    MappingProxyType(
        {
            "ioi_task": BoardTask(
                "ioi",
                {"output_token": "subject_token", "output_position": "subject_position"},
                {"all": ALL},
                (_GPT2, _QWEN, _GEMMA, _LLAMA),
                "heads",
            ),
            "4_answer_MCQA": BoardTask(
                "mcqa",
                _same("answer_pointer", "answer"),
                _CHOICES | _PERIOD,
                (_QWEN, _GEMMA, _LLAMA),
            ),
            "ARC_easy": BoardTask(
                "arc-easy", _same("answer_pointer", "answer"), _CHOICES, (_GEMMA, _LLAMA)
            ),
            "arithmetic": BoardTask(
                "arithmetic-addition",
                {"ones_carry": "carry"},
                {"op2_last": "op2", "last": LAST},
                (_GEMMA, _LLAMA),
            ),
            "ravel_task": BoardTask(
                "ravel",
                _same("Country", "Continent", "Language"),
                {"entity_last_token": "entity", "last_token": LAST},
                (_GEMMA, _LLAMA),
            ),
        }
    ),
    MappingProxyType(
        {
            _GPT2: BoardModel("gpt2", ModelShape(Graph(12, 12), 768, 64)),
            _QWEN: BoardModel("Qwen/Qwen2.5-0.5B", ModelShape(Graph(24, 14), 896, 64)),
            _GEMMA: BoardModel("google/gemma-2-2b", ModelShape(Graph(26, 8), 2304, 256)),
            _LLAMA: BoardModel(
                "meta-llama/Meta-Llama-3.1-8B-Instruct", ModelShape(Graph(32, 32), 4096, 128)
            ),
        }
    ),
)
"""The track as published: 26 folders."""
