"""What a submitter declares of a submission, and what a board evaluates: models, tasks, limits.

`Declaration` is read from `submission.yaml` of a submission's folder, `BoardTrack` from the
`track.yaml` of a board:

    boards: [circuits, variables, gym]  which boards take submissions; see also `adversarial`
    splits: [test]                      "private" too where the board's keeper has a seed for it
    limit: 100                          examples of a cell; `limits` of single tasks: {mcqa: 50}
    models:
      gpt2:                             the public name; folders of submissions have it
        load: openai-community/gpt2     what `load_model` gets; the public name if left out
        tasks: [ioi]
        shape: {n_layers: 12, n_heads: 12, d_model: 768, d_head: 64}
        mib_class: GPT2LMHeadModel      what folders of MIB's causal track call the model
        gym: [agr_gender]               gym tasks, for directions
    gym_k: 1                            directions at a site, at most
    adversarial: {n_clean: 10, n_corrupted: 10, sizes: [0.01]}     see `AdversarialTrack`
    upload: {megabytes: 2000}           see `UploadLimits`
    cell: {seconds: 3600}               see `TrackCellLimits`

A model whose shape is not written down is loaded once, when the first submission names it.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, Field, ValidationError, model_validator

from mechassay.adversarial.experiments import AdversarialExperiment
from mechassay.circuits.methods import METHODS
from mechassay.circuits.mib_submission import TrackModel
from mechassay.circuits.profiles import Profile
from mechassay.circuits.series import CircuitSeries
from mechassay.errors import BadFile, BadUsage, MechassayError, UnknownName, first_line
from mechassay.gym.names import FINDERS
from mechassay.interventions.site import ModelShape
from mechassay.models.graph import Graph
from mechassay.models.model import load_model
from mechassay.results.records import Number, Record, Stored, first_mistake
from mechassay.tasks import load_task
from mechassay.truth.ground_truth import is_truth
from mechassay.utils.files import SHA256, read_json, read_small_json
from mechassay.variables.mib_format import MIB_BOARD, BoardModel, MIBBoard
from mechassay.variables.options import FEATURIZERS

FILES = ("submission.yaml", "submission.json")
LARGEST = 10**5
"""Bytes of a file that declares a submission."""
LONGEST_NAME, LONGEST_LINE, LONGEST_TEXT, MOST_HASHES = 80, 200, 5000, 10_000
HEADER_FILE = "submission.json"
PACKAGED = {"mib": "mib-track.yaml"}
"""Tracks by name."""
IN_SAMPLE = "In-sample: the declared training data are the examples that this is evaluated on."
_NAME = re.compile(r"\w[\w .,:+=()@/-]*")
_HUB = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}@[0-9a-f]{40}")
_URL = re.compile(r"https://[\w.-]+(:\d+)?(/[\w./~%+=&?#:@,;-]*)?")


OWN_ENDINGS = ("(mib)", "(as reported)")
RESERVED = frozenset({"control", "controls", "random", "truth", "full", "empty", "vanilla"})
"""Names of the board's own rows that no registry of methods has."""
LOOKALIKE = str.maketrans(
    "аеорсухіјѕкмтвнгԁһոԛԝαβγεικνορτυχω",
    "aeopcyxijskmtbhrdhnqwabyeikvoptuxw",
)
"""Small Cyrillic, Armenian and Greek letters by the Latin ones that they look like."""
_SCRIPTS_OF_JAPANESE = ("HIRAGANA", "KATAKANA", "CJK")


def skeleton(name: str) -> str:
    """What names that look alike have in common; for comparing, not for showing."""
    plain = unicodedata.normalize("NFKC", name).casefold().translate(LOOKALIKE)
    return re.sub(r"[\W_]+", "", plain.replace("0", "o").replace("1", "l"))


