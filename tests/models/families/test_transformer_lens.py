"""Checkpoints in TransformerLens' layout: computed as they are defined, and read as data."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from safetensors.torch import save_file

import mechassay as ma
from helpers.attn_only import State, logits_of, run
from helpers.tiny_models import with_words, write_attn_only, write_interpbench
from mechassay.circuits.circuit import Circuit
from mechassay.circuits.evaluation.metrics import recovery_of
from mechassay.circuits.graph_files import GraphFile
from mechassay.discovery.experiment import CircuitsExperiment
from mechassay.errors import BadFile, BadUsage, ModelNotFetched, SelfCheckFailed, UnsupportedModel
from mechassay.models.families.transformer_lens import LensConfig, LensModel
from mechassay.models.forward import forward
from mechassay.models.graph import Graph
from mechassay.models.self_check import sum_of_writers
from mechassay.prompts.batch import Batch
from mechassay.runs.folder import RunFolder
from mechassay.testing.tiny import token_pairs
from mechassay.utils.display import SILENT

HUB_ID = "NeelNanda/Attn_Only_4L512W_C4_Code"


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> State:
    return write_attn_only(tmp_path_factory.mktemp("attn-only"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_attn_only(tmp_path / "mine")
    return tmp_path / "mine"


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **changes}), "utf-8")


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Save the weights again after changing the dictionary in place."""
    stored = torch.load(folder / "model_final.pth", weights_only=True)
    change(stored)
    torch.save(stored, folder / "model_final.pth")


def all_logits(folder: Path, **options: Any) -> torch.Tensor:
    model = ma.load_model(str(folder), **options)
    return model.run(token_pairs())[0].readout(model.decoder).all()


# --- the computation
# ---------------------------------------------------------------------------------


def test_logits_are_those_of_the_definition(folder: Path, state: State) -> None:
    """In fp64, at every position, with and without padding:
    by the decoder, and by the model it is checked against.
    """
    model, batch = ma.load_model(str(folder), dtype="float64"), token_pairs()
    taken, _ = model.run(batch)
    for row, (tokens, real) in enumerate(zip(batch.clean, batch.mask, strict=True)):
        wanted = logits_of(state, run(state, tokens[real]).streams[-1])
        original = model.hf(tokens[real][None]).logits[0]
        ours = torch.stack(
            [
                model.decoder.readout(taken.final[row, column][None]).all()[0]
                for column in real.nonzero().flatten()
            ]
        )
        torch.testing.assert_close(original, wanted, rtol=0, atol=1e-10)
        torch.testing.assert_close(ours, wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize("act", ["gelu", "gelu_new", "relu", "silu"])
@pytest.mark.parametrize("normalized", [True, False])
def test_with_mlps_logits_are_those_of_the_definition(
    tmp_path: Path, act: str, normalized: bool
) -> None:
    """One token after another, by the equations, with plain tensors."""
    config = LensConfig(2, 3, 12, 4, 9, 97, d_mlp=7, act_fn=act, normalized=normalized)
    generator = torch.Generator().manual_seed(1)
    state = {
        name: torch.randn(shape, generator=generator, dtype=torch.float64) * 0.4
        for name, shape in config.shapes.items()
    }
    save_file(state, tmp_path / "final.safetensors")
    sizes = {"n_layers": 2, "n_heads": 3, "d_model": 12, "d_head": 4, "n_ctx": 9, "d_vocab": 97}
    kind = "LN" if normalized else "LNPre"
    (tmp_path / "config.json").write_text(
        json.dumps(
            {**sizes, "d_mlp": 7, "act_fn": act, "attn_only": False, "normalization_type": kind}
        ),
        "utf-8",
    )
    functions: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "gelu": lambda x: x * (1 + torch.erf(x / 2**0.5)) / 2,
        "gelu_new": lambda x: (
            x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))) / 2
        ),
        "relu": lambda x: torch.where(x > 0, x, 0.0),
        "silu": lambda x: x / (1 + torch.exp(-x)),
    }

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        y = (x - x.mean()) / torch.sqrt(((x - x.mean()) ** 2).mean() + 1e-5)
        return y * state[f"{name}.w"] + state[f"{name}.b"] if normalized else y

    tokens = [5, 96, 0, 41, 5]
    x = [state["embed.W_E"][t] + state["pos_embed.W_pos"][i] for i, t in enumerate(tokens)]
    for block in ("blocks.0", "blocks.1"):
        y = [norm(each, f"{block}.ln1") for each in x]
        added = [state[f"{block}.attn.b_O"].clone() for _ in tokens]
        for head in range(3):
            q, k, v = (
                [
                    each @ state[f"{block}.attn.W_{s}"][head] + state[f"{block}.attn.b_{s}"][head]
                    for each in y
                ]
                for s in "QKV"
            )
            for place in range(len(tokens)):
                scores = torch.stack([q[place] @ k[j] / 2 for j in range(place + 1)])
                pattern = scores.softmax(0)
                z = sum((pattern[j] * v[j] for j in range(place + 1)), torch.zeros(4).double())
                added[place] += z @ state[f"{block}.attn.W_O"][head]
        x = [each + more for each, more in zip(x, added, strict=True)]
        for place, each in enumerate(x):
            inner = norm(each, f"{block}.ln2") @ state[f"{block}.mlp.W_in"]
            inner = functions[act](inner + state[f"{block}.mlp.b_in"])
            x[place] = each + inner @ state[f"{block}.mlp.W_out"] + state[f"{block}.mlp.b_out"]
    wanted = torch.stack(
        [norm(each, "ln_final") @ state["unembed.W_U"] + state["unembed.b_U"] for each in x]
    )
    model = ma.load_model(str(tmp_path), dtype="float64")
    torch.testing.assert_close(
        model.hf(torch.tensor([tokens])).logits[0], wanted, rtol=0, atol=1e-10
    )
    batch = Batch.from_tokens(
        torch.tensor([tokens]), torch.tensor([tokens]), torch.tensor([1]), torch.tensor([2])
    )
    ours = model.run(batch)[0].readout(model.decoder).all()[0]
    torch.testing.assert_close(ours, wanted[-1], rtol=0, atol=1e-10)
    assert model.family == "transformer-lens" and model.graph.mlp


