"""scripts/release makes all or nothing, and its last line says why.

It is the real script in a small checkout. Its steps are stand-ins: scripts that write small files,
and functions of scripts/deb/root.sh that need no Debian. The key and its signatures are real.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from rigs.checkout import ROOT
from rigs.needs import program

from appliance import __version__

COPIED = ("appliance/__init__.py", "debian/changelog", "CHANGELOG.md")
STEP = """#!/usr/bin/env bash
set -euo pipefail
name=${0##*/} output= architecture=amd64
trap 'echo "$name ended" >> "$STAND_INS"' EXIT
eval "${FAULT_STEP:+[ $name != $FAULT_STEP ] || $FAULT}"
"""
"""The beginning of every stand-in: it does what a test wants to happen in it."""
STEPS = {
    "build-deb": """
while [ $# -gt 0 ]; do
    case $1 in amd64|arm64) architecture=$1 ;; --output) output=$2; shift ;; esac
    shift
done
mkdir -p "$output"
for package in roomscribe roomscribe-satellite roomscribe-model-tiny-en; do
    case $package in *-model-*) architecture=all ;; esac
    { echo $package; head -c 200000 /dev/zero; } > "$output/${package}_VERSION_$architecture.deb"
done
""",
    "build-repo": """
mkdir "$1"
gpg --homedir "$5" --batch --export > "$1/roomscribe.gpg"
cp "${@:6}" "$1/"
""",
    "test-release": '[ -f "$1/roomscribe.gpg" ]\n',
    "test-deb": '[ -f "$2" ]\n',
    "test-vm": '[ -f "$2" ]\n',
    "test-deb-arm64": 'echo "* test-deb-arm64 DID NOT RUN: no binfmt_misc"; exit 77\n',
}
FUNCTIONS = """
need_host() { :; }
packages_root() { mkdir -p "$CACHE/$1/tmp"; echo "$CACHE/$1"; }
in_root() {
    mkdir "$wheels/first" "$wheels/second"
    echo wheel | tee "$wheels/first/roomscribe.whl" > "$wheels/second/roomscribe.whl"
    echo sdist > "$wheels/first/roomscribe.tar.gz"
}
"""

needs_gpg = program("gpg", "gpg-agent")


def git(folder: Path, *arguments: str) -> None:
    names = ("-c", "user.name=R", "-c", "user.email=r@example.org")
    subprocess.run(["git", "-C", folder, *names, *arguments], check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A small checkout of which a release could be made."""
    folder = tmp_path / "checkout"
    shutil.copytree(ROOT / "scripts/deb", folder / "scripts/deb")
    with (folder / "scripts/deb/root.sh").open("a", encoding="utf-8") as library:
        library.write(FUNCTIONS)
    for name, work in STEPS.items():
        script = folder / "scripts" / name
        script.write_text(STEP + work.replace("VERSION", __version__), encoding="utf-8")
        script.chmod(0o755)
    for name in ("release", "setup.sh"):
        shutil.copy(ROOT / "scripts" / name, folder / "scripts")
    for name in COPIED:
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    changes = folder / "CHANGELOG.md"
    dated = re.sub(r"(?m)^## (\S+) \(.*", r"## \1 (2026-12-01)", changes.read_text("utf-8"))
    changes.write_text(dated, encoding="utf-8")
    (folder / ".gitignore").write_text("__pycache__/\n", encoding="utf-8")
    (tmp_path / "key").mkdir(mode=0o700)
    git(tmp_path, "init", "-q", str(folder))
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "release")
    return folder


