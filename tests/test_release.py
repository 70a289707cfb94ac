"""scripts/release refuses before it builds: one line, and nothing is made."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from rigs.checkout import ROOT
from rigs.needs import program

from appliance import __version__

COPIED = ("appliance/__init__.py", "debian/changelog", "CHANGELOG.md")


def git(folder: Path, *arguments: str) -> None:
    names = ("-c", "user.name=R", "-c", "user.email=r@example.org")
    subprocess.run(["git", "-C", folder, *names, *arguments], check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A small checkout of which a release could be made."""
    folder = tmp_path / "checkout"
    shutil.copytree(ROOT / "scripts/deb", folder / "scripts/deb")
    shutil.copy(ROOT / "scripts/release", folder / "scripts")
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


def refused(checkout: Path, version: str = __version__, *more: str) -> str:
    """Return the one line with which a release is refused."""
    made = checkout.parent / "made"
    given = more or ("--gnupg-home", str(checkout.parent / "key"))
    environment = {"ROOMSCRIBE_BUILD_CACHE": str(checkout.parent / "cache")}
    done = subprocess.run(
        [checkout / "scripts/release", version, "--output", made, *given],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
    )
    assert done.returncode in (1, 2)
    assert [*checkout.parent.glob("made*")] == []
    (line,) = done.stderr.splitlines()
    assert line.startswith("release: ")
    assert line.endswith(". Nothing was made")
    return line


def test_a_release_is_refused_before_anything_is_built(checkout: Path) -> None:
    assert "VERSION must be such as 0.2.0" in refused(checkout, "latest")
    assert f"has version {__version__}, expected 99.0.0" in refused(checkout, "99.0.0")
    assert "no such folder" in refused(checkout, __version__, "--gnupg-home", "/no-such-folder")
    git(checkout, "tag", f"v{__version__}")
    git(checkout, "commit", "-q", "--allow-empty", "-m", "later")
    assert "is another commit" in refused(checkout)
    (checkout / "CHANGELOG.md").write_text(f"## {__version__} (unreleased)\n", encoding="utf-8")
    assert 'replace "unreleased" by the date' in refused(checkout)


def test_a_checkout_with_changes_is_refused(checkout: Path) -> None:
    (checkout / "more").write_text("", encoding="utf-8")
    assert "changes that are not committed" in refused(checkout)


@program("gpg", "gpg-agent", "debootstrap")
@pytest.mark.skipif(os.geteuid() != 0, reason="not root")
def test_a_folder_without_a_key_is_refused(checkout: Path) -> None:
    assert "has 0 secret keys, expected one" in refused(checkout)
