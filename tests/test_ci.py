"""CI passes only what it has tested, and says what it could not test."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from rigs.checkout import ROOT

STUBS = ("demo", "test-deb", "torture", "evening", "test-fresh", "test")
NAMES = ("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL")


class Checkout:
    """A repository with CI's script, in which every program is a stub that ends with a status."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls = folder / "calls"

    def run(self, *, can_boot: bool = True, **statuses: str) -> subprocess.CompletedProcess[str]:
        """CI; each program ends with the next of its statuses, then with the last."""
        scripts = self.folder / "repository" / "scripts"
        (scripts / "deb").mkdir(parents=True)
        shutil.copytree(ROOT / ".ci", scripts.with_name(".ci"))
        (scripts / "deb/root.sh").write_text(f"can_boot() {{ {str(can_boot).lower()}; }}\n")
        for name in STUBS:
            wanted = statuses.get(name.replace("-", "_"), "0")
            file = scripts / name
            file.write_text(
                f'#!/bin/sh\n[ "$1" != --roots ] || exit 0  # a preparation, no part\n'
                f"echo {name} >> {self.calls}\nset -- {wanted}\n"
                f"nth=$(grep -c '^{name}$' {self.calls})\n"
                'shift $((nth < $# ? nth - 1 : $# - 1))\nexit "$1"\n'
            )
            file.chmod(0o755)
        environment = os.environ | dict.fromkeys(NAMES, "ci")
        git = ["git", "-C", str(scripts.parent)]
        for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "all"]):
            subprocess.run([*git, *command], check=True, env=environment)
        return subprocess.run(
            [scripts.parent / ".ci/run"], capture_output=True, text=True, check=False
        )

    def count(self, name: str) -> int:
        """How often a program was called."""
        return self.calls.read_text().split().count(name)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_each_part_runs_once_where_nothing_fails(checkout: Checkout) -> None:
    done = checkout.run()
    assert done.returncode == 0, done.stderr
    counts = {name: checkout.count(name) for name in STUBS}
    assert counts == {**dict.fromkeys(STUBS, 1), "test-fresh": 2, "demo": 0, "test": 0}
    assert "not tested" not in done.stderr


@pytest.mark.parametrize("first", [1, 124])
def test_the_packages_test_that_fails_or_takes_too_long_has_a_second_try(
    checkout: Checkout, first: int
) -> None:
    done = checkout.run(test_deb=f"{first} 0")
    assert done.returncode == 0 and checkout.count("test-deb") == 2
    assert f"test-deb ended with {first}; once more" in done.stderr


@pytest.mark.parametrize("status", [1, 124])
def test_the_packages_test_that_fails_or_takes_too_long_twice_fails_ci(
    checkout: Checkout, status: int
) -> None:
    done = checkout.run(test_deb=f"{status} {status}")
    assert done.returncode == status and checkout.count("test-deb") == 2
    assert checkout.count("torture") == 0


def test_a_machine_that_can_test_the_package_must_test_it(checkout: Checkout) -> None:
    done = checkout.run(test_deb="77")
    assert done.returncode == 1 and checkout.count("torture") == 0
    assert done.stderr.splitlines()[-1].startswith("the package was not tested")


def test_what_a_machine_cannot_test_is_counted_and_named_at_the_end(checkout: Checkout) -> None:
    done = checkout.run(can_boot=False, test_deb="77", test_fresh="77")
    assert done.returncode == 0, done.stderr
    assert checkout.count("test-deb") == 1
    assert checkout.count("demo") == checkout.count("test") == 1
    count, package, fresh = done.stderr.splitlines()[-3:]
    assert count.startswith("2 of CI's parts")
    assert package.startswith("the package was not tested")
    assert fresh.startswith("a freshly installed Debian was not tested")