@pytest.mark.slow
def test_interpbench_is_read_by_its_layout(tmp_path: Path) -> None:
    """Its sizes are known, its circuit is that of its graph file, and its pickle stays closed."""
    folder = tmp_path / "interpbench"
    write_interpbench(folder)
    with_words()[1].save_pretrained(folder)
    (folder / "ll_model_cfg.pkl").write_bytes(b"not opened")
    with pytest.raises(BadFile, match="ll_model_cfg.pkl, a pickle, which can run code") as caught:
        ma.load_model(str(folder))
    assert "\n" not in str(caught.value)
    graph = Graph(6, 4)
    circuit = Circuit.from_names(
        graph, ["input->a0.h1<v>", "a0.h1->a4.h2<k>", "a4.h2->logits", "input->a4.h2<q>"]
    )
    GraphFile(graph, 64, circuit=circuit).write(folder / "interpbench_graph.json")
    model = ma.load_model(str(folder))
    assert (model.graph.n_layers, model.graph.n_heads, model.decoder.d_model) == (6, 4, 64)
    assert model.graph.n_edges == 1108, "as the benchmark counts"
    experiment = CircuitsExperiment(
        (str(folder),),
        ("ioi",),
        ("eap", "clean-corrupted"),
        train_limit=4,
        limit=6,
        random_rankings=5,
    )
    records = ma.run(experiment, tmp_path / "run", progress=SILENT).records
    scores = [
        ma.circuits.EdgeScores.load(RunFolder(tmp_path / "run").scores_file(cell.name))
        for cell in experiment.cells()
    ]
    for record, found in zip(records, scores, strict=True):
        expected = recovery_of(found, circuit, by="magnitude")
        assert record.value("auroc") == pytest.approx(expected.auroc)
    other = Graph(3, 4)
    GraphFile(other, 64, circuit=Circuit.full(other)).write(tmp_path / "other.json")
    with pytest.raises(BadUsage, match="graph"):
        ma.run(
            replace(experiment, known=str(tmp_path / "other.json")),
            tmp_path / "no",
            progress=SILENT,
        )
    beside = tmp_path / "beside"
    with_words()[0].save_pretrained(beside)
    (beside / "interpbench_graph.json").write_bytes(
        (folder / "interpbench_graph.json").read_bytes()
    )
    assert ma.load_model(str(beside)).family == "llama", "a config says what a model is"
    (folder / "ioi_all_splits" / "ll_model_100_100_80.pth").unlink()
    with pytest.raises(BadFile, match="InterpBench's weights are ioi_all_splits/"):
        ma.load_model(str(folder))


