"""`roomscribe verify`: a small installed system, made by the package's own program, and damaged."""

from __future__ import annotations

import json
import py_compile
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from deb import manifest
from rigs.checkout import ROOT, environment
from rigs.command import roomscribe
from rigs.needs import program

CONTROL = """\
Package: roomscribe
Version: 0.1.0
Architecture: amd64
Depends: libc6 (>= 2.38), python3 (<< 3.14), python3 (>= 3.13~), python3-numpy, python3:any
"""
MODEL_CONTROL = """\
Package: roomscribe-model-tiny-en
Version: 0.1.0
Architecture: all
"""
STATUS = """\
Package: {}
Status: install ok installed
Architecture: all
Version: {}
Maintainer: nobody
Description: nothing

"""
INSTALLED = {
    "roomscribe": "0.1.0",
    "roomscribe-model-tiny-en": "0.1.0",
    "libc6": "2.41-12",
    "python3": "3.13.5-1",
    "python3-numpy": "1:2.2.4",
}
HOME = "usr/lib/roomscribe"
SOURCE = f"{HOME}/appliance/config.py"
MODELS = "usr/share/roomscribe/models"
WEIGHTS = f"{MODELS}/random/encoder.onnx"
CONFIGURATION = "etc/roomscribe/roomscribe.toml"
LIBRARY = f"{HOME}/vendor/nats_py-2.16.0.dist-info/METADATA"


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def write_status(system: Path, installed: dict[str, str]) -> None:
    entries = (STATUS.format(name, version) for name, version in installed.items())
    write(system / "var/lib/dpkg/status", "".join(entries))


def write_manifest(system: Path, signatures: Path, control: str = CONTROL) -> None:
    """Have the program of the package's build describe the system."""
    write(system / "DEBIAN/control", control)
    command = [sys.executable, "-m", "deb.manifest", str(system), str(signatures)]
    subprocess.run(command, check=True, env=environment())
    shutil.rmtree(system / "DEBIAN")


