"""What the system knows of a Hailo, and advice that fits it: every fix is one that apt takes."""

import re
import subprocess
from pathlib import Path

import pytest
from rigs.needs import program

from appliance.infer.hailo import diagnosis

HAILO8, HAILO10H = diagnosis.GENERATIONS
OF_TRIXIE = {
    "dkms": "", "hailo-all": "Depends: hailort, hailort-pcie-driver, python3-hailort",
    "hailort": "Conflicts: h10-hailort", "hailort-pcie-driver": "", "python3-hailort": "",
    "hailo-h10-all": "Depends: h10-hailort, h10-hailort-pcie-driver, python3-h10-hailort",
    "h10-hailort": "Conflicts: hailort", "h10-hailort-pcie-driver": "", "python3-h10-hailort": "",
}  # fmt: skip
"""Packages of Raspberry Pi OS trixie, as its users list them, and what matters of their fields."""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a Hailo yet."""
    monkeypatch.setenv(diagnosis.VARIABLE, str(tmp_path))
    return tmp_path


def write(file: Path, text: str = "") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="ascii")


def give(machine: Path, node: str = "", pci: str = "", drivers: str = "") -> None:
    """A chip with a node and a PCI id, and loaded drivers."""
    if node:
        write(machine / "dev" / node)
    if pci:
        write(machine / "sys/bus/pci/devices/a/vendor", "0x1e60\n")
        write(machine / "sys/bus/pci/devices/a/device", f"{pci}\n")
    for driver in drivers.split():
        version = "4.23.0" if driver == "hailo_pci" else "5.1.1"
        write(machine / "sys/module" / driver / "version", f"{version}\n")


@pytest.mark.parametrize(
    ("node", "pci", "drivers", "expected"),
    [
        ("hailo0", "0x2864", "hailo_pci", HAILO8),
        ("hailo0", "0x45c4", "hailo1x_pci", HAILO10H),  # HailoRT 5.0 to 5.2
        ("h1x-0", "0x45c4", "hailo1x_pci", HAILO10H),
        ("hailo0", "0x45c4", "hailo1x_pci hailo_pci", HAILO10H),
        ("", "0x45c4", "hailo_pci", HAILO10H),
        ("hailo0", "", "hailo1x_pci", HAILO10H),
        ("h1x-0", "", "hailo_pci", HAILO10H),
        ("hailo0", "", "hailo_pci hailo1x_pci", HAILO8),
        ("hailo0", "0x9999", "", HAILO8),
    ],
)
def test_a_chip_is_told_by_its_pci_id_then_its_node_then_its_driver(
    machine: Path, node: str, pci: str, drivers: str, expected: diagnosis.Generation
) -> None:
    give(machine, node, pci, drivers)
    assert diagnosis.generation() is expected
    if expected.module in drivers:
        assert diagnosis.driver_version() == ("4.23.0" if expected is HAILO8 else "5.1.1")


def test_small_pages_are_advised_for_the_first_generation_alone(machine: Path) -> None:
    give(machine, "hailo0", "0x2864", "hailo_pci")
    assert diagnosis.lacks_small_pages(16384) and not diagnosis.lacks_small_pages(4096)
    assert "options hailo_pci force_desc_page_size=4096" in diagnosis.small_pages()
    give(machine, "hailo0", "0x45c4", "hailo1x_pci")
    assert not diagnosis.lacks_small_pages(16384)


def test_an_old_driver_on_a_new_kernel_is_a_warning(machine: Path) -> None:
    give(machine, "hailo0", "0x2864", "hailo_pci")
    assert "hailort-drivers/issues/44" in diagnosis.may_hang("6.12.62+rpt-rpi-2712")
    assert diagnosis.may_hang("6.6.51+rpt-rpi-2712") == ""
    give(machine, "hailo0", "0x45c4", "hailo1x_pci")
    assert diagnosis.may_hang("6.17.0") == ""


def test_a_report_has_what_the_kernel_shows(machine: Path) -> None:
    give(machine, "hailo0", "0x45c4", "hailo1x_pci hailo_pci")
    write(machine / "sys/bus/pci/devices/a/current_link_speed", "8.0 GT/s PCIe\n")
    assert diagnosis.system_facts() == {
        "pci_ids": ["0x45c4"],
        "link_speeds": ["8.0 GT/s PCIe"],
        "nodes": [str(machine / "dev/hailo0")],
        "drivers": {"hailo_pci": "4.23.0", "hailo1x_pci": "5.1.1"},
    }


def archive(folder: Path, installed: list[str]) -> tuple[str, ...]:
    """The options with which apt simulates a trixie with these packages."""
    (folder / "lists/partial").mkdir(parents=True)
    for name, text in (("Packages", "2.0"), ("dpkg", "1.0")):
        chosen = OF_TRIXIE if name == "Packages" else installed
        stanzas = [
            f"Package: {each}\nStatus: install ok installed\nVersion: {text}\n"
            f"Architecture: all\nMaintainer: a\nDescription: a\nFilename: a\nSize: 1\n"
            f"SHA256: {64 * '0'}\n" + (f"{fields}\n" if (fields := OF_TRIXIE[each]) else "")
            for each in chosen
        ]
        write(folder / name, "\n".join(stanzas))
    write(folder / "var/lib/dpkg/status", (folder / "dpkg").read_text())
    write(folder / "sources.list", f"deb [trusted=yes] file:{folder} ./\n")
    options = {
        "Dir::State::lists": folder / "lists", "Dir::State::status": folder / "dpkg",
        "Dir::Etc::sourcelist": folder / "sources.list", "Dir::Etc::sourceparts": "-",
        "Dir::Cache": folder, "Dir::Etc::preferencesparts": "-", "Debug::NoLocking": "1",
    }  # fmt: skip
    return tuple(part for name, value in options.items() for part in ("-o", f"{name}={value}"))


@program("apt-get")
@pytest.mark.parametrize("chip", [HAILO8, HAILO10H], ids=["hailo8", "hailo10h"])
@pytest.mark.parametrize("has_packages", [False, True])
def test_apt_takes_every_fix_and_removes_nothing(
    machine: Path, chip: diagnosis.Generation, *, has_packages: bool
) -> None:
    installed = [name for name in chip.packages if name in OF_TRIXIE] if has_packages else []
    options = archive(machine, installed)
    updated = subprocess.run(
        ["apt-get", *options, "update"], capture_output=True, text=True, check=False
    )
    assert updated.returncode == 0, updated.stderr
    for fix in (chip.install, chip.upgrade):
        (command,) = re.findall(r"sudo apt (install [^`&]+)", fix + "`")
        done = subprocess.run(
            ["apt-get", *options, "--simulate", *command.split()],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "Remv" not in done.stdout
        assert "Inst " in done.stdout, "it brings something up to date"
