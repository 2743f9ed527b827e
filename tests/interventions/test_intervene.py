"""Interventions at several sites, and sweeps, against whole forwards with edits."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers.models import families
from mechassay.errors import BadPairs, BadUsage, NonFinite, OutOfMemory, UnknownName
from mechassay.interventions.intervene import Branch, Change, Intervened, intervene
from mechassay.interventions.intervention import (
    Ablate,
    Add,
    Interchange,
    Intervention,
    Replace,
    Scale,
)
from mechassay.interventions.names import PARTS
from mechassay.interventions.site import Site, load_site, sites
from mechassay.interventions.sweep import sweep
from mechassay.models.forward import Place, forward
from mechassay.models.model import Model
from mechassay.prompts.batch import NO_TOKEN
from mechassay.prompts.interchange_batch import InterchangeBatch
from mechassay.testing.tiny import VOCABULARY, subject
from mechassay.utils.display import SILENT

BASE = [[5, 8, 13, 21, 34], [3, 1, 4, 1, 5, 9, 2], [2, 7, 1, 8, 2, 8]]
SOURCE = [[5, 8, 14, 22, 34], [2, 7, 1, 8, 2, 8, 1], [2, 7, 3, 8, 2, 9]]
LABELS = [[11, 12, 13], [14], [15, 16]]
BASE_LABELS = [[17], [18, 19], [20]]
COLUMNS = {"subject": ([2, 1, 3], [2, 4, 2]), "other": ([0, 5, -1], [1, 0, -1])}


def batch(labels: Any = LABELS, base_labels: Any = BASE_LABELS) -> InterchangeBatch:
    return InterchangeBatch.from_tokens(
        BASE, SOURCE, labels, base_labels=base_labels, columns=COLUMNS, ids=["x", "y", "z"]
    )


def own(site: Site, row: int, side: int) -> list[int]:
    """The tokens of a site in one prompt, as its own indices."""
    prompt = (BASE, SOURCE)[side][row]
    if site.position == "all":
        return list(range(len(prompt)))
    if site.position == "last":
        return [len(prompt) - 1]
    at = site.position if isinstance(site.position, int) else COLUMNS[site.position][side][row]
    return [at % len(prompt)]


def at_site(site: Site, value: Tensor, tokens: list[int]) -> Tensor:
    """Values [t, d] of one prompt's forward, of shape [1, pos, d] or [1, heads, pos, d_head]."""
    if site.part != "heads":
        return value[0, tokens]
    heads = list(site.heads) or list(range(value.shape[1]))
    return value[0, heads][:, tokens].transpose(0, 1).flatten(1)


def put(site: Site, value: Tensor, tokens: list[int], new: Tensor) -> Tensor:
    value = value.clone()
    if site.part != "heads":
        value[0, tokens] = new
        return value
    heads = list(site.heads) or list(range(value.shape[1]))
    split = new.unflatten(1, (len(heads), -1))
    for i, head in enumerate(heads):
        value[0, head, tokens] = split[:, i]
    return value


def run_row(model: Model, tokens: list[int], edit: Any) -> Tensor:
    """The final streams of one prompt, every value open to an edit."""
    decoder = model.decoder
    ids = torch.tensor([tokens])
    ctx = decoder.context(torch.ones_like(ids, dtype=torch.bool))
    x = decoder.add_positions(decoder.embed(ids), ctx)
    return edit("stream", len(decoder.layers), forward(decoder, x, ctx, edit=edit))[0]


PLACES: dict[str, Place] = {"resid": "stream", "heads": "z", "mlp": "mlp"}