def _scripts(text: str) -> set[str]:
    """The scripts of the letters of a text, as their Unicode names begin."""
    words = {unicodedata.name(letter, "?").split()[0] for letter in text if letter.isalpha()}
    return {"JAPANESE" if word in _SCRIPTS_OF_JAPANESE else word for word in words}


def _name(text: str) -> str:
    text = text.strip()
    if text != (composed := unicodedata.normalize("NFKC", text)):
        raise ValueError(f"a name is in Unicode's form NFKC, as {composed[:LONGEST_NAME]!r}")
    if not _NAME.fullmatch(text) or len(text) > LONGEST_NAME:
        raise ValueError(
            f"a name has letters, digits, spaces and .,:+=()@/-, begins with a letter or a digit"
            f" and has at most {LONGEST_NAME} characters; got {text[:LONGEST_NAME]!r}"
        )
    if len(scripts := _scripts(text)) > 1:
        raise ValueError(f"a name has letters of one script; got {', '.join(sorted(scripts))}")
    if text.casefold().endswith(OWN_ENDINGS):
        raise ValueError(f"the board itself gives the ending of {text!r}; name your method")
    own = {*RESERVED, *METHODS.names(), *FINDERS.names(), *FEATURIZERS}
    before_settings = re.split(r"[:@(]", text)[0]
    if skeleton(before_settings) in set(map(skeleton, own)):
        raise ValueError(f"{text!r} is a name of the board's own rows; add what makes it yours")
    return text


def _plain(text: str) -> str:
    """Text without characters that are not to be seen, but for new lines and tabs."""
    hidden = [x for x in text if unicodedata.category(x) in ("Cc", "Cf", "Cs") and x not in "\n\t"]
    if hidden:
        raise ValueError(f"control characters are not allowed; got {hidden[0]!r}")
    return text.strip()


def _url(text: str) -> str:
    if text and not _URL.fullmatch(text):
        raise ValueError(f"an address begins with https:// and has no spaces; got {text[:80]!r}")
    return text


def _hub(text: str) -> str:
    if text and not _HUB.fullmatch(text):
        raise ValueError(
            "files on the hub are named OWNER/NAME@COMMIT, with all 40 digits of the commit; got"
            f" {text[:80]!r}"
        )
    return text


def _hash(text: str) -> str:
    if not SHA256.fullmatch(text):
        raise ValueError(f"a SHA-256 has 64 digits 0-9 and a-f; got {text[:80]!r}")
    return text


def _hours(value: float) -> float:
    if value < 0 or math.isinf(value):
        raise ValueError(f"hours are 0 or more; got {value}")
    return value


Line = Annotated[str, AfterValidator(_plain), Field(max_length=LONGEST_LINE)]
Text = Annotated[str, AfterValidator(_plain), Field(max_length=LONGEST_TEXT)]


