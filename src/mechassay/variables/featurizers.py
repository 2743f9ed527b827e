"""The featurizers of the causal variable track, by name, with the settings of paper and code.

    full-vector      the whole value, nothing chosen
    das              k trained directions
    boundless-das    a trained rotation, and a trained number of its first coordinates
    dbm              a trained choice among the standard dimensions
    dbm+pca          among the principal components of base and source values
    dbm+svd          among their singular vectors, of values that are not centred
    dbm+sae          among the features of a sparse autoencoder

(Mueller et al. 2025, section 4.1 and appendices G.2 to G.4.) MIB's code draws one singular vector
less than there are. Masks cool from 1 to .01, in `mib-2025` as the code does (`features.dbm`), and
both walk shuffled batches. `strict` is ours. Paper and code differ; both are here as they say:

    task      paper                                        code
    MCQA      8 epochs, batches of 64                      the same
    ARC       2 epochs of 48; Llama 1 of 16                2 epochs of 48
    addition  1 epoch, batches of 256                      the same
    RAVEL     1 epoch, 128 for Llama, 32 for Gemma         1 epoch, 48 for Llama, 128 for Gemma
    IOI       1 epoch, lr 1; batches not said              2 epochs, lr 1; 1024 for GPT-2, else 256
    sites     chosen on the data that is reported          the same

The learning rate is .01 but for IOI, and the optimizer AdamW without decay. DAS has k = 16, 32 for
IOI, half of the stream for the answer of MCQA and ARC, an eighth of it for RAVEL.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mechassay.errors import BadUsage, one_of
from mechassay.features.das import DAS, BoundlessDAS, TrainedFinder
from mechassay.features.dbm import DBM
from mechassay.features.finder import Fit, Init, Sites, load_sites
from mechassay.features.probes import PCA, FullVector
from mechassay.interventions.site import load_site
from mechassay.models.model import Model
from mechassay.prompts.interchange_batch import InterchangesLike
from mechassay.utils.arguments import checked
from mechassay.utils.display import BAR, Progress
from mechassay.variables.options import FEATURIZERS, PROFILES, Featurizers

SIZED: tuple[str, ...] = ("das",)
"""Featurizers whose number of features is given."""
NARROW = 128
LEAST_STEPS = 100
"""Of a training in `strict`: with fewer, most have not levelled off."""
PROFILE_VERSION = 2
"""The second has shuffled batches, MIB's cooling, and at least 100 steps."""


