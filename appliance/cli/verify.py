"""`roomscribe verify`: compare the installed files with the signed manifest in the package.

The manifest, its signature and the bill of materials are made by scripts/deb/manifest.py. The key
that the signature is verified with is the one that apt trusts for the repository: a key that came
with the package would prove nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import marshal
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from appliance.config import Settings
from appliance.errors import ModelError, StoreError

FOLDER = "usr/share/roomscribe"
OF_MODELS = "usr/share/roomscribe-model-*"
"""The same folder of each package that is a model..."""
PACKAGED_MODELS = f"{FOLDER}/models"
"""... and where its files are."""
MANIFEST, SIGNATURE, MATERIALS = "manifest.json", "manifest.json.sig", "sbom.cdx.json"
HOME, VENDOR = "usr/lib/roomscribe", "usr/lib/roomscribe/vendor"
KEYRING = "usr/share/keyrings/roomscribe.gpg"
MODELS = "var/lib/roomscribe-models"
OVERRIDES = ("etc/systemd/system/roomscribe*.d/*", "etc/systemd/system/roomscribe*.*")
OPTIONAL = ("usr/share/doc/", "usr/share/man/", "usr/share/bash-completion/", "usr/share/zsh/")
"""What small systems leave out (path-exclude of dpkg)."""
SYSTEM_PATH = "/usr/bin:/bin:/usr/sbin:/sbin"


def add_verify(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add `roomscribe verify` to the command line."""
    sub = add(
        "verify",
        help="check the installed files against the signed package",
        description="Compares every file that the Debian packages installed, the built-in model's "
        "weights included, with the packages' signed lists, checks the models that you added, the "
        "libraries and the Debian packages that it needs, and prints each difference. Changed "
        "configuration files are listed and are no difference. The exit status is 0 if everything "
        "matches and 1 if not. A program that an intruder changed can lie: for certainty, run this "
        "on another machine with --root.",
    )
    sub.add_argument(
        "--root",
        type=Path,
        default=Path("/"),
        metavar="FOLDER",
        help="check the system in FOLDER, such as a mounted memory card (default: /)",
    )
    sub.add_argument(
        "--keyring",
        type=Path,
        metavar="FILE",
        help=f"the repository's public key (default: /{KEYRING})",
    )
    sub.add_argument(
        "--unsigned",
        action="store_true",
        help="accept a package without a signature, such as one that you built yourself",
    )
    sub.add_argument(
        "--sbom",
        action="store_true",
        help="instead, print the bill of materials (CycloneDX) with the versions installed here",
    )
    sub.set_defaults(command=verify, lenient=True)


def verify(options: argparse.Namespace, _settings: Settings) -> int:
    """Run `roomscribe verify`; return 0 if everything matches, else 1."""
    root: Path = options.root
    folder = root / FOLDER
    if not (folder / MANIFEST).exists():
        print(f"roomscribe: {_without_package(root)}", file=sys.stderr)
        return 1
    folders = [folder, *sorted(file.parent for file in root.glob(f"{OF_MODELS}/{MANIFEST}"))]
    materials = [_read(each / MATERIALS) for each in folders]
    if options.sbom:
        whole = materials[0]
        whole["components"] += (part for each in materials[1:] for part in each["components"])
        print(json.dumps(_completed(whole, _installed(root)), indent=1, ensure_ascii=False))
        return 0
    for note in _local_settings(root):
        print(note)
    manifests = [_read(each / MANIFEST) for each in folders]
    known = {name for manifest in manifests for name in manifest["files"]}
    others = [*_strange_files(root, known), *_wrong_libraries(root, materials[0])]
    others += _wrong_models(root)
    failed = False
    for each, manifest, parts in zip(folders, manifests, materials, strict=True):
        differences = [
            *_wrong_signature(each, options.keyring or root / KEYRING, options.unsigned),
            *_wrong_files(root, manifest),
            *_wrong_parts(root, manifest, parts),
            *(others if each == folder else []),
        ]
        _report(root, manifest, differences)
        failed = failed or bool(differences)
    return int(failed)


def _report(root: Path, manifest: dict[str, Any], differences: list[str]) -> None:
    """Print how a package differs."""
    for note in _notes(root, manifest):
        print(note)
    for difference in differences:
        print(f"differs: {difference}")
    name = f"{manifest['package']} {manifest['version']} ({manifest['architecture']})"
    if differences:
        count = f"{len(differences)} difference" + "s" * (len(differences) > 1)
        print(
            f"{name}: {count}. If you did not make them, install the package again: "
            f"sudo apt install --reinstall {manifest['package']}"
        )
    else:
        print(f"{name}: all {len(manifest['files'])} files match")


