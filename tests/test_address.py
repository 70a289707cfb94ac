"""`scripts/address` writes the project's address, of which the checkout has one placeholder."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from rigs.checkout import ROOT
from rigs.command import captured
from rigs.needs import module

from appliance import __version__

yaml = module("yaml", "pyyaml")

PLACEHOLDER = "https://example.org" + "/roomscribe"
TREES = ("appliance", "config", "debian", "docs", "examples", "homeassistant", "scripts", "tests")
URL = "https://voice.example.net/~me/roomscribe"
IMAGE = "ghcr.example.net/me/roomscribe"
IMPORT = "https://my.home-assistant.io/redirect/blueprint_import/?blueprint_url="


def texts(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each file that may name the address."""
    files = [file for tree in TREES for file in (folder / tree).rglob("*") if file.is_file()]
    for file in [*files, *folder.glob("*.md")]:
        if file.suffix in ("", ".json", ".md", ".py", ".sh", ".toml", ".yaml"):
            yield str(file.relative_to(folder)), file.read_text("utf-8")


def write_address(folder: Path, url: str, *image: str) -> subprocess.CompletedProcess[str]:
    """Run scripts/address on a checkout."""
    return captured(ROOT / "scripts/address", url, folder, *image)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for tree in ("appliance/__init__.py", "config", "docs", "examples", "README.md"):
        source, target = ROOT / tree, tmp_path / tree
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
    return tmp_path


def test_the_placeholder_stands_once_in_the_checkout() -> None:
    named = {name for name, text in texts(ROOT) if PLACEHOLDER in text}
    assert named <= {"appliance/__init__.py"}


def test_every_file_that_names_the_address_has_that_of_the_release(checkout: Path) -> None:
    assert write_address(checkout, "https://first.example.net").returncode == 0
    assert write_address(checkout, f"{URL}/", IMAGE).returncode == 0, (
        "again, with a slash behind it"
    )
    found = dict(texts(checkout))
    quadlet = (checkout / "examples/roomscribe.container").read_text("utf-8")
    for text in (quadlet, found["examples/compose/compose.yaml"], found["docs/containers.md"]):
        assert f"{IMAGE}:{__version__}" in text and "localhost/roomscribe:" not in text
    for name, text in found.items():
        assert "ADDRESS" not in text and "first.example.net" not in text, name
        assert PLACEHOLDER not in text, name
    assert f'HOMEPAGE = "{URL}"' in found["appliance/__init__.py"]
    assert f"\nREPOSITORY={URL}\n" in found["examples/firstrun.sh"]
    for blueprint in ("roomscribe_reply.yaml", "roomscribe_sentence.yaml"):
        address = f"{URL}/config/home-assistant/{blueprint}"
        assert found[f"config/home-assistant/{blueprint}"].count(f"source_url: {address}\n") == 1
        assert IMPORT + quote(address, safe="~") in found["docs/home-assistant.md"]


@pytest.mark.parametrize("url", ["", "example.net", "https://a b", "https://a|b"])
def test_what_is_no_web_address_changes_nothing(checkout: Path, url: str) -> None:
    before = dict(texts(checkout))
    done = write_address(checkout, url)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "scripts/address URL [FOLDER [IMAGE]]\n"
    assert dict(texts(checkout)) == before