@pytest.fixture(scope="module")
def made(bundle_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A system with small packages of Roomscribe, not signed."""
    system = tmp_path_factory.mktemp("system")
    model = tmp_path_factory.mktemp("model")
    shutil.copytree(bundle_folder, model / MODELS / "random")
    write_manifest(model, model / "no-signatures", MODEL_CONTROL)
    write(system / SOURCE, "ANSWER = 42\n\n\ndef answer():\n    return ANSWER\n")
    write(system / CONFIGURATION, "# nothing\n")
    write(system / "usr/share/doc/roomscribe/README.md", "Read me.\n")
    write(system / LIBRARY, "Metadata-Version: 2.4\nName: nats-py\nVersion: 2.16.0\n\nA client.\n")
    link = system / HOME / "vendor/libgomp.so.1"
    link.symlink_to("/usr/lib/x86_64-linux-gnu/libgomp.so.1")
    (system / HOME / "appliance/bundles").symlink_to("../../../share/roomscribe/models")
    write_manifest(system, system / "no-signatures")
    shutil.copytree(model, system, dirs_exist_ok=True)
    write_status(system, INSTALLED)
    py_compile.compile(str(system / SOURCE), doraise=True)
    return system


@pytest.fixture
def system(made: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return Path(shutil.copytree(made, tmp_path / "system", symlinks=True))


def remove_model(system: Path) -> None:
    """Remove the package of the built-in model."""
    shutil.rmtree(system / MODELS)
    shutil.rmtree(system / "usr/share/roomscribe-model-tiny-en")


def verified(system: Path, *more: str | Path) -> tuple[int, list[str]]:
    """Run the command and return its status and output, without the system's own folder."""
    done = roomscribe("verify", "--root", system, *more)
    return done.returncode, (done.stdout + done.stderr).replace(str(system), "").splitlines()


def differences(system: Path) -> list[str]:
    """Return what differs in a system that must differ."""
    status, lines = verified(system, "--unsigned")
    assert status == 1
    return [line.removeprefix("differs: ") for line in lines if line.startswith("differs: ")]


def test_an_untouched_system_matches(system: Path) -> None:
    status, lines = verified(system, "--unsigned")
    packages = [line.partition(": all ")[0] for line in lines]
    assert packages == ["roomscribe 0.1.0 (amd64)", "roomscribe-model-tiny-en 0.1.0 (all)"]
    assert status == 0


def test_a_system_without_the_built_in_model_matches(system: Path) -> None:
    remove_model(system)
    status, lines = verified(system, "--unsigned")
    assert status == 0
    assert len(lines) == 1


def test_a_model_that_no_package_lists_is_named(system: Path) -> None:
    shutil.rmtree(system / "usr/share/roomscribe-model-tiny-en")
    assert f"/{WEIGHTS}: not in the package" in differences(system)


def test_what_its_owner_may_change_is_listed_and_no_difference(system: Path) -> None:
    write(system / CONFIGURATION, "# mine\n")
    write(system / "etc/systemd/system/roomscribe.service.d/mine.conf", "[Service]\n")
    shutil.rmtree(system / "usr/share/doc")
    status, lines = verified(system, "--unsigned")
    assert status == 0
    assert lines[:3] == [
        "local settings of systemd: /etc/systemd/system/roomscribe.service.d/mine.conf",
        "changed configuration: /etc/roomscribe/roomscribe.toml",
        "not installed here: 1 files of the manual",
    ]
    assert len(lines) == 5


def test_each_difference_is_named(system: Path) -> None:
    with (system / WEIGHTS).open("r+b") as weights:
        weights.seek(10_000)
        weights.write(b"\0\1\2\3")
    (system / SOURCE).chmod(0o4755)
    (system / HOME / "vendor/libgomp.so.1").unlink()
    (system / HOME / "vendor/libgomp.so.1").symlink_to("/tmp/mine.so")
    (system / CONFIGURATION).unlink()
    write(system / HOME / "appliance/more.py", "")
    assert differences(system) == [
        f"/{CONFIGURATION}: missing",
        f"/{SOURCE}: has mode 4755, expected 0644",
        f"/{HOME}/vendor/libgomp.so.1: changed",
        f"/{HOME}/appliance/more.py: not in the package",
        f"/{WEIGHTS}: changed",
    ]


def test_byte_code_of_another_source_is_found(system: Path, tmp_path: Path) -> None:
    source = system / SOURCE
    (compiled,) = (source.parent / "__pycache__").iterdir()
    other = tmp_path / "other.py"
    other.write_text(source.read_text(encoding="utf-8").replace("42", "43"), encoding="utf-8")
    py_compile.compile(str(other), cfile=str(compiled), doraise=True)
    (found,) = differences(system)
    assert found == f"/{compiled.relative_to(system)}: not compiled from the source beside it"


def test_the_bill_of_materials_is_compared_with_what_is_installed(system: Path) -> None:
    write_status(system, INSTALLED | {"python3": "3.14.0-1", "roomscribe": "0.0.9"})
    (system / LIBRARY).parent.rename(system / HOME / "vendor/other-1.dist-info")
    found = differences(system)
    assert "package roomscribe: expected 0.1.0, found 0.0.9" in found
    assert "package python3: expected python3 (<< 3.14), found 3.14.0-1" in found
    assert f"/{LIBRARY}: missing" in found
    write(system / HOME / "vendor/more-1.dist-info/METADATA", "Name: more\nVersion: 1\n\n")
    assert "library more 1: not in the bill of materials" in differences(system)


def test_an_added_model_is_checked_against_its_own_checksums(system: Path) -> None:
    mine = system / "var/lib/roomscribe-models/mine"
    shutil.copytree(system / MODELS / "random", mine)
    assert verified(system, "--unsigned")[0] == 0
    (mine / "step.onnx").write_bytes(b"nothing")
    (found,) = differences(system)
    assert found.startswith("model mine: ")
    assert "step.onnx" in found


def test_the_bill_of_materials_has_the_versions_of_this_machine(system: Path) -> None:
    status, lines = verified(system, "--sbom")
    found = json.loads("\n".join(lines))
    versions = {part["name"]: part["version"] for part in found["components"]}
    assert status == 0
    assert versions["python3-numpy"] == "1:2.2.4"
    assert versions["nats-py"] == "2.16.0"
    model = next(part for part in found["components"] if part["name"] == "random")
    assert model["licenses"] == [{"license": {"id": "MIT"}}]
    assert model["copyright"] == "2022 OpenAI"


def test_every_vendored_wheel_has_a_licence() -> None:
    pinned = (ROOT / "debian/vendored.txt").read_text(encoding="utf-8")
    names = re.findall(r"^([a-z-]+)==", pinned, re.MULTILINE)
    assert len(names) == 4
    for name in names:
        assert manifest.rights(f"/{name.replace('-', '_')}-*.whl")["copyright"]


def test_without_a_package_it_says_what_to_do(tmp_path: Path) -> None:
    done = roomscribe("verify")
    assert done.returncode == 1
    assert "this is a checkout" in done.stderr
    assert "`git status`" in done.stderr
    assert verified(tmp_path)[0] == 1
    folder = tmp_path / manifest.FOLDER
    write(folder / manifest.MANIFEST, "{")
    assert verified(tmp_path)[0] == 74


@program("gpg", "gpg-agent")
def test_the_signature_decides_whose_package_it_is(system: Path, tmp_path: Path) -> None:
    remove_model(system)
    signed = system / manifest.FOLDER / manifest.MANIFEST
    keys = [new_key(tmp_path / name) for name in ("ours", "theirs")]
    status, lines = verified(system)
    assert status == 1
    assert "the package is not signed" in lines[0]
    sign(tmp_path / "ours", signed)
    assert "no public key" in verified(system)[1][0]
    assert verified(system, "--keyring", keys[0])[0] == 0
    status, lines = verified(system, "--keyring", keys[1])
    assert status == 1
    assert "not signed by the key in" in lines[0]
    # whoever changes a file and the list of files has no signature of the list
    write(system / SOURCE, "ANSWER = 43\n")
    shutil.rmtree(system / HOME / "appliance/__pycache__")
    write_manifest(system, tmp_path)
    status, lines = verified(system, "--keyring", keys[0])
    assert (status, lines[1:-1]) == (1, [])
    assert "not signed by the key in" in lines[0]


@program("gpg", "gpg-agent")
def test_a_signature_of_other_files_ends_the_build(system: Path, tmp_path: Path) -> None:
    new_key(tmp_path / "ours")
    write_manifest(system, tmp_path)
    listed = tmp_path / "roomscribe_amd64.json"
    shutil.copy(system / manifest.FOLDER / manifest.MANIFEST, listed)
    sign(tmp_path / "ours", listed)
    write_manifest(system, tmp_path)  # the same files
    assert (system / manifest.FOLDER / manifest.SIGNATURE).exists()
    write(system / SOURCE, "ANSWER = 43\n")
    with pytest.raises(subprocess.CalledProcessError):
        write_manifest(system, tmp_path)


def gpg(home: Path, *arguments: str | Path) -> None:
    command = ["gpg", "--homedir", home, "--batch", "--quiet", "--yes", *arguments]
    subprocess.run(command, check=True, capture_output=True)


def new_key(home: Path) -> Path:
    """Make a signing key and return the file of its public half."""
    home.mkdir(mode=0o700)
    never = ("ed25519", "sign", "never")
    gpg(home, "--passphrase", "", "--quick-generate-key", "Roomscribe packages", *never)
    gpg(home, "--output", home / "public.gpg", "--export")
    return home / "public.gpg"


def sign(home: Path, file: Path) -> None:
    gpg(home, "--output", f"{file}.sig", "--detach-sign", file)
    subprocess.run(["gpgconf", "--homedir", home, "--kill", "all"], check=True)
