"""Writes a package's bill of materials (CycloneDX 1.6): usr/share/PACKAGE/sbom.cdx.json.

python -m deb.sbom TREE            TREE is debian/PACKAGE, complete but for dh_md5sums
python -m deb.sbom ROOT --image    prints that of an image: its Debian packages, and what ours have

Nothing in it depends on the day or the machine of the build.
"""

import hashlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

ROOT = Path(__file__).resolve().parents[2]
VENDOR = "usr/lib/roomscribe/vendor"
MODELS = "usr/share/roomscribe/models"
SPDX = {"Expat": "MIT", "BSD-3-clause": "BSD-3-Clause", "Apache-2.0": "Apache-2.0"}
"""Names of licences in debian/copyright -> SPDX."""


def paragraphs(text: str) -> list[dict[str, str]]:
    """Return the paragraphs of a Debian control file: field -> value, its lines without indent."""
    found = []
    for block in re.split(r"\n\s*\n", text.strip()):
        fields = re.findall(r"^([A-Za-z-]+):[ \t]*(.*(?:\n[ \t].*)*)", block, flags=re.MULTILINE)
        found.append({name: re.sub(r"\n[ \t]+", "\n", value).strip() for name, value in fields})
    return found


def licence(name: str) -> dict[str, Any]:
    """Return a licence as CycloneDX writes it."""
    known = SPDX.get(name) or (name if name in SPDX.values() else "")
    return {"license": {"id": known} if known else {"name": name}}


def rights(component: str) -> dict[str, Any]:
    """Return licence and copyright of a part from the paragraph of debian/copyright that names it.

    Raises KeyError if there is none.
    """
    for fields in paragraphs((ROOT / "debian/copyright").read_text(encoding="utf-8")):
        if component in fields.get("Files", ""):
            names = re.split(r" and | or |, ", fields["License"].splitlines()[0])
            return {
                "licenses": [licence(name) for name in names],
                "copyright": "; ".join(fields["Copyright"].splitlines()),
            }
    raise KeyError(f"debian/copyright does not name {component}")


def library(reference: str, address: str, version: str = "") -> dict[str, Any]:
    """Return a library that is KIND/NAME and pkg:KIND/ADDRESS."""
    kind, _, name = reference.partition("/")
    found = {"type": "library", "bom-ref": reference, "name": name, "purl": f"pkg:{kind}/{address}"}
    return {**found, "version": version} if version else found


def wheels(tree: Path) -> Iterator[dict[str, Any]]:
    """Return the vendored wheels in the tree, with the checksums of debian/vendored.txt."""
    pinned = (ROOT / "debian/vendored.txt").read_text(encoding="utf-8")
    for metadata in sorted((tree / VENDOR).glob("*.dist-info/METADATA")):
        fields = paragraphs(metadata.read_text(encoding="utf-8").partition("\n\n")[0])[0]
        name, version = fields["Name"], fields["Version"]
        file = name.replace("-", "_")
        entry = re.search(rf"^{name}=={re.escape(version)}(.*\\\n.*)+", pinned, flags=re.M | re.I)
        if entry is None:
            raise KeyError(f"debian/vendored.txt does not name {name} {version}")
        hashes = re.findall("sha256:([0-9a-f]+)", entry[0])
        yield {
            **library(f"pypi/{name}", f"{name.lower()}@{version}", version),
            **rights(f"/{file}-*.whl"),
            "properties": [{"name": "roomscribe:wheel-sha256", "value": one} for one in hashes],
        }


def debian_packages(depends: str) -> Iterator[dict[str, Any]]:
    """Return what `Depends` names: without a version, which each machine's Debian decides."""
    needed: dict[str, list[str]] = {}
    for dependency in filter(None, (part.strip() for part in depends.split(","))):
        package, _, versions = dependency.partition(" ")
        name = package.partition(":")[0]  # python3:any
        needed.setdefault(name, []).append(f"{name} {versions}".strip())
    for name, dependencies in sorted(needed.items()):
        values = [{"name": "roomscribe:depends", "value": one} for one in dependencies]
        yield {**library(f"deb/{name}", f"debian/{name}?distro=trixie"), "properties": values}


def models(tree: Path) -> Iterator[dict[str, Any]]:
    """Return the models in the tree."""
    for bundle in sorted((tree / MODELS).glob("*/bundle.json")):
        text = bundle.read_bytes()
        content = json.loads(text)
        yield {
            "type": "machine-learning-model",
            "bom-ref": f"model/{content['name']}",
            "name": content["name"],
            "version": content["checkpoint_sha256"][:12],
            "description": f"{content['description']}: {content['source']}",
            "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(text).hexdigest()}],
            **rights("debian/model/"),
            "modelCard": {"modelParameters": {"task": "automatic speech recognition"}},
        }


def image_parts(root: Path, packages: list[dict[str, str]]) -> Iterator[dict[str, Any]]:
    """Return the installed packages, and the wheels and models of ours."""
    for fields in packages:
        name, version = fields["Package"], fields["Version"]
        owned = name if name.startswith("roomscribe") else f"debian/{name}"
        address = f"{owned}@{quote(version)}?arch={fields['Architecture']}"
        yield library(f"deb/{name}", address, version)
    for file in sorted(root.glob("usr/share/roomscribe*/sbom.cdx.json")):
        for part in json.loads(file.read_bytes())["components"]:
            if not part["bom-ref"].startswith("deb/"):
                yield part


def materials(kind: str, control: dict[str, str], parts: list[dict[str, Any]]) -> str:
    """Return the bill of materials of our package, or of an image (kind: container) with it."""
    name, version = control["Package"], control["Version"]
    whole = library(f"deb/{name}", f"{name}@{version}?arch={control['Architecture']}", version)
    content = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                **whole,
                "bom-ref": kind,
                "type": kind,
                "licenses": [licence("Apache-2.0")],
            }
        },
        "components": parts,
        "dependencies": [{"ref": kind, "dependsOn": [part["bom-ref"] for part in parts]}],
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Write the file, for every user to read, whatever the umask of the build; or an image's."""
    tree = Path(sys.argv[1])
    if sys.argv[2:] == ["--image"]:
        packages = paragraphs((tree / "var/lib/dpkg/status").read_text(encoding="utf-8"))
        (control,) = (fields for fields in packages if fields["Package"] == "roomscribe")
        sys.stdout.write(materials("container", control, [*image_parts(tree, packages)]))
        return
    (control,) = paragraphs((tree / "DEBIAN/control").read_text(encoding="utf-8"))
    folder = tree / "usr/share" / control["Package"]
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    parts = [*wheels(tree), *debian_packages(control.get("Depends", "")), *models(tree)]
    file = folder / "sbom.cdx.json"
    file.write_text(materials("application", control, parts), encoding="utf-8")
    file.chmod(0o644)


if __name__ == "__main__":
    main()