class Declaration(Stored):
    """What a submitter says of a submission.

    It stands in `submission.yaml` or `submission.json` of the folder:

        name: eap-ig, 20 steps
        method: EAP-IG (inputs)
        description: what was done, for readers of its page
        training_data: 100 pairs of the train split, seed 0
        train_hashes: [sha256 of the examples that it was found on, as `provenance.data_hash`]
        compute: one H100
        gpu_hours: 0.5
        url: https://example.org/paper
        hub: OWNER/NAME@COMMIT       of the Hugging Face hub, where the files are not beside it

    Its form is checked, and `train_hashes` are compared with the hash of the test examples: the
    board says where they are the same. All else is shown as declared.

    A name is a row of the board, so it must not pass for another row. It is plain text in
    Unicode's form NFKC, with letters of one script, without signs that mean something in a
    page, a table or a path. Names of the board's own rows are refused (methods and featurizers,
    also with settings, and `random`, `control`). So are endings that the board itself gives, as
    "(MIB)" and "(as reported)". `skeleton` is what two names have in common that look alike.

    Attributes:
        training_data: in words; `train_hashes` are the SHA-256 of what it was found on: of a
            data set, or of its prompts.
        gpu_hours: NaN where nothing is said.
        hub: the commit of a repository of the hub that has the files.
    """

    name: Annotated[str, AfterValidator(_name)]
    method: Line = ""
    description: Text = ""
    training_data: Text = ""
    train_hashes: tuple[Annotated[str, AfterValidator(_hash)], ...] = Field(
        default=(), max_length=MOST_HASHES
    )
    compute: Line = ""
    gpu_hours: Annotated[Number, AfterValidator(_hours)] = math.nan
    url: Annotated[str, AfterValidator(_url), Field(max_length=LONGEST_LINE)] = ""
    hub: Annotated[str, AfterValidator(_hub)] = ""

    @property
    def facts(self) -> dict[str, str]:
        """What it says, by name in words; fields that say nothing are left out."""
        facts = {
            "method": self.method,
            "description": self.description,
            "training data": self.training_data,
            "training hashes": ", ".join(self.train_hashes),
            "compute": self.compute,
            "GPU hours": "" if math.isnan(self.gpu_hours) else f"{self.gpu_hours:g}",
            "url": self.url,
        }
        return {name: text for name, text in facts.items() if text}

    @staticmethod
    def of(plain: Any, source: str = "declaration") -> Declaration:
        """That of plain values, as a form or a file has them.

        Raises:
            BadFile: a field that is missing, unknown, too long or of another kind; the first.
        """
        try:
            return Declaration.model_validate(plain)
        except ValidationError as error:
            raise BadFile(f"{source}: {first_mistake(error)}.") from None

    @staticmethod
    def read(path: Path) -> Declaration:
        """That of a YAML or JSON file.

        Raises:
            BadFile: missing, too large, unreadable, or as `of`.
        """
        if path.is_file() and path.stat().st_size > LARGEST:
            raise BadFile(f"{path}: has more than {LARGEST // 1000} kB; it was not opened.")
        if path.suffix == ".json":
            return Declaration.of(read_small_json(path), str(path))
        try:
            plain = yaml.safe_load(path.read_text("utf-8"))
        except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
            raise BadFile(f"{path}: not readable as YAML ({first_line(error)}).") from None
        return Declaration.of(plain, str(path))


class SubmissionHeader(Stored):
    """What the results of a submission are of, in `submission.json` beside their run folders.

    Attributes:
        content: the hash of all numbers in the submission; see `Submission.content`.
        folder: of the submission as the plans of the runs name it.
    """

    declaration: Declaration
    content: str
    folder: str

    @staticmethod
    def read(results: Path) -> SubmissionHeader | None:
        """That of a folder of results; None where these are of no submission.

        Raises:
            BadFile: the file is damaged.
        """
        file = results / HEADER_FILE
        if not file.is_file():
            return None
        try:
            return SubmissionHeader.model_validate(read_json(file))
        except ValidationError as error:
            raise BadFile(f"{file}: no submission ({first_mistake(error)}).") from None

    def row(self, record: Record) -> str:
        """The row of a board that a record of it stands in."""
        return row_of(self.declaration.name, record)

    def in_sample(self, record: Record) -> list[str]:
        """A warning if the declared training data are the test examples, by their hashes."""
        test = record.data.get("test")
        hashes = {record.provenance.data_hash, "" if test is None else test.hash}
        return [IN_SAMPLE] if hashes & set(self.declaration.train_hashes) else []


def row_of(name: str, record: Record) -> str:
    """The row of a submission: its name, and behind it the size of the circuit that a record is
    of, if it is of one, as adversarial records are.
    """
    size = record.method.args.get("size")
    return name if size is None else f"{name}@{size}"


SubmissionKind = Literal["circuits", "variables", "gym"]
TrackBoard = SubmissionKind | Literal["adversarial"]
"""Circuits stand on the board of adversarial evaluation too, if the track names it."""
SplitName = Literal["test", "private"]
TEST = "test"
LARGEST_TRACK = 10**6
"""Characters of a track file."""
_PUBLIC = re.compile(r"[a-z0-9][a-z0-9.-]{0,63}")
_GYM_TASK = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