def test_the_unembedding_s_bias_counts(folder: Path, state: State) -> None:
    bias = torch.linspace(-1, 1, 97, dtype=torch.float64)
    before = all_logits(folder, dtype="float64")
    rewrite(folder, lambda stored: stored.update({"unembed.b_U": bias}))
    torch.testing.assert_close(
        all_logits(folder, dtype="float64"), before + bias, rtol=0, atol=1e-12
    )


def test_the_model_knows_itself(folder: Path) -> None:
    model = ma.load_model(str(folder))
    assert model.family == "transformer-lens"
    assert model.name == "mine"
    assert model.tokenizer is None
    assert (model.graph.n_layers, model.graph.n_heads, model.graph.mlp) == (3, 4, False)
    assert model.self_check is not None
    assert model.self_check.passed
    assert (
        max(
            model.self_check.logits,
            model.self_check.logits_left_padded,
            model.self_check.writers_sum,
        )
        < 1e-5
    )
    assert not any(parameter.requires_grad for parameter in model.hf.parameters())
    assert model.hf.state_dict().keys() == write_attn_only(folder).keys()
    assert model.decoder.embedding.data_ptr() == model.hf.state_dict()["embed.W_E"].data_ptr()


def test_a_decoder_that_reads_it_wrongly_is_found_out(folder: Path) -> None:
    model = ma.load_model(str(folder))
    first = model.decoder.layers[0]
    wrong = replace(first, attention=replace(first.attention, scale=first.attention.scale * 1.1))
    with pytest.raises(SelfCheckFailed, match=r"transformer-lens.*the logits differ"):
        replace(
            model, decoder=replace(model.decoder, layers=(wrong, *model.decoder.layers[1:]))
        ).check()


def test_writers_sum_to_the_stream_and_a_run_can_be_resumed(folder: Path) -> None:
    model, batch = ma.load_model(str(folder), dtype="float64"), token_pairs()
    taken, ctx = model.run(batch)
    torch.testing.assert_close(
        sum_of_writers(model.decoder, taken, ctx), taken.final, rtol=0, atol=1e-12
    )
    wanted = taken.readout(model.decoder).all()
    for layer, seen in enumerate(taken.layers):
        final = forward(model.decoder, seen.before, ctx, layer=layer, last_only=True)
        again = model.decoder.readout(final[:, -1]).all()
        torch.testing.assert_close(again, wanted, rtol=0, atol=1e-11)


def test_bf16_runs_and_is_close(folder: Path) -> None:
    wide, narrow = all_logits(folder), all_logits(folder, dtype="bfloat16")
    assert narrow.dtype == torch.float32
    assert float((wide - narrow).abs().max() / wide.std()) < 0.2


# --- files
# -------------------------------------------------------------------------------------------


def test_safetensors_are_read_too(folder: Path) -> None:
    before = all_logits(folder)
    save_file(
        torch.load(folder / "model_final.pth", weights_only=True), folder / "model.safetensors"
    )
    (folder / "model_final.pth").unlink()
    torch.testing.assert_close(all_logits(folder), before, rtol=0, atol=0)