@dataclass(frozen=True)
class FeaturizerSettings:
    """How featurizers are trained.

    Attributes:
        lr, epochs, batch_size: of training; AdamW without decay.
        least_steps: more epochs where they have fewer steps than this.
        steps: in place of epochs.
        shuffle: another order of rows each epoch.
        cooling: of masks (`features.dbm`).
        loss: see `features.training`.
        choose_on: the split that layer, position and number of features are chosen on.
    """

    lr: float = 1e-2
    epochs: int = 4
    batch_size: int = 32
    shuffle: bool = True
    loss: str = "cross-entropy"
    choose_on: Literal["validation", "test"] = "validation"
    least_steps: int = 1
    steps: int | None = None
    cooling: str = "full"

    def n_steps(self, n_rows: int) -> int:
        """Steps of a training on so many rows."""
        of_epochs = self.epochs * -(-n_rows // min(self.batch_size, n_rows))
        return self.steps or max(self.least_steps, of_epochs)


def featurizer_settings(profile: str, task: str, family: str = "") -> FeaturizerSettings:
    """The settings of a profile for a task, and a family of models where it matters.

    Raises:
        UnknownName: no such profile.
    """
    one_of("profile of featurizers", profile, PROFILES)
    kind = _kind(task)
    loss = "squared-error" if kind == "ioi" else "cross-entropy"
    if profile == "strict":
        lr = 1e-1 if kind == "ioi" else 1e-2
        return FeaturizerSettings(lr=lr, loss=loss, least_steps=LEAST_STEPS)
    gemma, llama = "gemma" in family, "llama" in family
    code = profile == "mib-2025"
    sizes = {"mcqa": (8, 64), "addition": (1, 256), "arc": (2, 48), "ioi": (1, 256)}
    if kind == "arc" and llama and not code:
        sizes["arc"] = (1, 16)
    sizes["ravel"] = (1, (128 if gemma else 48) if code else (32 if gemma else 128))
    if kind == "ioi" and code:
        sizes["ioi"] = (2, 1024 if "gpt2" in family else 256)
    epochs, batch_size = sizes.get(kind, (1, 256))
    lr = 1.0 if kind == "ioi" else 1e-2
    cooling = "mib-2025" if code else "full"
    return FeaturizerSettings(lr, epochs, batch_size, True, loss, "test", cooling=cooling)


def n_features_of(profile: str, task: str, variable: str, width: int) -> tuple[int, ...]:
    """How many directions DAS may have for a variable at sites of a width, to choose among.

    `strict` has 16 and an eighth of the width; where it is narrow, as in ground truths, an eighth
    and a half.

    Raises:
        UnknownName: no such profile.
    """
    one_of("profile of featurizers", profile, PROFILES)
    kind, eighth, half = _kind(task), max(1, width // 8), max(1, width // 2)
    if profile == "strict":
        return tuple(sorted({eighth, half if width < NARROW else 16}))
    if kind == "ioi":
        return (min(32, width),)
    if kind == "ravel":
        return (eighth,)
    return (half,) if kind in ("mcqa", "arc") and variable == "answer" else (min(16, width),)


def _kind(task: str) -> str:
    """What the tables of the paper call a task."""
    names = {"arithmetic-addition": "addition", "arc-easy": "arc", "arc-challenge": "arc"}
    return names.get(task, task)


@checked
def fit_featurizer(
    model: Model,
    pairs: InterchangesLike,
    sites: Sites,
    featurizer: Featurizers = "das",
    *,
    settings: FeaturizerSettings | None = None,
    k: int = 16,
    saes: Init | None = None,
    together: bool = False,
    seed: int = 0,
    checkpoint: Path | None = None,
    progress: Progress = BAR,
) -> Fit:
    """Fit a featurizer of MIB's track to sites: `localize` does so at each site and scores the fit.

    Args:
        pairs: see `intervene`.
        sites: sites, or their spelling; one or several.
        featurizer: one of `FEATURIZERS`.
        k: how many directions "das" has.
        saes: for "dbm+sae": the SAE of each site, and maybe of others.
        together: whether the sites are exchanged at once, as heads are in IOI.
        seed: of what a training begins with, and of its order.
        checkpoint: a file that keeps what is done of a training.

    Raises:
        UnknownName: no such featurizer.
        BadUsage: "dbm+sae" without SAEs; others as the finder.
    """
    kind = one_of("featurizer", featurizer, FEATURIZERS)
    batch = model.interchanges(pairs)
    if kind == "full-vector":
        return FullVector().fit(model, batch, sites, together=together, progress=progress)
    how = settings or FeaturizerSettings()
    common: dict[str, Any] = {
        "lr": how.lr,
        "steps": how.n_steps(len(batch)),
        "batch_size": how.batch_size,
        "shuffle": how.shuffle,
        "loss": how.loss,
        "optimizer": "adamw",
        "seed": seed,
    }
    init: Init | None = None
    if kind in ("dbm+pca", "dbm+svd"):
        pca = PCA(k=None, of="both", centred=kind == "dbm+pca")
        init = pca.fit(model, batch, sites, progress=progress)
    elif kind == "dbm+sae":
        if saes is None:
            raise BadUsage("dbm+sae needs the SAE of every site: pass saes={site: SAE}.")
        own = load_sites(model, sites)
        named = saes.featurizers if isinstance(saes, Fit) else saes
        init = {site: sae for site, sae in named.items() if load_site(site) in own}
    finder: TrainedFinder
    if kind == "das":
        finder = DAS(k=k, **common)
    elif kind == "boundless-das":
        finder = BoundlessDAS(**common)
    else:
        finder = DBM(cooling=how.cooling, **common)
    return finder.fit(
        model,
        batch,
        sites,
        init=init,
        together=together,
        progress=progress,
        checkpoint=checkpoint,
    )