def _public(name: str) -> str:
    if not _PUBLIC.fullmatch(name):
        raise ValueError(
            f"{name[:80]!r} is no public name: small letters, digits, dots and hyphens, at most 64"
        )
    return name


def _gym_task(name: str) -> str:
    if not _GYM_TASK.fullmatch(name):
        raise ValueError(
            f"{name[:80]!r} is no name of a gym task: small letters, digits, dots, hyphens and"
            " underscores, at most 64"
        )
    return name


PublicName = Annotated[str, AfterValidator(_public)]
GymTaskName = Annotated[str, AfterValidator(_gym_task)]


class UploadLimits(Stored):
    """Limits on the size of a submission.

    Attributes:
        megabytes: Maximum size of all files together, in 10^6 bytes.
        files: Maximum number of files.
    """

    megabytes: float = Field(default=2000, gt=0)
    files: int = Field(default=2000, ge=1)

    @property
    def n_bytes(self) -> int:
        """The bytes that these are."""
        return int(self.megabytes * 10**6)


class TrackCellLimits(Stored):
    """What the evaluation of one cell may take at most; see `runs.execute.CellLimits`."""

    seconds: float = Field(default=3600, gt=0)
    memory_gb: float = Field(default=16, gt=0)


class ModelSizes(Stored):
    """The sizes of a model; see `ModelShape`."""

    n_layers: int = Field(ge=1)
    n_heads: int = Field(ge=1)
    d_model: int = Field(ge=1)
    d_head: int = Field(ge=1)
    parallel: bool = False
    mlp: bool = True

    @property
    def sizes(self) -> ModelShape:
        """The same as sites and graphs know it."""
        graph = Graph(self.n_layers, self.n_heads, parallel=self.parallel, mlp=self.mlp)
        return ModelShape(graph, self.d_model, self.d_head)


class EvaluatedModel(Stored):
    """A model of the track, and the tasks that it is evaluated on; `gym` are its gym tasks."""

    tasks: tuple[PublicName, ...] = ()
    load: str = ""
    shape: ModelSizes | None = None
    mib_class: str = ""
    gym: tuple[GymTaskName, ...] = ()

    @model_validator(mode="after")
    def _has_tasks(self) -> EvaluatedModel:
        if not (self.tasks or self.gym):
            raise ValueError("a model needs tasks, or gym tasks")
        return self


def _different(sizes: tuple[float, ...]) -> tuple[float, ...]:
    if len(set(sizes)) < len(sizes):
        raise ValueError("a size is named twice")
    return sizes


Share = Annotated[float, Field(gt=0, lt=1)]