def test_of_several_files_the_final_one_is_read(folder: Path) -> None:
    before = all_logits(folder)
    torch.save({"lr": 0.1}, folder / "optimizer_state_dict.pth")
    torch.save({}, folder / "model_init.pth")
    torch.testing.assert_close(all_logits(folder), before, rtol=0, atol=0)
    (folder / "model_final.pth").unlink()
    with pytest.raises(
        BadFile, match=r"one file of weights.*; got model_init\.pth, optimizer_state_dict\.pth\."
    ):
        ma.load_model(str(folder))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda stored: stored.pop("blocks.1.attn.b_K"), r"lacks 1 tensors .*blocks\.1\.attn\.b_K"),
        (lambda stored: stored.pop("unembed.W_U"), r"lacks 1 tensors .*unembed\.W_U"),
        (
            lambda stored: stored.update({"blocks.0.mlp.W_in": torch.zeros(32, 128)}),
            r"has unknown 1 tensors .*blocks\.0\.mlp\.W_in",
        ),
        (
            lambda stored: stored.update({"blocks.3.ln1.w": torch.zeros(32)}),
            r"has unknown 1 tensors .*blocks\.3\.ln1\.w",
        ),
        (lambda stored: stored.update({5: torch.zeros(3)}), r"has unknown 1 tensors .*example 5"),
        (
            lambda stored: stored.update({"ln_final.b": torch.zeros(31)}),
            r"ln_final\.b has shape \(31,\); expected \(32,\)",
        ),
        (
            lambda stored: stored.update(
                {"blocks.0.attn.W_O": stored["blocks.0.attn.W_O"].transpose(1, 2)}
            ),
            r"blocks\.0\.attn\.W_O has shape \(4, 32, 8\)",
        ),
        (
            lambda stored: stored.update({"embed.W_E": torch.zeros(97, 32, dtype=torch.long)}),
            r"embed\.W_E holds int64; expected floating-point",
        ),
        (
            lambda stored: stored.update({"embed.W_E": "text"}),
            r"embed\.W_E is not an ordinary tensor",
        ),
        (
            lambda stored: stored.update({"embed.W_E": torch.zeros(97, 32).to_sparse()}),
            r"embed\.W_E is not an ordinary tensor",
        ),
        (
            lambda stored: stored["blocks.2.attn.mask"].fill_(True),
            r"blocks\.2\.attn\.mask is not a causal mask",
        ),
    ],
)
def test_weights_of_another_model_are_refused(
    folder: Path, change: Callable[[dict[str, Any]], object], says: str
) -> None:
    rewrite(folder, change)
    with pytest.raises(BadFile, match=says) as caught:
        ma.load_model(str(folder))
    assert "\n" not in str(caught.value)


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("the code was run",))


@pytest.mark.parametrize(
    "damage", ["truncated", "code", "old pickle", "a list", "bad safetensors", "none"]
)
def test_damaged_weights_are_one_line_and_nothing_runs(
    folder: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = folder / "model_final.pth"
    match damage:
        case "truncated":
            file.write_bytes(file.read_bytes()[:3000])
        case "code":
            rewrite(folder, lambda stored: stored.update(extra=Evil()))
        case "old pickle":
            torch.save({"extra": Evil()}, file, _use_new_zipfile_serialization=False)
        case "a list":
            torch.save([1, 2], file)
        case "bad safetensors":
            (folder / "model.safetensors").write_bytes(b"no header")
        case _:
            file.unlink()
    with pytest.raises(BadFile) as caught:
        ma.load_model(str(folder))
    assert "\n" not in str(caught.value)
    assert "the code was run" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"attn_only": False}, UnsupportedModel, "act_fn must be one of gelu.*got 'solu_ln'"),
        ({"normalization": "RMS"}, UnsupportedModel, "must be LN or LNPre; got 'RMS'"),
        ({"normalization": "LNPre"}, BadFile, r"has unknown 8 tensors .*blocks\.0\.ln1\.w"),
        ({"attn_only": False, "act_fn": "gelu"}, BadFile, r"lacks 18 tensors .*blocks\.0\.ln2\.w"),
        ({"attn_only": False, "act_fn": "gelu", "d_mlp": -1}, BadFile, "d_mlp must be a positive"),
        (
            {"normalization_type": None},
            UnsupportedModel,
            "normalization must be LN or LNPre; got None",
        ),
        ({"shortformer_pos": True}, UnsupportedModel, "shortformer_pos must be False; got True"),
        (
            {"positional_embedding_type": "rotary"},
            UnsupportedModel,
            "must be 'standard'; got 'rotary'",
        ),
        ({"use_attn_scale": False}, UnsupportedModel, "use_attn_scale must be True; got False"),
        ({"n_heads": 0}, BadFile, "n_heads must be a positive whole number; got 0"),
        ({"n_ctx": None}, BadFile, "n_ctx must be a positive whole number; got None"),
        ({"n_layers": 2.5}, BadFile, "n_layers must be a positive whole number; got 2.5"),
        ({"ln_eps": "small"}, BadFile, "ln_eps must be a number between 0 and 1; got 'small'"),
        ({"tokenizer_name": 3}, BadFile, "tokenizer_name must be a hub id; got 3"),
        ({"n_layers": 4}, BadFile, r"lacks 10 tensors .*blocks\.3\.ln1\.w"),
        ({"n_layers": 10**12}, BadFile, "too few for the 1000000000000 layers"),
        ({"d_head": 4}, BadFile, r"has shape \(4, 32, 8\); expected \(4, 32, 4\)"),
    ],
)
def test_a_config_of_another_model_is_refused(
    folder: Path, changes: dict[str, Any], error: type[Exception], says: str
) -> None:
    change_config(folder, **changes)
    with pytest.raises(error, match=says) as caught:
        ma.load_model(str(folder))
    assert "\n" not in str(caught.value)