def _without_package(root: Path) -> str:
    """Return why there is nothing to compare with, and what to do."""
    if root == Path("/") and not str(Path(__file__)).startswith(f"/{HOME}/"):
        return (
            "verify checks the Debian package, and this is a checkout "
            f"({Path(__file__).parents[2]}): `git status` shows changed files, and "
            "`roomscribe model verify` checks models"
        )
    return (
        f"{root / FOLDER / MANIFEST}: no such file. Either no package of Roomscribe is installed "
        "there, or it is damaged: install it again"
    )


def _read(file: Path) -> dict[str, Any]:
    """Return a JSON file of the package. Raises StoreError."""
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "no JSON"
        raise StoreError(f"{file}: {why}. Install the package again") from error
    if not isinstance(content, dict):
        raise StoreError(f"{file}: no JSON object. Install the package again")
    return content


def _wrong_signature(folder: Path, keyring: Path, unsigned: bool) -> Iterator[str]:
    """Check who signed the manifest, with the program that apt uses."""
    manifest, signature = folder / MANIFEST, folder / SIGNATURE
    if not signature.exists():
        if not unsigned:
            yield (
                f"{signature}: the package is not signed. If you built it yourself, use --unsigned"
            )
        return
    if not keyring.exists():
        yield (
            f"{keyring}: no public key to check the signature with. Get roomscribe.gpg from your "
            "package repository, or name it with --keyring"
        )
        return
    sqv, gpgv = (shutil.which(name, path=SYSTEM_PATH) for name in ("sqv", "gpgv"))
    paths = [str(path.absolute()) for path in (keyring, signature, manifest)]
    if sqv:
        command = [sqv, "--keyring", paths[0], "--signature-file", paths[1], paths[2]]
    elif gpgv:
        command = [gpgv, "--keyring", *paths]
    else:
        yield f"{signature}: neither sqv nor gpgv is installed to check it: sudo apt install sqv"
        return
    if subprocess.run(
        command, capture_output=True, stdin=subprocess.DEVNULL, check=False
    ).returncode:
        yield f"{manifest}: not signed by the key in {keyring}"


def _wrong_files(root: Path, manifest: dict[str, Any]) -> Iterator[str]:
    """Compare every file of a package."""
    for name, expected in manifest["files"].items():
        path = root / name
        if problem := _problem(path, expected):
            changeable = name in manifest["configuration"] and problem == "changed"
            if not changeable and not (problem == "missing" and name.startswith(OPTIONAL)):
                yield f"/{name}: {problem}"


def _strange_files(root: Path, known: Collection[str]) -> Iterator[str]:
    """List what the packages' folders have beside the packages' files."""
    for path in sorted([*(root / HOME).rglob("*"), *(root / PACKAGED_MODELS).rglob("*")]):
        name = path.relative_to(root).as_posix()
        if path.is_dir() and not path.is_symlink():
            continue
        if path.parent.name == "__pycache__":
            if not _is_compiled_from(path, path.parent.parent):
                yield f"/{name}: not compiled from the source beside it"
        elif name not in known:
            yield f"/{name}: not in the package"


def _problem(path: Path, expected: dict[str, str]) -> str:
    """Return how a file differs, or ""."""
    try:
        if "link" in expected:
            return (
                "" if path.is_symlink() and str(path.readlink()) == expected["link"] else "changed"
            )
        if path.is_symlink() or not path.is_file():
            return "not a plain file" if path.exists() or path.is_symlink() else "missing"
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != expected["sha256"]:
            return "changed"
        mode = f"{path.stat().st_mode & 0o7777:04o}"
        return "" if mode == expected["mode"] else f"has mode {mode}, expected {expected['mode']}"
    except OSError as error:
        return f"cannot be read ({error.strerror}): run this with sudo"


def _is_compiled_from(compiled: Path, folder: Path) -> bool:
    """Return whether a file of __pycache__ is the byte code of the source in `folder`.

    Byte code of another Python is not run by this one, and is not checked.
    """
    if f".{sys.implementation.cache_tag}." not in compiled.name:
        return compiled.suffix == ".pyc"
    source = folder / f"{compiled.name.split('.')[0]}.py"
    try:
        data = compiled.read_bytes()
        code = compile(source.read_bytes(), str(source), "exec", dont_inherit=True, optimize=0)
        return data[:4] == importlib.util.MAGIC_NUMBER and bool(marshal.loads(data[16:]) == code)
    except (OSError, ValueError, EOFError, TypeError, SyntaxError):
        return False


