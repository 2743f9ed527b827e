"""A causal LM ready to be taken apart: the original, its decoder, its graph, its tokenizer.

On load a model proves itself on a few tokens (`check`): the decoder's logits equal those of the
unmodified Hugging Face model, with and without padding, and the writers sum to the stream.

`untrained` gives the same architecture with random weights: what is found there, no training put
there. In commands and in `load_model` the copy of a model NAME is `untrained:NAME`, with seed 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import torch
from jaxtyping import Int
from torch import Tensor

from mechassay.errors import BadFile, BadPairs, BadUsage, MechassayError, UnsupportedModel
from mechassay.models.decoder import Context, Decoder
from mechassay.models.devices import (
    check_copies,
    devices_of,
    main_device,
    parameters_of,
    read_device_map,
)
from mechassay.models.families import decode
from mechassay.models.forward import Trace, trace
from mechassay.models.graph import Graph
from mechassay.models.identity import ModelIdentity
from mechassay.models.loading import with_drawn_weights
from mechassay.models.quantised import check_quantisation, shape_of, tensors_of
from mechassay.models.replicas import Replicas
from mechassay.models.self_check import SelfCheck, Watch, check_adapters, self_check
from mechassay.models.sources import (
    UNTRAINED,
    SourceFiles,
    digest_cache,
    find_source,
    source_files,
)
from mechassay.models.stored_weights import standing_in
from mechassay.prompts.batch import NO_TOKEN, Batch, PairsLike
from mechassay.prompts.interchange_batch import InterchangeBatch, InterchangesLike
from mechassay.prompts.interchanges import InterchangePair
from mechassay.prompts.pairs import Pair
from mechassay.prompts.tokenization import token_position
from mechassay.results.records import IDENTITY, Spec
from mechassay.results.verdict import Case, Conclusion
from mechassay.utils.arguments import checked
from mechassay.utils.display import OneLine, briefly, counted, html_facts

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Item = TypeVar("Item")
Result = TypeVar("Result")

DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name) for name in ("float32", "float64", "bfloat16", "float16")
}


@dataclass(frozen=True, eq=False, repr=False)
class Model(OneLine):
    """A causal LM, its decoder and its graph.

    Attributes:
        name: what it was loaded from.
        hf: the unmodified Hugging Face model (or `families.transformer_lens.LensModel`, for which
            transformers has no class).
        tokenizer: None for models without one; then only `Batch.from_tokens` batches can be run.
        prepend: token ids put before every prompt, after which the tokenizer's own special tokens
            come.
        files: the files that it was loaded from; None for a model in memory.
        loaded: the identity when it was loaded from files; None for a model in memory.
        is_own: whether these are files of the user's, whose name does not say which weights they
            hold.
        checkpoint: which weights these are, in words for reports; empty if the name says it.
        replicas: the same model in other processes, which do a share of what is split over pairs.
        watch: notices hooks and modules that came to the original after its check.
    """

    obtained_by: ClassVar[str] = "load_model(name) loads one."

    name: str
    hf: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    decoder: Decoder
    prepend: tuple[int, ...] = ()
    self_check: SelfCheck | None = None
    files: SourceFiles | None = None
    loaded: ModelIdentity | None = None
    is_own: bool = False
    checkpoint: str = ""
    replicas: Replicas | None = None
    watch: Watch = field(default_factory=Watch)

    def spec(self, **more: Any) -> Spec:
        """Which model it is, for records."""
        identity = {IDENTITY: self.loaded.weights} if self.is_own and self.loaded else {}
        checkpoint = {"checkpoint": self.checkpoint} if self.checkpoint else {}
        return Spec(name=self.name, args={"family": self.family, **more, **identity, **checkpoint})

    @property
    def identity(self) -> ModelIdentity:
        """The digests of weights, configuration and tokenizer as they are now, hashed anew."""
        return ModelIdentity.of(self.hf, self.tokenizer)

    @property
    def known_identity(self) -> ModelIdentity:
        """The digests, hashed again only if the weights were changed (`models.edits`)."""
        self.read_again()
        if self.watch.identity is None:
            self.watch.identity = self.identity
        return self.watch.identity

    def repr_fields(self) -> dict[str, Any]:
        graph, dtype = self.graph, str(self.dtype).removeprefix("torch.")
        sizes = {"layers": graph.n_layers, "heads": graph.n_heads, "edges": graph.n_edges}
        where = {"dtype": dtype, "device": str(self.device)}
        return {"name": self.name, "family": self.family, **sizes, **where}

    @property
    def facts(self) -> dict[str, str]:
        """What the model is, and what it proved on loading, in words."""
        graph, decoder, check = self.graph, self.decoder, self.self_check
        key_heads = decoder.layers[0].attention.k.weight.shape[0]
        facts = {
            "family": self.family,
            "layers, query heads, key/value heads": (
                f"{graph.n_layers}, {graph.n_heads}, {key_heads}"
            ),
            "width, vocabulary": f"{decoder.d_model:,}, {decoder.embedding.shape[0]:,}",
            "parameters": f"{self.n_parameters:,} ({self.weight_bytes / 2**30:,.3f} GB)",
            "blocks": "parallel" if graph.parallel else "sequential",
            "writers, readers, edges": (
                f"{graph.n_writers:,}, {graph.n_readers:,}, {graph.n_edges:,}"
            ),
            **({"checkpoint": self.checkpoint} if self.checkpoint else {}),
            "dtype, device": f"{str(self.dtype).removeprefix('torch.')}, {self.device}",
        }
        if check is None:
            return facts
        return {
            **facts,
            "logits against the original": f"{check.logits:.1e} (allowed {check.tolerance:.0e})",
            "the same, left-padded": f"{check.logits_left_padded:.1e}",
            "the same, at limits of positions": f"{check.logits_at_limits:.1e}",
            "the same, with windows of 8 tokens": f"{check.logits_of_small_copy:.1e}",
            "sum of writers against the stream": f"{check.writers_sum:.1e}",
        }

    @property
    def conclusion(self) -> Conclusion:
        """Whether the decoder computes what the original does, by the check on loading."""
        check = self.self_check
        if check is None:
            return Conclusion((), (Case("computed", "not tested"),), {"model": self.name})
        numbers = {
            "largest": f"{check.largest:.0e}",
            "allowed": f"{check.tolerance:.0e}",
            "comparisons": len(check.differences),
        }
        return Conclusion((), (Case("computed", "yes", numbers),), {"model": self.name})

    def _repr_html_(self) -> str:
        return html_facts(self.name, self.facts)

    @property
    def graph(self) -> Graph:
        """Writers, readers and edges."""
        return self.decoder.graph

    @property
    def dtype(self) -> torch.dtype:
        return self.decoder.embedding.dtype

    @property
    def device(self) -> torch.device:
        return self.decoder.embedding.device

    @property
    def family(self) -> str:
        return str(self.hf.config.model_type)

    @property
    def n_parameters(self) -> int:
        """Numbers that are trained; of tied embeddings once."""
        return sum(shape_of(parameter).numel() for _, parameter in parameters_of(self.hf))

    @property
    def weight_bytes(self) -> int:
        """Bytes that the weights take as they are stored; of tied ones once."""
        stored = (x for _, own in parameters_of(self.hf) for _, x in tensors_of(own))
        return sum(x.numel() * x.element_size() for x in stored)

    @property
    def accumulator(self) -> torch.dtype:
        """What sums over examples are kept in: fp32, or fp64 for an fp64 model."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    def everywhere(
        self,
        function: Callable[[Model, Item], Result],
        items: Sequence[Item],
        here: Callable[[Model, Item], Result] | None = None,
    ) -> Iterator[Result]:
        """`function(model, item)` of each item, in order: in this process and in those of the
        replicas, if there are any. Function, items and results then travel between processes.

        Args:
            here: what this process does in place of `function`, such as to report progress too.

        Raises:
            MechassayError: a process died, as when memory ran out.
        """
        here = here or function
        if self.replicas is None or len(items) < 2:
            return (here(self, item) for item in items)
        # What is done here must not wait for what is done elsewhere.
        return self.replicas.map(function, replace(self, replicas=None), items, here)

    @checked
    def batch(self, pairs: PairsLike) -> Batch:
        """Pairs as an aligned batch on the model's device.

        Raises:
            BadPairs: see `Batch.from_pairs`; text pairs for a model without tokenizer; token ids
                that the model does not have; prompts longer than its positions.
            SelfCheckFailed, UnsupportedModel: the original was changed, see `check_unchanged`.
        """
        self.check_unchanged()
        if isinstance(pairs, Pair):
            pairs = (pairs,)
        if not isinstance(pairs, Batch):
            _check_pairs(pairs)
            if self.tokenizer is None:
                raise BadPairs(
                    f"{self.name} has no tokenizer; pass Batch.from_tokens(...) instead of text"
                    " pairs."
                )
            pairs = Batch.from_pairs(pairs, self.tokenizer, prepend=self.prepend)
        prompts = {"clean prompt": pairs.clean, "counterfactual": pairs.counterfactual}
        self._check_tokens(pairs.ids, prompts, {"answer": pairs.answers, "foil": pairs.foils})
        self._check_lengths(pairs.ids, pairs.lengths)
        return pairs.to(self.device)

    @checked
    def interchanges(self, pairs: InterchangesLike) -> InterchangeBatch:
        """Interchanges as a batch on the model's device: of pairs, the clean prompt is the base.

        Raises:
            BadPairs: see `InterchangeBatch.from_pairs` and `from_batch`; text for a model without
                tokenizer; token ids that the model does not have; prompts that are, with their
                labels, longer than its positions.
            SelfCheckFailed, UnsupportedModel: the original was changed, see `check_unchanged`.
        """
        self.check_unchanged()
        if isinstance(pairs, Batch):
            pairs = InterchangeBatch.from_batch(pairs)
        elif not isinstance(pairs, InterchangeBatch):
            if isinstance(pairs, Pair | InterchangePair):
                pairs = (pairs,)
            _check_pairs(pairs, (Pair, InterchangePair))
            if self.tokenizer is None:
                raise BadPairs(
                    f"{self.name} has no tokenizer; pass InterchangeBatch.from_tokens(...) instead"
                    " of text pairs."
                )
            pairs = InterchangeBatch.from_pairs(pairs, self)
        own = {} if pairs.base_labels is None else {"base label": pairs.base_labels}
        prompts = {"base": pairs.base, "source": pairs.source}
        self._check_tokens(pairs.ids, prompts, {"label": pairs.labels, **own})
        last, begin = pairs.column("last")[0], pairs.starts[0]
        self._check_lengths(pairs.ids, last - begin + pairs.label_lengths)
        self._check_lengths(pairs.ids, pairs.source_lengths)
        return pairs.to(self.device)

    def _check_tokens(
        self, ids: Sequence[str], prompts: Mapping[str, Tensor], answers: Mapping[str, Tensor]
    ) -> None:
        """Refuse token ids that the model does not have; `NO_TOKEN` is one of what is said."""
        vocabulary = len(self.decoder.embedding)
        leasts = [0] * len(prompts) + [NO_TOKEN] * len(answers)
        for (what, tokens), least in zip({**prompts, **answers}.items(), leasts, strict=True):
            strange = (tokens >= vocabulary) | (tokens < least)
            if bool(strange.any()):
                row = int(strange.any(dim=1).nonzero()[0])
                token = int(tokens[row][strange[row]][0])
                raise BadPairs(
                    f"Pair {ids[row]}: its {what} has the token id {token}; {self.name} has 0"
                    f" to {vocabulary - 1}."
                )

    def _check_lengths(self, ids: Sequence[str], lengths: Int[Tensor, "batch"]) -> None:
        if len(ids):
            self.check_length(f"Pair {ids[int(lengths.argmax())]}", int(lengths.max()))

    def check_length(self, what: str, n_tokens: int) -> None:
        """Refuse a text that is longer than the model's positions.

        Raises:
            BadPairs: it is; the message calls it `what`.
        """
        longest = self.decoder.longest
        if longest is not None and n_tokens > longest:
            raise BadPairs(
                f"{what} has {n_tokens:,} tokens; {self.name} has {longest:,} positions."
            )

    @checked
    def positions(
        self, pairs: Sequence[Pair], name: str, *, counterfactual: bool = False
    ) -> Int[Tensor, "batch"]:
        """The column of a token in `self.batch(pairs)`, by its meaning.

        Args:
            pairs: pairs with spans.
            name: "last"; a part of the prompts (a key of `Pair.spans`) for its last token;
                "part.first" or "part.last".
            counterfactual: look in the counterfactual prompts.

        Raises:
            UnknownName: no pair has such a part.
            BadPairs: one pair lacks it, or its token was cut from the prompt.
        """
        batch = self.batch(pairs)
        if name == "last":
            return torch.full((len(batch),), batch.n_tokens - 1)
        assert self.tokenizer is not None
        texts = [pair.counterfactual if counterfactual else pair.clean for pair in pairs]
        spans = [pair.counterfactual_spans if counterfactual else pair.spans for pair in pairs]
        columns: list[int] = []
        indices = token_position(texts, spans, name, self.tokenizer)
        for pair, index, length in zip(pairs, indices, batch.lengths.tolist(), strict=True):
            if index is None or len(self.prepend) + index >= length:
                raise BadPairs(f"Pair {pair.id} has no token {name!r}.")
            columns.append(batch.n_tokens - length + len(self.prepend) + index)
        return torch.tensor(columns)

    @torch.no_grad()
    def run(self, batch: Batch, *, counterfactual: bool = False) -> tuple[Trace, Context]:
        """A forward pass of a batch's clean (or counterfactual) prompts, taken apart."""
        self._check_lengths(batch.ids, batch.lengths)
        ctx = self.decoder.context(batch.mask)
        tokens = batch.counterfactual if counterfactual else batch.clean
        return trace(self.decoder, self.decoder.embed(tokens), ctx), ctx

    def check(self) -> SelfCheck:
        """Compare the decoder with the original, see `models.self_check`.

        Raises:
            SelfCheckFailed: they differ by more than rounding; the message says which part, and
                what was found to cause it.
            UnsupportedModel: adapters that are not merged; a copy that cannot be built.
        """
        check_adapters(self.name, self.hf)
        check = self_check(self.name, self.hf, self.decoder, decode)
        self.watch.accept(self.hf, self.device)
        return check

    def check_unchanged(self) -> None:
        """Read the weights again if they were changed in memory, and check the model again if
        hooks, modules or autocast are not as at the last check.

        Each function that runs the model calls this once. A changed attribute, such as a number of
        the configuration or the epsilon of a norm, is not noticed.

        Raises:
            BadUsage: see `read_again`.
            SelfCheckFailed, UnsupportedModel: see `check`.
        """
        self.read_again()
        if self.watch.checked is None:  # a copy, or a model in another process
            self.watch.accept(self.hf, self.device)
        elif self.watch.differs(self.hf, self.device):
            self.check()

    def read_again(self) -> None:
        """Read the decoder again if the weights were changed in memory: by an optimizer, by
        `load_state_dict`, a new Parameter, or through `Tensor.data`.

        An edit of single elements through `Tensor.data` can be missed, see `models.edits`. Load the
        model again after such an edit.

        Raises:
            BadUsage: the weights cannot be read again, or the decoder was made of those before.
        """
        watch = self.watch
        if watch.decoder is None or watch.edits is None or not watch.edits.seen(self.hf):
            return
        if self.decoder is not watch.decoder:
            raise BadUsage(
                f"The weights of {self.name} were changed after its decoder was made: make the"
                " decoder again."
            )
        try:
            fresh = _read(self.hf, self.name)
        except MechassayError as error:
            raise BadUsage(
                f"The weights of {self.name} were changed, and cannot be read again: {error} Load"
                " the model again."
            ) from None
        # The same object: whoever holds the decoder has the new weights.
        vars(watch.decoder).clear()
        vars(watch.decoder).update(vars(fresh))
        watch.read(self.hf, watch.decoder)

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields of a copy, without the decoder if it can be read from the original."""
        state = dict(vars(self))
        if self.decoder is self.watch.decoder:
            del state["decoder"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if "decoder" not in state:
            vars(self)["decoder"] = _read(self.hf, self.name)
            self.watch.read(self.hf, self.decoder)


def _check_pairs(pairs: Any, kinds: tuple[type, ...] = (Pair,)) -> None:
    """Refuse what are no pairs, such as the name of a task."""
    several = isinstance(pairs, Sequence) and not isinstance(pairs, str)
    strange = next((x for x in pairs if not isinstance(x, kinds)), None) if several else pairs
    if strange is not None:
        task = f"load_task({pairs!r})" if isinstance(pairs, str) else "task"
        raise BadPairs(
            f"Pairs of prompts are needed, such as {task}.pairs('train', model); got"
            f" {briefly(strange)}."
        )


def make_model(
    hf: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    name: str | None = None,
    prepend: Sequence[int] = (),
    check: bool = True,
) -> Model:
    """A `Model` around a Hugging Face model in memory, which is put in eval mode and shared.

    The 4-bit weights of bitsandbytes keep the layout in which they were quantised (see
    `quantised.keep_quantised_layout`).

    Raises:
        UnsupportedModel: no family fits (the message names the module that was not found), or the
            model is quantised in a way that is not read, or quantised and offloaded.
        SelfCheckFailed: the decoder does not describe this model, or copies between its devices
            change values.
    """
    label = name or getattr(hf.config, "_name_or_path", "") or type(hf).__name__
    check_adapters(label, hf)
    devices, device = devices_of(hf), main_device(hf)
    check_copies((device, *sorted(devices - {device, torch.device("meta")}, key=str)))
    settings = getattr(hf.config, "quantization_config", None)
    if getattr(hf, "is_quantized", False):
        check_quantisation(label, settings, getattr(hf, "quantization_method", None))
        if torch.device("meta") in devices:
            raise UnsupportedModel(
                f"{label} is quantised and offloaded; quantise it, or offload it, or use more GPUs."
            )
    if hasattr(hf, "set_experts_implementation") and hf.dtype == torch.float64:
        # PyTorch's product of all experts at once takes no fp64.
        hf.set_experts_implementation("eager")
    hf.eval()
    model = Model(label, hf, tokenizer, _read(hf, label), tuple(prepend))
    model.watch.read(hf, model.decoder)
    return replace(model, self_check=model.check()) if check else model


def _read(hf: PreTrainedModel, label: str) -> Decoder:
    """Return the decoder of an original; matrices that are quantised or elsewhere are made when
    they are used.
    """
    dtype = next(x.dtype for x in hf.parameters() if x.is_floating_point())
    with standing_in(hf, label, dtype, main_device(hf)):
        return decode(hf)


@checked
def load_model(
    source: str | PathLike[str] | torch.nn.Module | Model,
    *,
    dtype: str | torch.dtype = "float32",
    device: str | torch.device = "cpu",
    device_map: str | PathLike[str] | Mapping[str, Any] | None = None,
    tokenizer: Any = None,
    prepend_bos: bool = False,
) -> Model:
    """Load a causal LM in evaluation mode, and compare it with the original (`Model.check`).

    Args:
        source: a packaged model ("smollm2-135m", "gemma3-270m"), a ground truth ("truth-ioi"),
            "gym-neox", a local folder, a .gguf file, a hub id, or a Hugging Face model in memory
            (whose dtype and device are kept; it is put into evaluation mode and shared). Names,
            folders and hub ids may end in @ and a revision: "gym-neox@step128". Behind
            "untrained:" any of them has random weights. A `Model` is returned as it is: its dtype,
            device and BOS token are its own.
        dtype: "float32", "float64", "bfloat16" or "float16".
        device: where to put it; "auto" is a GPU if there is one.
        device_map: in its place, where each module goes: "auto", a map from modules to devices,
            "cpu" or "disk", or a JSON file of one. A model in memory keeps its own.
        tokenizer: for a model in memory; otherwise the source's own.
        prepend_bos: put the tokenizer's BOS token before every prompt where the tokenizer does not
            (TransformerLens, and with it MIB's code, does so for GPT-2).

    Raises:
        UnknownName, ModelNotFetched, BadFile, MissingExtra: see `models.sources`.
        UnsupportedModel, SelfCheckFailed: its family is not read, or not rightly.
        BadUsage: no such dtype, device or device map.
    """
    if isinstance(source, Model):
        return source
    if not isinstance(source, str | PathLike):
        if not hasattr(source, "config"):
            raise BadUsage(
                "load_model takes a name, a path or a Hugging Face model in memory; got a"
                f" {type(source).__name__} without a config."
            )
        if device_map is not None:
            raise BadUsage("device_map is for models that are loaded; one in memory has its own.")
        return make_model(
            cast("PreTrainedModel", source), tokenizer, prepend=_bos(tokenizer, prepend_bos)
        )
    from mechassay.models.loading import load_hf, resolve

    if isinstance(dtype, str):
        dtype = check_dtype(dtype)
    device = check_device(device)
    placing = None if device_map is None else read_device_map(device_map)
    known_source, type_name = find_source(fspath(source)), str(dtype).removeprefix("torch.")
    files = source_files(known_source, type_name)
    resolved = resolve(fspath(source))
    hf, own, unused = load_hf(resolved, dtype=dtype, device=device, device_map=placing)
    tokenizer = tokenizer or own
    model = make_model(hf, tokenizer, name=resolved.name, prepend=_bos(tokenizer, prepend_bos))
    # Another tokenizer than the files' own has another digest.
    own_files = source_files(known_source, type_name) if tokenizer is own else None
    if files is not None and own_files is not None and files.states != own_files.states:
        raise BadFile(f"{source}: files changed during loading; load the model again.")
    notes = [resolved.note] if resolved.note else []
    if unused:
        names = f"{', '.join(unused[:3])}{', ...' if unused[3:] else ''}"
        notes.append(f"{counted(len(unused), 'tensor')} of its files not used ({names})")
    about = {"is_own": resolved.own, "checkpoint": "; ".join(notes)}
    loaded = model.watch.identity = _identity(model, own_files)
    return replace(model, files=own_files, loaded=loaded, **about)


def _identity(model: Model, files: SourceFiles | None) -> ModelIdentity:
    """Return the identity of a model that was loaded from files, from the cache if it is there."""
    if files is None:
        return model.identity

    def make() -> dict[str, str]:
        return model.identity.as_dict()

    cache = digest_cache()
    return ModelIdentity(**cache.of(files.path, files.states, make, about=files.about))


def outline(source: str, *, dtype: str = "float32", prepend_bos: bool = False) -> Model:
    """A model without weights, from its config.json: what it costs can be said, not what it says.

    Args: see `load_model`.

    Raises:
        BadUsage: a .gguf file that was not dequantised before: this is done where it is loaded.
        UnknownName, ModelNotFetched, BadFile, UnsupportedModel: as `load_model`.
    """
    from mechassay.models.loading import outline_hf, resolve

    known_source = find_source(source)
    if known_source.kind == "gguf":
        raise BadUsage(
            f"{source}: what a .gguf file takes is known once it is loaded; name a folder or a hub"
            " id with a config.json."
        )
    resolved = resolve(source)
    hf, tokenizer = outline_hf(resolved, check_dtype(dtype))
    prepend = _bos(tokenizer, prepend_bos and tokenizer is not None)
    return Model(resolved.name, hf, tokenizer, decode(hf), prepend)


def check_dtype(name: str) -> torch.dtype:
    """The type of that name.

    Raises:
        BadUsage: there is none that models can have.
    """
    if name not in DTYPES:
        raise BadUsage(f"dtype must be one of {', '.join(DTYPES)}; got {name!r}.")
    return DTYPES[name]


def check_device(wanted: str | torch.device) -> torch.device:
    """A device that this machine has; "auto" is its GPU, or the CPU without one.

    Raises:
        BadUsage: it has no such device.
    """
    if wanted == "auto":
        mps = "mps" if torch.backends.mps.is_available() else "cpu"
        return torch.device("cuda" if torch.cuda.is_available() else mps)
    try:
        device = torch.device(wanted)
        torch.empty(0, device=device, dtype=torch.float32)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        # What a missing device raises depends on its kind.
        raise BadUsage(
            f"device must be auto, cpu, cuda, cuda:N or mps, and on this machine; got"
            f" {str(wanted)!r}."
        ) from error
    return device


def _bos(tokenizer: Any, wanted: bool) -> tuple[int, ...]:
    if not wanted:
        return ()
    if tokenizer is None or tokenizer.bos_token_id is None:
        raise BadUsage("prepend_bos needs a tokenizer with a BOS token.")
    adds_it = tokenizer("a")["input_ids"][0] == tokenizer.bos_token_id
    return () if adds_it else (int(tokenizer.bos_token_id),)


def untrained(model: Model, seed: int = 0) -> Model:
    """A copy of a model with weights as its class draws them before any training.

    Args:
        seed: of the weights; the global generator is left as it is.

    Raises:
        BadUsage: a model that transformers has no class for, which says how weights are drawn.
    """
    hf = with_drawn_weights(model.hf, model.name, seed)
    return make_model(hf, model.tokenizer, name=f"{UNTRAINED}{model.name}", prepend=model.prepend)