class AdversarialTrack(Stored):
    """What is evaluated adversarially of submitted circuits, if `boards` of the track names it.

    Every clean prompt is paired with every corrupted one of the split test. Each size is one
    circuit, and one row. There are no private examples.

        adversarial:
          n_clean: 10
          n_corrupted: 10
          sizes: [0.01]
          tasks: {gpt2: [ioi]}

    Attributes:
        n_clean, n_corrupted: prompts of the two pools.
        sizes: of the circuits, as shares of the model's edges.
        tasks: by the public name of a model; all of the track if it is empty.
    """

    n_clean: int = Field(default=10, ge=1)
    n_corrupted: int = Field(default=10, ge=1)
    sizes: Annotated[tuple[Share, ...], AfterValidator(_different)] = Field(
        default=(0.01,), min_length=1
    )
    tasks: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)

    def has(self, model: str, task: str) -> bool:
        """Whether circuits of a model on a task are evaluated."""
        return not self.tasks or task in self.tasks.get(model, ())

    def experiment(
        self, path: Path, model: str, task: str, dtype: str, seed: int
    ) -> AdversarialExperiment:
        """The experiment that evaluates a file of scores, or a folder of circuits.

        Args:
            model: what `load_model` gets.
        """
        return AdversarialExperiment(
            model=model,
            task=task,
            circuits=tuple(f"{path}@{size}" for size in self.sizes),
            n_clean=self.n_clean,
            n_corrupted=self.n_corrupted,
            dtype=dtype,
            seed=seed,
        )

    def described(self, path: Path, graph: Graph) -> list[str]:
        """What of a file of scores, or of a folder of circuits, is evaluated, a line a size.

        Raises:
            BadFile, GraphMismatch: the folder holds no circuits of this graph.
        """
        series = CircuitSeries.load(path, graph) if path.is_dir() else None
        pairs = f"{self.n_clean} x {self.n_corrupted} pairs of prompts, public"
        lines: list[str] = []
        for size in self.sizes:
            which = ""
            if series is not None:
                file, circuit = series.named_within(size)
                which = (
                    f" ({file}, {circuit.weighted_edge_count():,.0f} edges)"
                    if file
                    else " (none is so small)"
                )
            lines.append(f"adversarial at {100 * size:.15g} % of the edges{which}: {pairs}")
        return lines


