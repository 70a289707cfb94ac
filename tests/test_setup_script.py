"""scripts/setup.sh on a machine that cannot be set up: one line, and a status other than 0."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from rigs.checkout import ROOT

TOOLS = ("awk", "bash", "cat", "cmp", "cut", "df", "flock", "grep", "head", "id", "mktemp", "rm")
"""Programs that every Debian has, as far as the script needs them before it installs anything."""


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder of programs: the only ones that the script finds."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in (*TOOLS, "tail"):
        (folder / name).symlink_to(shutil.which(name) or f"/usr/bin/{name}")
    for name in ("apt-get", "apt-cache"):
        program(folder, name, "exit 0")
    program(folder, "dpkg-query", "echo 'install ok installed'")
    return folder


def program(folder: Path, name: str, script: str) -> None:
    """Puts a shell script in place of a program."""
    path = folder / name
    path.unlink(missing_ok=True)
    path.write_text(f"#!/bin/bash\n{script}\n", encoding="utf-8")
    path.chmod(0o755)


def refusal(machine: Path, mode: int = 0o755, **environment: str) -> str:
    """Return the only line that setting up a checkout prints there, after a failure."""
    checkout = machine.parent / "checkout"
    (checkout / "scripts").mkdir(parents=True)
    for name in ("setup.sh", "constraints"):
        (checkout / "scripts" / name).symlink_to(ROOT / "scripts" / name)
    (checkout / "pyproject.toml").symlink_to(ROOT / "pyproject.toml")
    checkout.chmod(mode)
    done = subprocess.run(
        ["/bin/bash", "-c", "set -euo pipefail; . scripts/setup.sh; set_up demo", "demo"],
        cwd=checkout,
        env={"PATH": str(machine), "TMPDIR": str(machine.parent), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode, done
    (line,) = [one for one in done.stderr.splitlines() if not one.startswith("installing ")]
    return line


def test_a_step_that_takes_long_says_so_and_ends_with_its_status() -> None:
    script = ". scripts/setup.sh; TELL_EACH_S=0.2; quietly 'wait for it' sh -c 'sleep 1; exit 3'"
    done = subprocess.run(
        ["/bin/bash", "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    *told, last = done.stderr.splitlines()
    assert done.returncode == 3
    assert told and all(line.startswith("  wait for it: ") for line in told)
    assert "could not wait for it" in last


def test_a_system_without_apt_is_named(machine: Path) -> None:
    (machine / "apt-get").unlink()
    assert "Debian bookworm or trixie" in refusal(machine)


def test_without_a_network_the_line_says_so(machine: Path) -> None:
    program(machine, "dpkg-query", "exit 1")
    program(machine, "sudo", 'shift; exec "$@"')
    program(machine, "apt-get", "echo 'E: Temporary failure resolving deb.example'; exit 100")
    line = refusal(machine)
    assert "Temporary failure resolving" in line
    assert "Connect this machine to the network" in line


def test_a_user_without_sudo_is_told_what_only_root_can_install(machine: Path) -> None:
    program(machine, "dpkg-query", '[ "${!#}" != mosquitto ] && echo "install ok installed"')
    program(machine, "id", "echo 1000")
    line = refusal(machine)
    assert "only root can install these Debian packages: mosquitto." in line


def test_a_user_whose_sudo_asks_for_a_password_is_told_so(machine: Path) -> None:
    program(machine, "dpkg-query", "exit 1")
    program(machine, "id", "echo 1000")
    program(machine, "sudo", "echo 'sudo: a password is required' >&2; exit 1")
    assert "as a user who may use sudo" in refusal(machine)


def test_a_full_disk_is_noticed_before_anything_is_installed(machine: Path) -> None:
    program(machine, "dpkg-query", "exit 1")
    program(machine, "sudo", 'shift; exec "$@"')
    program(machine, "df", "echo Filesystem; echo /dev/sda1 1000 990 10 99% /")
    line = refusal(machine)
    assert "only 10 MB are free" in line


@pytest.mark.parametrize("version", ["3.9", "3.10", "3.14"])
def test_a_python_that_is_not_supported_is_named(machine: Path, version: str) -> None:
    program(machine, "python3", f"echo {version}")
    assert f"found {version}" in refusal(machine, ROOMSCRIBE_PYTHON="python3")


def test_no_python_is_named_so(machine: Path) -> None:
    assert "found none" in refusal(machine, ROOMSCRIBE_PYTHON="python3")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write in any folder")
def test_a_checkout_of_another_user_is_refused(machine: Path) -> None:
    assert "clone it into a folder of your own" in refusal(machine, mode=0o500)
