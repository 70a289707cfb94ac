"""Writes a package's bill of materials (CycloneDX 1.6): usr/share/PACKAGE/sbom.cdx.json.

python -m deb.sbom TREE    TREE is debian/PACKAGE, complete but for dh_md5sums

Nothing in it depends on the day or the machine of the build.
"""

import hashlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
            "type": "library",
            "bom-ref": f"pypi/{name}",
            "name": name,
            "version": version,
            "purl": f"pkg:pypi/{name.lower()}@{version}",
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
        yield {
            "type": "library",
            "bom-ref": f"deb/{name}",
            "name": name,
            "purl": f"pkg:deb/debian/{name}?distro=trixie",
            "externalReferences": [
                {"type": "license", "url": f"file:///usr/share/doc/{name}/copyright"}
            ],
            "properties": [{"name": "roomscribe:depends", "value": one} for one in dependencies],
        }


def models(tree: Path) -> Iterator[dict[str, Any]]:
    """Return the models in the tree."""
    for bundle in sorted((tree / MODELS).glob("*/bundle.json")):
        content = json.loads(bundle.read_bytes())
        yield {
            "type": "machine-learning-model",
            "bom-ref": f"model/{content['name']}",
            "name": content["name"],
            "version": content["checkpoint_sha256"][:12],
            "description": f"{content['description']}: {content['source']}",
            "hashes": [{"alg": "SHA-256", "content": sha256(bundle)}],
            **rights("debian/model/"),
            "modelCard": {
                "modelParameters": {
                    "task": "automatic speech recognition",
                    "architectureFamily": "Whisper",
                }
            },
        }


def sha256(file: Path) -> str:
    """Return the checksum of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def materials(tree: Path, control: dict[str, str]) -> dict[str, Any]:
    """Return the bill of materials of the package in `tree`."""
    root = f"deb/{control['Package']}"
    parts = [*wheels(tree), *debian_packages(control.get("Depends", "")), *models(tree)]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": root,
                "name": control["Package"],
                "version": control["Version"],
                "purl": f"pkg:deb/{control['Package']}@{control['Version']}"
                f"?arch={control['Architecture']}",
                "licenses": [licence("Apache-2.0")],
            }
        },
        "components": parts,
        "dependencies": [{"ref": root, "dependsOn": [part["bom-ref"] for part in parts]}],
    }


def main() -> None:
    """Write the file, for every user to read, whatever the umask of the build."""
    tree = Path(sys.argv[1])
    (control,) = paragraphs((tree / "DEBIAN/control").read_text(encoding="utf-8"))
    folder = tree / "usr/share" / control["Package"]
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    file, content = folder / "sbom.cdx.json", materials(tree, control)
    file.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    file.chmod(0o644)


if __name__ == "__main__":
    main()
