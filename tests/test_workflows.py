"""The workflows at the forge: what they use is pinned, and what they run is in the checkout."""

import re
from pathlib import Path

import pytest
from rigs.checkout import ROOT
from rigs.command import captured
from rigs.needs import module

yaml = module("yaml", "pyyaml")

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
RELEASE = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text("utf-8"))


def publish(*part: str, **given: str) -> str:
    """Return what a part of a release says with these variables set."""
    variables = {"PATH": "/usr/bin:/bin", **given}
    return captured(ROOT / ".ci/publish", *part, check=True, env=variables).stdout


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: str(file.name))
def test_actions_and_images_are_pinned_by_their_digest(file: object) -> None:
    text = (ROOT / ".github/workflows" / str(file)).read_text("utf-8")
    for action in re.findall(r"uses: (\S+)", text):
        assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action), action
    for image in re.findall(r"(?:image: debian:|- )((?:trixie|bookworm)\S*)", text):
        assert re.fullmatch(r"\w+@sha256:[0-9a-f]{64}", image), image


def test_each_job_of_a_release_runs_a_part_that_runs_here_too() -> None:
    parts = re.findall(r"^    (\w+)\)$", (ROOT / ".ci/publish").read_text("utf-8"), re.MULTILINE)
    run = re.findall(r"\.ci/publish (\w+)", str(RELEASE["jobs"]))
    assert sorted(run) == sorted(parts)
    assert RELEASE["permissions"] == {}, "each job asks for what it needs"
    attested = re.findall(r"'subject-checksums': 'dist/release/(\w+)'", str(RELEASE["jobs"]))
    assert attested == ["SHA256SUMS", "IMAGES"]


def test_a_part_without_its_settings_is_skipped_with_a_notice() -> None:
    missing = publish("settings")
    assert re.findall(r"^(\w+)=no$", missing, re.MULTILINE) == ["release", "images", "app"]
    assert "::notice::release is skipped: set SIGNING_KEY\n" in missing
    found = publish("settings", SIGNING_KEY="set", REPOSITORY_URL="https://voice.example.net")
    assert found.startswith("release=yes\n") and "images=no" in found


FAKE_GH = """#!/bin/sh
printf '%s\\n' "$@"
shift 8
cat "$@" > /dev/null
"""
"""Prints its arguments; fails if one of the files is not there."""


def test_a_draft_has_every_file_of_the_release_and_its_notes(tmp_path: Path) -> None:
    debian, python = "repository/a_0.2.0_amd64.deb", "pypi/a.whl"
    files = {"SHA256SUMS", "SHA256SUMS.asc", "a-0.2.0.tar.gz", python, debian}
    for name in (*files, "RELEASE_NOTES.md", "repository/Packages"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "gh").write_text(FAKE_GH)
    (tmp_path / "gh").chmod(0o755)
    said = publish("draft", "0.2.0", PATH=f"{tmp_path}:/bin", OUT=str(tmp_path)).splitlines()
    options = "release create v0.2.0 --verify-tag --title", "Roomscribe 0.2.0 --draft --notes-file"
    assert (" ".join(said[:5]), " ".join(said[5:8])) == options
    notes, repository, *attached = said[8:]
    assert (notes, Path(repository).name) == (f"{tmp_path}/RELEASE_NOTES.md", "repository.tar.gz")
    assert {Path(name).relative_to(tmp_path).as_posix() for name in attached} == files