def _wrong_parts(root: Path, manifest: dict[str, Any], materials: dict[str, Any]) -> Iterator[str]:
    """Compare the bill of materials with what is installed."""
    versions = _installed(root)
    package, wanted = manifest["package"], manifest["version"]
    if (found := versions.get(package)) != wanted:
        yield f"package {package}: expected {wanted}, found {found or 'none'}"
    for part in materials["components"]:
        name, kind = part["name"], str(part["bom-ref"]).partition("/")[0]
        if kind == "deb":
            for entry in part["properties"]:
                if not _satisfies(versions.get(name), entry["value"]):
                    yield f"package {name}: expected {entry['value']}, found {versions.get(name)}"
        elif kind == "model":
            bundle = f"{PACKAGED_MODELS}/{name}/bundle.json"
            if manifest["files"].get(bundle, {}).get("sha256") != part["hashes"][0]["content"]:
                yield f"model {name}: the bill of materials describes other weights"


def _wrong_libraries(root: Path, materials: dict[str, Any]) -> Iterator[str]:
    """Compare the bill of materials with the libraries that came with the program."""
    vendored = _vendored(root)
    for part in materials["components"]:
        name, version = part["name"], part.get("version")
        if part["bom-ref"].startswith("pypi/") and (found := vendored.pop(name, None)) != version:
            yield f"library {name}: expected {version}, found {found or 'none'}"
    yield from (
        f"library {name} {version}: not in the bill of materials"
        for name, version in vendored.items()
    )


def _vendored(root: Path) -> dict[str, str]:
    """Return the versions of the libraries that came with the package."""
    found = {}
    for file in (root / VENDOR).glob("*.dist-info/METADATA"):
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        fields = dict(line.split(": ", 1) for line in lines[:20] if ": " in line)
        found[fields.get("Name", file.parent.name)] = fields.get("Version", "")
    return found


def _installed(root: Path) -> dict[str, str]:
    """Return the installed Debian packages and their versions. Raises StoreError."""
    place = ["--admindir", str(root / "var/lib/dpkg")]
    form = ["-W", "-f", "${db:Status-Status} ${Package} ${Version}\n"]
    try:
        done = subprocess.run(
            ["dpkg-query", *place, *form], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise StoreError(
            f"{root / 'var/lib/dpkg'}: the list of Debian packages cannot be read"
        ) from error
    lines = (line.split(" ") for line in done.stdout.splitlines())
    return {name: version for status, name, version in lines if status == "installed"}


def _satisfies(version: str | None, dependency: str) -> bool:
    """Return whether an installed version is one that the package needs."""
    if version is None:
        return False
    _, bracket, limit = dependency.partition("(")
    if not bracket:
        return True
    relation, wanted = limit.rstrip(") ").split(" ")
    command = ["dpkg", "--compare-versions", version, relation, wanted]
    return subprocess.run(command, check=False).returncode == 0


def _wrong_models(root: Path) -> Iterator[str]:
    """Check the models that were added later against their own checksums, which nobody signed."""
    from appliance.model import load_bundle

    for file in sorted((root / MODELS).glob("*/bundle.json")):
        try:
            load_bundle(file.parent)
        except ModelError as error:
            yield f"model {file.parent.name}: {error}"


def _notes(root: Path, manifest: dict[str, Any]) -> Iterator[str]:
    """Return what is as its owner wants it, though the package has it otherwise."""
    for name in manifest["configuration"]:
        if _problem(root / name, manifest["files"][name]) == "changed":
            yield f"changed configuration: /{name}"
    missing = [
        name
        for name in manifest["files"]
        if name.startswith(OPTIONAL) and not os.path.lexists(root / name)
    ]
    if missing:
        yield f"not installed here: {len(missing)} files of the manual"


def _local_settings(root: Path) -> Iterator[str]:
    """Return what systemd takes from elsewhere."""
    for pattern in OVERRIDES:
        for path in sorted(root.glob(pattern)):
            if path.is_file():
                yield f"local settings of systemd: /{path.relative_to(root)}"


def _completed(materials: dict[str, Any], versions: dict[str, str]) -> dict[str, Any]:
    """Return the bill of materials with the versions of the Debian packages of this machine."""
    for part in materials["components"]:
        if part["bom-ref"].startswith("deb/") and (version := versions.get(part["name"])):
            part["version"] = version
            part["purl"] = f"pkg:deb/debian/{part['name']}@{version}?distro=trixie"
    return materials
