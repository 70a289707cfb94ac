"""Writes the package's bill of materials (CycloneDX 1.6) and the manifest of its files.

python -m deb.manifest TREE SIGNATURES    TREE is debian/PACKAGE, complete but for dh_md5sums

Both are in usr/share/roomscribe/ afterwards (those of a model in usr/share/PACKAGE/), and
manifest.json.sig, if SIGNATURES has that of this package and architecture (scripts/build-deb
--sign). `roomscribe verify` reads them. Nothing in them depends on the day or the machine of the
build.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDER = "usr/share/roomscribe"
MANIFEST, SIGNATURE, MATERIALS = "manifest.json", "manifest.json.sig", "sbom.cdx.json"
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
                },
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


def manifest(tree: Path, control: dict[str, str]) -> dict[str, Any]:
    """Return every file of the package: checksum and mode, or a link's target."""
    own = [f"{folder_of(control['Package'])}/{name}" for name in (MANIFEST, SIGNATURE)]
    files: dict[str, dict[str, str]] = {}
    for path in sorted(tree.rglob("*")):
        name = path.relative_to(tree).as_posix()
        if name.startswith("DEBIAN/") or name in own:
            continue
        if path.is_symlink():
            files[name] = {"link": str(path.readlink())}
        elif path.is_file():
            files[name] = {"sha256": sha256(path), "mode": f"{path.stat().st_mode & 0o7777:04o}"}
    return {
        "package": control["Package"],
        "version": control["Version"],
        "architecture": control["Architecture"],
        "configuration": sorted(name for name in files if name.startswith("etc/")),
        "files": files,
    }


def folder_of(package: str) -> str:
    """Return where a package keeps what is said of it: roomscribe and roomscribe-satellite, of
    which one is installed, in the same place."""
    return f"usr/share/{package}" if package.startswith("roomscribe-model-") else FOLDER


def write_json(file: Path, content: dict[str, Any]) -> None:
    """Write a file that every user can read, whatever the umask of the build."""
    file.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    file.chmod(0o644)


def main() -> int:
    """Write both files, and the signature if it is there; return 1 if it belongs to other files."""
    tree, signatures = Path(sys.argv[1]), Path(sys.argv[2])
    (control,) = paragraphs((tree / "DEBIAN/control").read_text(encoding="utf-8"))
    folder = tree / folder_of(control["Package"])
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    write_json(folder / MATERIALS, materials(tree, control))
    write_json(folder / MANIFEST, manifest(tree, control))
    stem = f"{control['Package']}_{control['Architecture']}"
    signed, signature = signatures / f"{stem}.json", signatures / f"{stem}.json.sig"
    if signature.exists():
        if signed.read_bytes() != (folder / MANIFEST).read_bytes():
            print(f"{signature}: this build has other files than the signed one", file=sys.stderr)
            return 1
        shutil.copyfile(signature, folder / SIGNATURE)
        (folder / SIGNATURE).chmod(0o644)
    return 0


if __name__ == "__main__":
    sys.exit(main())