class BoardTrack(Stored):
    """What a board evaluates of submissions.

    Attributes:
        models: by public name.
        limit, limits: examples of a cell, and of cells of single tasks.
        profile: of the areas under faithfulness; see `FaithfulnessMetric`.
        adversarial: what of circuits is evaluated adversarially, if the board is named.
        gym_k: how many directions a submission may have at a site. More change more of the vector,
            all of them the whole one, and the numbers of both stand in one column.
    """

    models: dict[PublicName, EvaluatedModel] = Field(min_length=1)
    boards: tuple[TrackBoard, ...] = ("circuits", "variables", "gym")
    splits: tuple[SplitName, ...] = (TEST,)
    limit: int = Field(default=100, ge=1)
    limits: dict[str, int] = Field(default_factory=dict)
    dtype: str = "float32"
    seed: int = Field(default=0, ge=0)
    profile: Profile = "strict"
    adversarial: AdversarialTrack = AdversarialTrack()
    gym_k: int = Field(default=1, ge=1)
    upload: UploadLimits = UploadLimits()
    cell: TrackCellLimits = TrackCellLimits()

    @model_validator(mode="after")
    def _one_model_a_class(self) -> BoardTrack:
        classes = [about.mib_class for about in self.models.values() if about.mib_class]
        twice = [name for name in classes if classes.count(name) > 1]
        if twice:
            raise ValueError(f"two models have the class {twice[0]} of MIB's causal track")
        return self

    @model_validator(mode="after")
    def _adversarial_of_what_there_is(self) -> BoardTrack:
        if "adversarial" in self.boards and "circuits" not in self.boards:
            raise ValueError("the board adversarial is of circuits: name the board circuits too")
        for model, tasks in self.adversarial.tasks.items():
            known = self.models[model].tasks if model in self.models else ()
            wrong = [task for task in tasks if task not in known]
            if wrong or not known:
                raise ValueError(
                    f"adversarial.tasks: the track does not have {', '.join([model, *wrong])}"
                )
        return self

    @staticmethod
    def read(path: Path | None = None) -> BoardTrack:
        """The track of a file, or MIB's by the name "mib"; that of our own models if none is given.

        Raises:
            BadFile: missing, no YAML, or not a track: the first mistake is named.
        """
        try:
            packaged = "track.yaml" if path is None else PACKAGED.get(str(path))
            text = (
                path.read_text("utf-8")
                if path is not None and packaged is None
                else files("mechassay.leaderboard").joinpath(f"data/{packaged}").read_text("utf-8")
            )
            plain = yaml.safe_load(text) if len(text) <= LARGEST_TRACK else None
            return BoardTrack.model_validate(plain)
        except ValidationError as error:
            raise BadFile(f"{path}: not a track ({first_mistake(error)}).") from None
        except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
            raise BadFile(f"{path}: not a readable track ({first_line(error)}).") from None

    def model(self, name: str) -> EvaluatedModel:
        """A model by its public name.

        Raises:
            UnknownName: the track has none of this name.
        """
        if name not in self.models:
            raise UnknownName("model of the track", name, self.models)
        return self.models[name]

    def loaded_from(self, name: str) -> str:
        """What `load_model` gets for a public name; errors as `model`."""
        return self.model(name).load or name

    def public_name(self, name: str) -> str:
        """The public name of a model that is named by it or by what it is loaded from.

        Raises:
            UnknownName: the track has no such model.
        """
        same = [public for public in self.models if name in (public, self.loaded_from(public))]
        return same[0] if same else next(iter({name: self.model(name)}))

    def shape(self, name: str) -> ModelShape:
        """The shape of a model; one that is not written down is that of the loaded model.

        Raises:
            UnknownName: no such model. MechassayError: it cannot be loaded; see `load_model`.
        """
        written = self.model(name).shape
        return _shape_of(self.loaded_from(name)) if written is None else written.sizes

    def public_task(self, model: str, task: str) -> str:
        """The track's name of a task on a model, where it is named by it or by its own name.

        Raises:
            UnknownName: there is no such model, or no such task.
            BadUsage: both are there, but not together.
        """
        tasks = self.model(model).tasks
        if task in tasks:
            return task
        # The task of a trained ground truth has the name of its task, and that of the model.
        own = {load_task(name).name: name for name in tasks if is_truth(name)}
        if task in own:
            return own[task]
        every = {task_name for about in self.models.values() for task_name in about.tasks}
        raise self._refusal("task", model, task, every, tasks)

    def check_gym(self, model: str, task: str) -> None:
        """Refuse a gym task that is not evaluated on a model; errors as `public_task`."""
        tasks = self.model(model).gym
        if task not in tasks:
            every = {task_name for about in self.models.values() for task_name in about.gym}
            raise self._refusal("gym task", model, task, every, tasks)

    def _refusal(
        self, what: str, model: str, task: str, every: Collection[str], own: Sequence[str]
    ) -> MechassayError:
        if task not in every:
            return UnknownName(f"{what} of the track", task, sorted(every))
        return BadUsage(
            f"The track does not evaluate {model} on {task}; it does {', '.join(own) or 'none'}."
        )

    def circuit_model(self, name: str) -> TrackModel:
        """A model as checks of graph files know it; errors as `shape`."""
        shape = self.shape(name)
        return TrackModel(shape.graph, shape.d_model, self.model(name).tasks)

    def causal_board(self) -> MIBBoard:
        """The tasks and models of MIB's causal track that this one evaluates; errors as `shape`."""
        classes = {about.mib_class: name for name, about in self.models.items() if about.mib_class}
        models = {kind: BoardModel(name, self.shape(name)) for kind, name in classes.items()}
        tasks = {
            theirs: about
            for theirs, about in MIB_BOARD.tasks.items()
            if any(about.name in self.models[name].tasks for name in classes.values())
        }
        evaluated = {
            theirs: tuple(
                kind for kind, name in classes.items() if about.name in self.models[name].tasks
            )
            for theirs, about in tasks.items()
        }
        return MIBBoard(
            {name: replace(about, models=evaluated[name]) for name, about in tasks.items()}, models
        )

    def has_adversarial(self, model: str, task: str) -> bool:
        """Whether circuits of a model on a task are evaluated adversarially too."""
        return "adversarial" in self.boards and self.adversarial.has(model, task)

    def examples_of(self, task: str) -> int:
        """How many examples of a task a cell has."""
        return self.limits.get(task, self.limit)


@cache
def _shape_of(source: str) -> ModelShape:
    return ModelShape.of(load_model(source))