def test_epsilon_is_the_config_s(folder: Path) -> None:
    before = all_logits(folder)
    change_config(folder, ln_eps=0.1)
    assert float((all_logits(folder) - before).abs().max()) > 1e-3


# --- tokenizers and the hub
# --------------------------------------------------------------------------


def test_a_tokenizer_in_the_folder_is_taken(folder: Path) -> None:
    with_words()[1].save_pretrained(folder)
    change_config(folder, tokenizer_name="nobody/nothing")
    model = ma.load_model(str(folder))
    assert model.tokenizer is not None
    assert model.tokenizer("the")["input_ids"] == with_words()[1]("the")["input_ids"]


def test_a_tokenizer_that_is_nowhere_is_asked_for(folder: Path) -> None:
    change_config(folder, tokenizer_name="NeelNanda/gpt-neox-tokenizer-digits")
    with pytest.raises(
        ModelNotFetched,
        match=r"gpt-neox-tokenizer-digits' of 'mine' .*put its tokenizer\.json .*mine",
    ) as caught:
        ma.load_model(str(folder))
    assert "\n" not in str(caught.value)


def test_a_checkpoint_comes_from_the_hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, Any]] = []

    def config(repository: str, name: str, *, revision: str | None) -> str:
        assert revision is None
        asked.append((repository, name))
        return str(folder / name)

    def snapshot(repository: str, *, allow_patterns: list[str], revision: str | None) -> str:
        asked.append((repository, "*final.pth" in allow_patterns))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", config)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    model = ma.load_model(HUB_ID)
    assert asked == [(HUB_ID, "config.json"), (HUB_ID, True)]
    assert model.name == HUB_ID
    assert isinstance(model.hf, LensModel)


def test_without_the_hub_it_is_not_fetched() -> None:
    with pytest.raises(ModelNotFetched, match="did not come from the Hugging Face hub") as caught:
        ma.load_model(HUB_ID)
    assert "\n" not in str(caught.value)


def test_interpbench_comes_from_the_hub_without_its_pickle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    write_interpbench(tmp_path)
    with_words()[1].save_pretrained(tmp_path)
    (tmp_path / "interpbench_graph.json").write_text("{}", "utf-8")

    def download(repo: str, **options: Any) -> str:
        asked.append((repo, options["allow_patterns"]))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    model = ma.load_model("mib-worker/interpbench")
    assert model.graph.n_edges == 1108
    assert asked == [
        (
            "mib-worker/interpbench",
            ["interpbench_graph.json", "ioi_all_splits/ll_model_100_100_80.pth"],
        )
    ]
