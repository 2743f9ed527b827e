"""What is said of a release in several files is the same in all of them."""

import html
import json
import re
import tomllib
from pathlib import Path

import yaml

from mechassay.circuits.evaluation import METRICS
from mechassay.circuits.methods import METHODS
from mechassay.circuits.profiles import VERSIONS
from mechassay.tasks import TASKS
from mechassay.version import __version__

ROOT = Path(__file__).parents[1]


def test_citations_say_the_same():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    archive = json.loads((ROOT / ".zenodo.json").read_text())
    assert citation["version"] == __version__
    text = html.unescape(re.sub("<[^>]+>", "", archive["description"]))
    assert text == " ".join(citation["abstract"].split())
    for theirs, ours in (("title", "title"), ("license", "license"), ("keywords", "keywords")):
        assert archive[theirs] == citation[ours]


def test_a_release_is_tested_on_the_oldest_python_and_claims_no_other():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    release = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
    oldest = re.match(r">=(\d+\.\d+)", project["requires-python"])[1]
    jobs = release["jobs"]
    assert oldest in jobs["test"]["strategy"]["matrix"]["python"]
    assert (jobs["test"]["needs"], jobs["publish"]["needs"]) == ("build", "test")
    pythons = [line.rpartition(" ")[2] for line in project["classifiers"] if ":: 3." in line]
    assert pythons == [oldest]


def test_versions_above_one_are_in_the_documentation():
    text = (ROOT / "docs/records.md").read_text()
    rows = re.findall(r"^\| (task|method|metric|profile) `([\w-]+)` \| (\d+) \|", text, re.M)
    listed = {(kind, name): int(version) for kind, name, version in rows}
    registered = {("profile", name): version for name, version in VERSIONS.items()}
    for registry in (TASKS, METHODS, METRICS):
        for name in registry.built_in:
            registered[registry.kind, name] = registry.load(name).version
    assert listed == {key: version for key, version in registered.items() if version > 1}