def make_key(folder: Path, *, when: str = "", expires: str = "never", password: str = "") -> Path:
    """Return a new GnuPG folder with a key."""
    folder.mkdir(mode=0o700)
    (folder / "gpg-agent.conf").write_text("s2k-count 65536\n", encoding="utf-8")  # 5 s quicker
    faked = ("--faked-system-time", when) if when else ()
    subprocess.run(
        ["gpg", "--homedir", folder, "--batch", "--quiet", *faked, "--pinentry-mode", "loopback",
         "--passphrase", password, "--quick-generate-key", "R", "ed25519", "sign", expires],
        check=True, capture_output=True,
    )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for GnuPG folders, whose agents end with the tests. One has a good key."""
    folder = tmp_path_factory.mktemp("k")
    make_key(folder / "good")
    yield folder
    for home in folder.iterdir():
        subprocess.run(["gpgconf", "--homedir", home, "--kill", "all"], check=False)


def start(
    checkout: Path, *given: str, version: str = __version__, **more: str
) -> subprocess.Popen[str]:
    """Return a running release."""
    parent = checkout.parent
    environment = {
        "ROOMSCRIBE_BUILD_CACHE": str(parent / "cache"),
        "ROOMSCRIBE_RELEASE_MB": "0",
        "STAND_INS": str(parent / "ended"),
    }
    output = () if "--output" in given else ("--output", str(parent / "made"))
    return subprocess.Popen(
        [checkout / "scripts/release", version, *output, *given],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment | more,
    )


def last_line(release: subprocess.Popen[str]) -> str:
    """Return what a release said at its end."""
    return release.communicate(timeout=60)[1].splitlines()[-1]


def refused(checkout: Path, *given: str, version: str = __version__) -> str:
    """Return the one line with which a release is refused."""
    given = given or ("--gnupg-home", str(checkout.parent / "key"))
    release = start(checkout, *given, version=version)
    (line,) = release.communicate(timeout=60)[1].splitlines()
    assert release.returncode in (1, 2)
    assert [*checkout.parent.glob("made*")] == []
    assert line.startswith("release: ")
    assert line.endswith(". Nothing was made")
    return line


def test_a_release_is_refused_before_anything_is_built(checkout: Path) -> None:
    assert "VERSION must be such as 0.2.0" in refused(checkout, version="latest")
    assert f"has version {__version__}, expected 99.0.0" in refused(checkout, version="99.0.0")
    assert "no such folder" in refused(checkout, "--gnupg-home", "/no-such-folder")
    git(checkout, "tag", f"v{__version__}")
    git(checkout, "commit", "-q", "--allow-empty", "-m", "later")
    assert "is another commit" in refused(checkout)
    (checkout / "CHANGELOG.md").write_text(f"## {__version__} (unreleased)\n", encoding="utf-8")
    assert 'replace "unreleased" by the date' in refused(checkout)


def test_a_checkout_with_changes_is_refused(checkout: Path) -> None:
    (checkout / "more").write_text("", encoding="utf-8")
    assert "changes that are not committed" in refused(checkout)


@needs_gpg
def test_a_wrong_key_is_refused_before_anything_is_built(checkout: Path, keys: Path) -> None:
    assert "has 0 secret keys, expected one" in refused(checkout)
    expired = make_key(keys / "expired", when="20200101T000000!", expires="2020-02-01")
    assert "expired on 2020-0" in refused(checkout, "--gnupg-home", str(expired))
    locked = make_key(keys / "locked", password="secret")
    subprocess.run(["gpgconf", "--homedir", locked, "--kill", "all"], check=True)
    assert "does not sign without a question" in refused(checkout, "--gnupg-home", str(locked))


@needs_gpg
def test_a_release_is_made_and_the_next_one_needs_its_key_and_its_files(
    checkout: Path, keys: Path
) -> None:
    good = ("--gnupg-home", str(keys / "good"))
    made = checkout.parent / "made"
    assert last_line(start(checkout, *good)) == f"release: {__version__} is in {made}"
    subprocess.run(["sha256sum", "--quiet", "--check", "SHA256SUMS"], cwd=made, check=True)
    notes = (made / "RELEASE_NOTES.md").read_text(encoding="utf-8")
    assert "Not tested: the arm64 package (no binfmt_misc)." in notes
    assert len([*made.glob("repository/*.deb")]) == 5, "two for each architecture, and the model's"
    assert "exists: remove it" in last_line(start(checkout, *good))

    before = made.rename(checkout.parent / "before")
    follows = ("--previous", str(before))
    assert f"has version {__version__} already" in refused(checkout, *good, *follows)
    other = ("--gnupg-home", str(make_key(keys / "other")))
    assert "is not the one of" in refused(checkout, *other, *follows)
    (before / "RELEASE_NOTES.md").write_text("changed", encoding="utf-8")
    assert "is not as it was released" in refused(checkout, *good, *follows)
