"""Which SAE of a release is that of a site: releases have one a layer, or several.

    Gemma Scope     google/gemma-scope-2b-pt-res         layer_12/width_16k/average_l0_71/params.npz
    Gemma Scope 2   google/gemma-scope-2-270m-pt         .../layer_12_width_16k_l0_small/params...
    Llama Scope     fnlp/Llama3_1-8B-Base-LXR-8x         Llama3_1-8B-Base-L12R-8x/hyperparams.json

A release is a hub id, or a folder of the same layout; words behind the id (`/width_16k`) are those
that a path has to have. Of several that are left the one whose mean number of active features is
nearest to 100 is taken, as SAELens calls canonical. Runs of `mechassay saes train` are folders of
such a kind too: saes/MODEL--SITE/seed-0.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from mechassay.errors import BadFile, BadUsage, ModelNotFetched, first_line
from mechassay.features.sae import SAE, load_sae
from mechassay.interventions.site import Site
from mechassay.models.weight_files import UNREADABLE

CANONICAL_L0 = 100
_LAYERS = (
    re.compile(
        r"(?:^|/)layer_(?P<layer>\d+)(?:_\w+)?/(?:.+/)?(?:params\.npz|params\.safetensors)$"
    ),
    re.compile(r"(?:^|/)[\w.-]+-L(?P<layer>\d+)[RAM]-\d+x/(?P<last>hyperparams\.json)$"),
)
_L0 = re.compile(r"average_l0_(\d+)")
_HUB = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:/(?P<within>.+))?")
ENDINGS = ("", ".safetensors", ".npz")


def sae_of_site(source: str, site: Site) -> SAE:
    """The SAE of a site in a folder, or in a release on the hub.

    Args:
        source: a folder with files or folders named like the site, with or without its position; a
            run of `saes train`; a folder laid out as a release; or a hub id with words behind it.

    Raises:
        BadUsage: there is none of the site, or one of another site or width.
        BadFile: see `load_sae`. ModelNotFetched: the hub does not give it.
    """
    folder = Path(source)
    if folder.is_dir():
        path = _in_folder(folder, site)
    elif match := _HUB.fullmatch(source):
        path = _from_hub(match["repo"], match["within"] or "", site)
    else:
        raise BadFile(f"{source}: there is no such folder, and it is no hub id (owner/name).")
    return load_sae(path).check_site(site)


def is_release(source: str) -> bool:
    """Whether it is written as a hub id is, with words behind it or without."""
    return _HUB.fullmatch(source) is not None


def _in_folder(folder: Path, site: Site) -> Path:
    names = (str(site), str(site).partition("@")[0])
    for path in (folder / f"{name}{end}" for end in ENDINGS for name in names):
        if path.exists():
            return path
    trained = sorted(folder.glob(f"saes/*--{names[1]}/seed-*"))
    models = sorted({path.parent.name for path in trained})
    if len(models) > 1:
        raise BadUsage(f"{folder} has SAEs of {site} of several models: {', '.join(models)}.")
    if trained:
        return trained[0]
    files = [
        path.relative_to(folder).as_posix()
        for pattern in ("params.*", "hyperparams.json")
        for path in sorted(folder.rglob(pattern))
    ]
    if not files:
        raise BadUsage(
            f"{folder} has no SAE of {site}: no folder, .safetensors or .npz file named {names[0]}"
            f" or {names[1]}."
        )
    return folder / chosen_file(files, site, "", str(folder)).parent


def chosen_file(files: Sequence[str], site: Site, within: str, where: str) -> PurePosixPath:
    """The file, of those of a release, whose folder has the SAE of a site.

    Args:
        within: what its path has to have.

    Raises:
        BadUsage: there is none, or several that nothing tells apart.
    """
    known = [(name, match) for name in files for x in _LAYERS if (match := x.search(name))]
    layers = sorted({int(match["layer"]) for _, match in known})
    names = [name for name, match in known if int(match["layer"]) == site.layer and within in name]
    if not names:
        has = f"layers {layers[0]} to {layers[-1]}" if layers else "no SAEs that are known by layer"
        words = f" with {within!r} in its path" if within else ""
        raise BadUsage(f"{where} has no SAE of {site}{words}; it has {has}.")
    sparsities = [_L0.search(name) for name in names]
    if len(names) > 1 and not all(sparsities):
        some = ", ".join(str(PurePosixPath(name).parent) for name in names[:4])
        raise BadUsage(f"{where} has {len(names)} SAEs of {site}: {some}; name more of the path.")
    distances = [abs(int(match[1]) - CANONICAL_L0) if match else 0 for match in sparsities]
    return PurePosixPath(names[distances.index(min(distances))])


def _from_hub(repo: str, within: str, site: Site) -> Path:
    from huggingface_hub import hf_hub_download, list_repo_files

    try:
        files = list_repo_files(repo)
        chosen = chosen_file(files, site, within, repo)
        beside = ("params.npz", "params.safetensors", "config.json", "hyperparams.json")
        wanted = [str(chosen.parent / name) for name in (*beside, "checkpoints/final.safetensors")]
        paths = [hf_hub_download(repo, name) for name in wanted if name in files]
    except BadUsage:
        raise
    except UNREADABLE as error:
        raise ModelNotFetched(
            f"The SAE of {site} in {repo} did not come from the Hugging Face hub:"
            f" {first_line(error)}"
        ) from error
    return next(Path(path) for path in paths if Path(path).name == chosen.name).parent
