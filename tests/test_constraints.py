"""The pinned versions of scripts/constraints/ against what pyproject.toml and the package name."""

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from rigs.checkout import ROOT

from appliance.cli.main import EXTRAS

FOLDER = ROOT / "scripts" / "constraints"
FILES = sorted(path.name for path in FOLDER.glob("*.txt"))


def pinned(text: str) -> dict[str, str]:
    """Return the version of every `name==version` line."""
    found = re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", text, re.M)
    return {canonicalize_name(name): version for name, version in found}


def requirements() -> list[Requirement]:
    """Return what scripts/setup.sh installs by name: the dependencies and most extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    installed = [*all_extras(extras), "dev", "benchmark"]
    named = [Requirement(x) for extra in installed for x in extras[extra]]
    named += map(Requirement, project["dependencies"])
    return [one for one in named if one.name != project["name"]]


def all_extras(extras: dict[str, list[str]]) -> list[str]:
    """Return the extras that the extra `all` names."""
    (each,) = extras["all"]
    return sorted(Requirement(each).extras)


def test_the_core_is_small_and_each_library_of_an_extra_is_named_in_the_error() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    assert len(project["dependencies"]) <= 10
    named = {
        Requirement(one).name.removesuffix("-py").replace("-", "_"): extra
        for extra in all_extras(extras)
        for one in extras[extra]
    }
    assert named == EXTRAS


@pytest.mark.parametrize("file", FILES)
def test_each_version_has_a_hash_and_the_demo_needs_no_tests(file: str) -> None:
    text = (FOLDER / file).read_text("utf-8")
    without = re.findall(r"^\S+==\S+$", text, re.M)
    assert not without, "a line with a hash goes on"
    assert len(re.findall(r"--hash=sha256:[0-9a-f]{64}", text)) >= len(pinned(text))
    demo = pinned(text.partition("# for tests")[0])
    assert "numpy" in demo
    assert "pytest" not in demo


@pytest.mark.parametrize("file", FILES)
def test_each_file_pins_every_requirement_within_its_bounds(file: str) -> None:
    versions = pinned((FOLDER / file).read_text("utf-8"))
    wrong = [
        str(one)
        for one in requirements()
        if not one.specifier.contains(versions.get(canonicalize_name(one.name), "0"))
    ]
    assert not wrong, f"run scripts/lock: {file} lacks or contradicts {wrong}"


def test_debians_versions_include_the_wheels_of_the_package() -> None:
    versions = pinned((FOLDER / "debian-trixie.txt").read_text("utf-8"))
    vendored = pinned((ROOT / "debian" / "vendored.txt").read_text("utf-8"))
    assert vendored
    assert {name: versions[name] for name in vendored} == vendored