def slowly(
    model: Model, row: int, plan: Mapping[Site, Intervention], label: list[int]
) -> tuple[float, bool, Tensor]:
    """log p(label), whether it is written, and logits after the prompt, of one row."""
    seen: dict[tuple[Place, int], Tensor] = {}

    def keep(place: Place, layer: int, value: Tensor) -> Tensor:
        seen[place, layer] = value
        return value

    run_row(model, SOURCE[row], keep)

    def edit(place: Place, layer: int, value: Tensor) -> Tensor:
        for site, how in plan.items():
            if (place, layer) != (PLACES[site.part], site.place[1]):
                continue
            here, there = own(site, row, 0), own(site, row, 1)
            source = at_site(site, seen[place, layer], there) if how.needs_source else None
            value = put(site, value, here, how(at_site(site, value, here), source))
        return value

    final = run_row(model, BASE[row] + label[:-1], edit)
    logits = model.decoder.readout(final[-len(label) :]).all()
    told = logits.log_softmax(-1)[torch.arange(len(label)), label].sum()
    return float(told), logits.argmax(-1).tolist() == label, logits[0]


def vector(model: Model, seed: int, width: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(width, generator=generator, dtype=torch.float64)


def plans(model: Model) -> list[dict[Site, Intervention]]:
    """Sites alone and together, at every kind of place and position."""
    decoder = model.decoder
    d, two = decoder.d_model, 2 * decoder.layers[0].attention.out.shape[1]
    v = [vector(model, seed, d) for seed in range(4)]
    alone: list[tuple[str, Intervention]] = [
        ("resid.-1@subject", Interchange()),
        ("resid.1@last", Interchange(alpha=0.3)),
        ("resid.2@last", Add(v[0], 2.0)),
        ("resid.2@other", Replace(v[1])),
        ("resid.0@all", Add(v[2], 0.5)),
        ("mlp.1@2", Scale(0.0)),
        ("mlp.2@-1", Replace(v[3], alpha=0.4)),
        ("heads.1.0,1.2@subject", Interchange()),
        ("heads.2.1@last", Scale(2.0)),
        ("heads.0.1,0.3@all", Add(vector(model, 5, two))),
        ("heads.1@other", Interchange()),
        ("resid.1@subject", Ablate(torch.stack(v[:2], 1))),
        ("resid.1@subject", Ablate(v[0], to="mean", mean=v[1])),
    ]
    together = {load_site(s): how for s, how in alone if "resid.1@subject" not in s}
    return [*({load_site(s): how} for s, how in alone), together]


@pytest.mark.slow
@pytest.mark.parametrize("name", families())
def test_interventions_are_those_of_whole_forwards(name: str) -> None:
    model = subject(name, dtype=torch.float64).model
    for plan in plans(model):
        found = intervene(model, batch(), dict(plan))
        for row in range(3):
            told, written, logits = slowly(model, row, plan, LABELS[row])
            assert math.isclose(float(found.log_probs[row]), told, abs_tol=1e-10), (plan, row)
            assert bool(found.written[row]) is written
            torch.testing.assert_close(found.logits[row], logits, rtol=0, atol=1e-10)
            other, _, _ = slowly(model, row, plan, BASE_LABELS[row])
            assert math.isclose(float(found.other_log_probs[row]), other, abs_tol=1e-10)
            plain, _, without = slowly(model, row, {}, LABELS[row])
            assert math.isclose(float(found.base_log_probs[row]), plain, abs_tol=1e-10)
            own = model.decoder.readout(found.base_final).all()[row]
            torch.testing.assert_close(own, without, rtol=0, atol=1e-10)


def test_what_an_earlier_change_reaches_is_interchanged_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Equal values of base and source are left out only where nothing else has changed them."""
    alike = [[5, 8, 14, 22, 34], [3, 1, 4, 1, 5, 9, 1], BASE[2]]
    monkeypatch.setitem(globals(), "SOURCE", alike)
    model = subject("llama", dtype=torch.float64).model
    v = vector(model, 0, model.decoder.d_model)
    for position in ("0", "all"):
        for where in ("resid.1", "heads.1.2"):
            plan: dict[Site, Intervention] = {
                load_site("resid.0@0"): Add(v, 3.0),
                load_site(f"{where}@{position}"): Interchange(),
            }
            found = intervene(model, batch(), dict(plan))
            for row in range(3):
                told, _, _ = slowly(model, row, plan, LABELS[row])
                assert math.isclose(float(found.log_probs[row]), told, abs_tol=1e-10), (plan, row)


@pytest.mark.parametrize("name", ["gpt2", "gemma2", "mistral"])
def test_any_sites_together_are_whole_forwards(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random prompts, some equal and some of one token, and random sites and interventions."""
    drawn = random.Random(name)
    model = subject(name, dtype=torch.float64).model
    decoder, n_heads = model.decoder, model.graph.n_heads

    def tokens(lengths: list[int]) -> list[int]:
        return [drawn.randrange(VOCABULARY) for _ in range(drawn.choice(lengths))]

    for trial in range(8):
        bases = [tokens([1, 2, 4, 9]) for _ in range(3)]
        sources = [[*base[:-1], *tokens([1])] if drawn.random() < 0.7 else base for base in bases]
        monkeypatch.setitem(globals(), "BASE", bases)
        monkeypatch.setitem(globals(), "SOURCE", sources)
        labels = [tokens([1, 1, 3]) for _ in bases]
        plan: dict[Site, Intervention] = {}
        for number in range(drawn.choice([2, 3, 4])):
            part = drawn.choice(PARTS)
            heads = (drawn.randrange(n_heads),) if part == "heads" else ()
            site = Site(drawn.randrange(3), drawn.choice(["last", 0, -1, "all"]), part, heads)
            v = vector(model, 10 * trial + number, site.width(decoder))
            plan[site] = drawn.choice(
                [
                    Interchange(),
                    Interchange(alpha=0.4),
                    Add(v),
                    Scale(0.3),
                    Replace(v, 0.7),
                    Ablate(v),
                ]
            )
        found = intervene(model, InterchangeBatch.from_tokens(bases, sources, labels), dict(plan))
        for row, label in enumerate(labels):
            told, written, logits = slowly(model, row, plan, label)
            assert math.isclose(float(found.log_probs[row]), told, abs_tol=1e-10), (plan, row)
            assert bool(found.written[row]) is written
            torch.testing.assert_close(found.logits[row], logits, rtol=0, atol=1e-10)


def test_a_site_may_have_several_tokens_in_one_row_and_none_in_another() -> None:
    model = subject("gpt2", dtype=torch.float64).model
    # As many tokens of "all" as there are rows, all of them the first row's.
    two = InterchangeBatch.from_tokens(
        [[1, 2, 3, 4], [5, 6, 7, 8]], [[1, 2, 9, 4], [5, 6, 7, 8]], [1, 2]
    )
    v = vector(model, 1, model.decoder.d_model)
    plan: dict[Any, Intervention] = {"heads.0@all": Interchange(), "resid.1@last": Add(v)}
    together = intervene(model, two, plan)
    for row in range(2):
        alone = intervene(model, two.select([row]), plan)
        torch.testing.assert_close(together.final[row], alone.final[0], rtol=0, atol=1e-12)


def test_tokens_that_nobody_reads_show_an_intervention_their_own_values() -> None:
    seen: dict[str, Tensor] = {}

    class Seen:
        needs_source = False
        keeps_equal = False

        def __init__(self, name: str) -> None:
            self.name = name

        def __call__(self, base: Tensor, source: Tensor | None) -> Tensor:
            seen[self.name] = base
            return base

    model = subject("gemma2", dtype=torch.float64).model
    run: dict[tuple[Place, int], Tensor] = {}

    def keep(place: Place, layer: int, value: Tensor) -> Tensor:
        run[place, layer] = value
        return value

    for spelled in ("resid.2@1", "mlp.2@1", "heads.2@1"):
        site = load_site(spelled)
        found = intervene(model, batch(LABELS), {spelled: Seen(spelled)})
        assert not found.changed.any()
        for row in range(3):
            run_row(model, BASE[row], keep)
            value = at_site(site, run[PLACES[site.part], site.place[1]], [1])
            # Rows come by length: 5, 7 and 6 tokens.
            ours = seen[spelled][[0, 2, 1][row]]
            torch.testing.assert_close(ours, value[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", [Add, Replace])
def test_a_vector_a_token_goes_with_its_token(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are run by length, some at a time, and those of known base labels once more."""
    from mechassay.models import memory

    model = subject("llama", dtype=torch.float64).model
    some = batch(LABELS, [None, [18, 19], [20]])
    for position, n in (("last", [1, 1, 1]), ("all", [5, 7, 6])):
        vectors = vector(model, 2, sum(n) * model.decoder.d_model).unflatten(0, (sum(n), -1))
        site = load_site(f"resid.0@{position}")
        for budget in (memory.CPU_BUDGET, 1):
            monkeypatch.setattr(memory, "CPU_BUDGET", budget)
            found = intervene(model, some, {site: kind(vectors)})
            swept = sweep(model, some, [site], kind(vectors), progress=SILENT)
            for row, own_vectors in enumerate(vectors.split(n)):
                told, _, _ = slowly(model, row, {site: kind(own_vectors)}, LABELS[row])
                assert math.isclose(float(found.log_probs[row]), told, abs_tol=1e-10)
                assert math.isclose(swept.log_probs[row, 0], told, abs_tol=1e-10)
            np.testing.assert_allclose(swept.log_odds[:, 0], found.log_odds.numpy(), atol=1e-10)
    with pytest.raises(BadUsage, match="needs one vector, or one for each of 3 tokens; got 2"):
        intervene(model, some, {"resid.0@last": kind(vectors[:2])})


def test_rows_whose_base_labels_are_not_known_have_no_odds() -> None:
    model = subject("gpt2", dtype=torch.float64).model
    some = batch(LABELS, [None, [18, 19], None])
    whole = intervene(model, some, {"resid.1@last": Interchange()})
    assert whole.log_odds.isnan().tolist() == [True, False, True]
    part = some.select([0, 2])
    assert intervene(model, part, {"resid.1@last": Interchange()}).log_odds.isnan().all()
    assert np.isnan(sweep(model, part, ["resid.1@last"], progress=SILENT).log_odds).all()


def test_a_sweep_is_each_site_alone() -> None:
    model = subject("neox", dtype=torch.float64).model
    chosen = sites(
        model, positions=("subject", "last", 0), layers=[0, 2], parts=("resid", "mlp")
    ) + sites(model, positions="last", layers=[1], parts="heads")
    found = sweep(model, batch(), chosen, progress=SILENT)
    for column, site in enumerate(chosen):
        alone = intervene(model, batch(), {site: Interchange()})
        for name in ("log_probs", "other_log_probs", "written", "changed"):
            ours = getattr(found, name)[:, column].astype(float)
            np.testing.assert_allclose(ours, getattr(alone, name).double().numpy(), atol=1e-10)
        np.testing.assert_allclose(found.log_odds[:, column], alone.log_odds.numpy(), atol=1e-10)
    frame = found.columns()
    assert frame["site"][0] == "resid.0@subject" and len(frame["written"]) == len(chosen)
    assert found.estimate("resid.2@last").value == found.written[:, 4].mean()
    assert "<table" in found._repr_html_()  # pyright: ignore[reportPrivateUsage]
    assert found.plot() is not None


def test_one_token_labels_need_one_run() -> None:
    model = subject("llama", dtype=torch.float64).model
    one = batch([11, 14, 15], [17, 18, NO_TOKEN])
    assert one.base_labels is not None
    found = intervene(model, one, {"resid.1@last": Interchange()})
    told, _, _ = slowly(model, 1, {load_site("resid.1@last"): Interchange()}, [18])
    assert math.isclose(float(found.other_log_probs[1]), told, abs_tol=1e-10)
    assert math.isnan(float(found.log_odds[2])) and not math.isnan(float(found.log_odds[0]))
    swept = sweep(model, one, ["resid.1@last"], progress=SILENT)
    np.testing.assert_allclose(swept.log_odds[:, 0], found.log_odds.numpy(), atol=1e-12)
    assert math.isnan(swept.estimate("resid.1@last", "log_odds").low) is False


# The ends, to the last bit.


def test_both_ends_of_an_interpolation_are_exact() -> None:
    model = subject("qwen3").model
    nothing = intervene(model, batch(), {"resid.1@subject": Interchange(alpha=0.0)})
    same(nothing, "base_final", "final")
    assert not nothing.changed.any()
    whole = intervene(model, batch(), {"resid.1@subject": Interchange(alpha=1.0)})
    assert torch.equal(
        whole.final, intervene(model, batch(), {"resid.1@subject": Interchange()}).final
    )
    v = vector(model, 0, model.decoder.d_model).float()
    ends = [intervene(model, batch(), {"mlp.1@last": Replace(v, a)}) for a in (0.0, 1.0)]
    same(ends[0], "base_final", "final")
    assert torch.equal(ends[1].final, intervene(model, batch(), {"mlp.1@last": Replace(v)}).final)


def test_what_changes_nothing_is_the_base_run_itself() -> None:
    model = subject("gemma2").model
    d = model.decoder.d_model
    for how in (Scale(1.0), Add(torch.zeros(d)), Add(torch.ones(d), 0.0)):
        same(intervene(model, batch(), {"resid.0@all": how}), "base_final", "final")
    # Before the first difference of base and source, and where the logits do not look.
    early = InterchangeBatch.from_tokens([[1, 2, 3]], [[1, 2, 4]], [5])
    for site in ("resid.1@0", "resid.1@1", "heads.0@0"):
        found = sweep(model, early, [site], progress=SILENT)
        assert not found.changed.any() and found.log_probs[0, 0] == found.base_log_probs[0]
    late = intervene(model, early, {"resid.2@0": Add(torch.ones(d))})
    same(late, "base_final", "final")


def same(found: Intervened, one: str, other: str) -> None:
    assert torch.equal(getattr(found, one), getattr(found, other))
    assert torch.equal(found.log_probs, found.base_log_probs)


def test_gradients_reach_an_intervention_s_tensors() -> None:
    model = subject("llama", dtype=torch.float64).model
    v = vector(model, 3, model.decoder.d_model).requires_grad_()
    found = intervene(model, batch(), {"resid.0@subject": Add(v)}, gradients=True)
    found.log_probs.sum().backward()
    assert v.grad is not None
    with torch.no_grad():
        step = 1e-6 * torch.nn.functional.one_hot(torch.tensor(4), len(v)).double()
        ends = [
            intervene(model, batch(), {"resid.0@subject": Add(v + sign * step)}).log_probs.sum()
            for sign in (1, -1)
        ]
    assert math.isclose(float(v.grad[4]), float(ends[0] - ends[1]) / 2e-6, rel_tol=1e-5)
    with torch.inference_mode(), pytest.raises(BadUsage, match=r"outside torch.inference_mode"):
        intervene(model, batch(), {"resid.0@last": Add(v)}, gradients=True)


def test_many_rows_in_small_chunks_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from mechassay.models import memory

    model = subject("gpt2", dtype=torch.float64).model
    chosen = ["resid.0@subject", "heads.1@last", "mlp.2@last"]
    whole = sweep(model, batch(), chosen, progress=SILENT)
    monkeypatch.setattr(memory, "CPU_BUDGET", 1)
    parts = sweep(model, batch(), chosen, progress=SILENT)
    np.testing.assert_allclose(parts.log_probs, whole.log_probs, atol=1e-12)
    plan: dict[Any, Intervention] = {"resid.0@subject": Interchange()}
    torch.testing.assert_close(
        intervene(model, batch(), plan).final, torch.stack([
            intervene(model, batch().select([row]), plan).final[0] for row in range(3)
        ]), rtol=0, atol=1e-12
    )  # fmt: skip


# Bad input: one line each.


@pytest.mark.parametrize(
    ("plan", "error", "said"),
    [
        ({"resid.9@last": Interchange()}, BadUsage, "has layers -1 to 2; got 9"),
        ({"heads.0.7@last": Interchange()}, BadUsage, "has heads 0 to 3; got 7"),
        ({"resid.0@subjects": Interchange()}, UnknownName, "Did you mean 'subject'"),
        ({"resid.0@6": Interchange()}, BadPairs, "base has tokens 0 to 4; got position 6"),
        ({"resid.0@-7": Scale(2.0)}, BadPairs, "Pair x: its base has tokens 0 to 4"),
        ({"resid.0@last": Add(torch.ones(3))}, BadUsage, "Add needs a vector of 32 numbers"),
        ({"resid.0@last": "zero"}, BadUsage, "mapping of texts to Interventions"),
        ({"resid.0@last": Interchange}, BadUsage, "an intervention is Interchange"),
        ({"layers_output[0]@last": Scale(0), "resid.0@last": Scale(0)}, BadUsage, "is given twice"),
        ({}, BadUsage, "got none"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused(plan: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        intervene(subject("gpt2").model, batch(), plan)


def test_an_intervention_of_one_s_own_is_watched() -> None:
    class Own:
        needs_source = False
        keeps_equal = False

        def __init__(self, made: Any) -> None:
            self.made = made

        def __call__(self, base: Tensor, source: Tensor | None) -> Tensor:
            return self.made(base)

    model = subject("gpt2").model
    with pytest.raises(BadUsage, match=r"Own must return a value of shape \(3, 32\); got \(3, 1\)"):
        intervene(model, batch(), {"resid.0@last": Own(lambda x: x[:, :1])})
    with pytest.raises(NonFinite, match=r"Site resid.0@last: Own returned NaN"):
        intervene(model, batch(), {"resid.0@last": Own(lambda x: x / 0)})
    with pytest.raises(BadUsage, match=r"Own must return a value of shape \(3, 32\); got NoneType"):
        intervene(model, batch(), {"resid.0@last": Own(lambda x: None)})


def test_prompts_that_cannot_be_compared_are_refused() -> None:
    model = subject("gpt2").model
    uneven = InterchangeBatch.from_tokens([[1, 2, 3]], [[4, 5]], [6], ids=["odd"])
    with pytest.raises(BadPairs, match=r"Pair odd: site resid.0@all needs prompts of equal length"):
        intervene(model, uneven, {"resid.0@all": Interchange()})
    assert intervene(model, uneven, {"resid.0@all": Scale(0.5)}).changed.all()
    assert VOCABULARY == 97
    with pytest.raises(BadUsage, match=r"intervention for every site; none for resid.1@last"):
        sweep(model, uneven, ["resid.1@last"], {"resid.0@last": Interchange()})
    with pytest.raises(BadUsage, match=r"every site once; resid.1@last is given twice"):
        sweep(model, uneven, ["resid.1@last", Site(1)])


@pytest.mark.parametrize(
    ("directions", "said"),
    [
        (torch.zeros(4), "independent directions, none of them 0; 1 of 4 numbers"),
        (torch.ones(4, 2), "independent directions"),
        (torch.full((4,), math.nan), "finite directions"),
    ],
)
def test_directions_that_span_less_are_not_ablated(directions: Tensor, said: str) -> None:
    with pytest.raises(BadUsage, match=said):
        Ablate(directions)


def test_too_little_memory_for_a_row_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from mechassay.models import memory

    model = subject("gpt2").model
    monkeypatch.setattr(memory, "available_bytes", lambda device: 1000)
    with pytest.raises(OutOfMemory, match=r"One example of \d+ tokens needs about"):
        intervene(model, batch(), {"resid.0@last": Interchange()})


def test_a_branch_runs_its_rows_from_their_first_change_on() -> None:
    """Of ten columns the first row runs seven, the second five."""
    row, column = torch.tensor([0, 0, 1]), torch.tensor([8, 3, 5])
    change = Change(Site(0, "last"), row, column, lambda x: x)
    branch = Branch(torch.tensor([4, 2]), (change,))
    assert branch.first.tolist() == [3, 5] and branch.n_tokens(10) == 7 + 5
