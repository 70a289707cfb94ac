"""Which version a build says that it is."""

import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from rigs.checkout import ROOT
from rigs.command import captured

from appliance import __version__


class Checkout:
    """A repository with one commit of 2026-11-28 18:10 UTC, which holds the package's root."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "appliance").mkdir()
        shutil.copy(ROOT / "appliance/__init__.py", folder / "appliance")
        self.git("init", "--quiet")
        self.git("add", ".")
        self.git("commit", "--quiet", "--message", "first")

    def git(self, *arguments: str) -> None:
        date = "2026-11-28T20:10:00+0200"
        names = {
            f"GIT_{who}_{what}": "a"
            for who in ("AUTHOR", "COMMITTER")
            for what in ("NAME", "EMAIL")
        }
        dates = {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
        captured("git", *arguments, check=True, cwd=self.folder, env=os.environ | names | dates)

    def version(self) -> str:
        code = "import appliance; print(appliance.build_version())"
        far = {"PATH": os.environ["PATH"], "TZ": "Pacific/Auckland"}
        command = (sys.executable, "-c", code)
        return captured(*command, check=True, cwd=self.folder, env=far).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_a_checkout_names_its_commit_and_its_date(checkout: Checkout) -> None:
    built = re.escape(f"{__version__}~git20261128.1810.") + "[0-9a-f]{8}"
    assert re.fullmatch(built, checkout.version())
    (checkout.folder / "appliance/__init__.py").write_text(
        (ROOT / "appliance/__init__.py").read_text(encoding="utf-8") + "\n", encoding="utf-8"
    )
    assert re.fullmatch(built + re.escape("+changed"), checkout.version())


def test_a_release_and_a_folder_without_git_have_the_plain_version(checkout: Checkout) -> None:
    checkout.git("tag", f"v{__version__}")
    assert checkout.version() == __version__
    checkout.git("tag", "--delete", f"v{__version__}")
    shutil.rmtree(checkout.folder / ".git")
    assert checkout.version() == __version__


def test_a_package_has_its_version_in_a_file(checkout: Checkout) -> None:
    file = checkout.folder / "appliance/build.txt"
    file.write_text("0.3.0~git20270101.0000.abcd1234\n", encoding="ascii")
    assert checkout.version() == "0.3.0~git20270101.0000.abcd1234"
