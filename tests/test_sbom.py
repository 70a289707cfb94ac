"""scripts/deb/sbom.py: what a package is made of."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from deb import sbom
from rigs.checkout import ROOT, environment

CONTROL = """\
Package: roomscribe
Version: 0.1.0
Architecture: amd64
Depends: libc6 (>= 2.38), python3 (<< 3.14), python3 (>= 3.13~), python3-numpy, python3:any
"""


def test_the_bill_of_materials_names_libraries_packages_and_the_model(
    tmp_path: Path, bundle_folder: Path
) -> None:
    library = tmp_path / sbom.VENDOR / "nats_py-2.16.0.dist-info/METADATA"
    for file, text in (
        (tmp_path / "DEBIAN/control", CONTROL),
        (library, "Metadata-Version: 2.4\nName: nats-py\nVersion: 2.16.0\n\nA client.\n"),
    ):
        file.parent.mkdir(parents=True)
        file.write_text(text, encoding="utf-8")
    shutil.copytree(bundle_folder, tmp_path / sbom.MODELS / "random")
    command = [sys.executable, "-m", "deb.sbom", str(tmp_path)]
    subprocess.run(command, check=True, env=environment())
    found = json.loads((tmp_path / "usr/share/roomscribe/sbom.cdx.json").read_text("utf-8"))
    parts = {part["bom-ref"]: part for part in found["components"]}
    assert parts["pypi/nats-py"]["version"] == "2.16.0"
    needed = [one["value"] for one in parts["deb/python3"]["properties"]]
    assert needed == ["python3 (<< 3.14)", "python3 (>= 3.13~)", "python3"]
    model = parts["model/random"]
    assert model["licenses"] == [{"license": {"id": "MIT"}}]
    assert model["copyright"] == "2022 OpenAI"
    assert found["dependencies"][0]["dependsOn"] == list(parts)
    status = tmp_path / "var/lib/dpkg/status"
    status.parent.mkdir(parents=True)
    status.write_text(f"{CONTROL}\n{CONTROL.replace('roomscribe', 'libc6').replace('0.1', '1:2')}")
    done = subprocess.run([*command, "--image"], check=True, env=environment(), capture_output=True)
    image = {part["bom-ref"]: part for part in json.loads(done.stdout)["components"]}
    assert image.keys() == {"deb/roomscribe", "deb/libc6", "pypi/nats-py", "model/random"}
    assert image["deb/libc6"]["purl"] == "pkg:deb/debian/libc6@1%3A2.0?arch=amd64"


def test_every_vendored_wheel_has_a_licence() -> None:
    pinned = (ROOT / "debian/vendored.txt").read_text(encoding="utf-8")
    names = re.findall(r"^([a-z-]+)==", pinned, re.MULTILINE)
    assert len(names) == 4
    for name in names:
        assert sbom.rights(f"/{name.replace('-', '_')}-*.whl")["copyright"]
