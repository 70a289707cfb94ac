"""Installs the packages in a booted container and runs every check; scripts/test-deb calls it.

python -m deb.main DEB FORMER TOOLS_ROOT TEST_ROOT WORK [CHECK...]

Beside DEB lie the satellite's and the model's package. FORMER is the folder with the packages of an
older release; without them, the check that needs them is skipped.
"""

import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from deb import checks, checks_life as life, checks_web as web
from deb.container import CheckError, Container

NEXT = "+next"


def newer_package(deb: Path, version: str, folder: Path) -> Path:
    """Return the path of the same package with a newer version and default configuration."""
    tree = folder / "tree"
    subprocess.run(["dpkg-deb", "-R", str(deb), str(tree)], check=True)
    control = tree / "DEBIAN" / "control"
    text = control.read_text(encoding="utf-8")
    text = text.replace(f"Version: {version}\n", f"Version: {version}{NEXT}\n")
    control.write_text(text, encoding="utf-8")
    with (tree / "usr/share/roomscribe/roomscribe.toml").open("a", encoding="utf-8") as config:
        config.write("# the newer version's default\n")
    newer = folder / deb.name.replace(version, version + NEXT)
    subprocess.run(["dpkg-deb", "--root-owner-group", "-b", str(tree), str(newer)], check=True)
    shutil.rmtree(tree)
    return newer


def field(deb: Path, name: str) -> str:
    """Return a field of the package's control file."""
    done = subprocess.run(
        ["dpkg-deb", "-f", str(deb), name], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def beside(deb: Path) -> tuple[Path, Path]:
    """Return the satellite's and the model's package of the same build."""
    name, version, _ = deb.name.split("_")
    satellite = deb.with_name(deb.name.replace(name, f"{name}-satellite", 1))
    return satellite, deb.with_name(f"{name}-model-tiny-en_{version}_all.deb")


def plan(deb: Path, former: Path, newer: Path) -> dict[str, Callable[[Container], str]]:
    """Return all checks by name, in the order in which they depend on each other."""
    satellite, model = beside(deb)
    whole_deb, satellite_deb, model_deb, newer_deb = (
        f"/share/{file.name}" for file in (deb, satellite, model, newer)
    )
    both = f"{whole_deb} {model_deb}"
    former_debs = " ".join(
        f"/share/former/{deb.name}"
        for name in ("roomscribe", "roomscribe-model-tiny-en")
        for deb in former.glob(f"{name}_*.deb")
    )
    plain = [
        checks.is_whole,
        checks.is_sandboxed,
        checks.finds_broker,
        checks.finds_microphone,
        checks.keeps_text_private,
        checks.has_a_user,
        checks.serves_a_user,
        checks.sets_up,
        checks.keeps_to_readme,
        checks.reads_models,
        web.shows_a_page,
        web.adds_a_model,
        checks.outlives_hanging,
        checks.stops_in_time,
        life.keeps_what_waits,
        life.opens_its_port,
        life.has_password,
    ]
    return {
        "installs": lambda box: checks.installs(box, whole_deb, model_deb),
        **{check.__name__: check for check in plain},
        "upgrades": lambda box: life.upgrades(box, newer_deb),
        "downgrades": lambda box: life.downgrades(box, whole_deb),
        "leaves": lambda box: life.leaves(box, whole_deb),
        "keeps_a_former_one": lambda box: life.keeps_a_former_one(box, former_debs, both),
        "awaits_a_worker": lambda box: life.awaits_a_worker(box, satellite_deb),
        "has_another_transcribe": lambda box: life.has_another_transcribe(
            box, whole_deb, model_deb
        ),
        "changes_places": lambda box: life.changes_places(box, whole_deb, satellite_deb),
    }


def main() -> int:
    """Run all chosen checks and return 1 if any failed, 2 if a name is unknown."""
    deb, former, tools, root, work = (Path(name).resolve() for name in sys.argv[1:6])
    version = field(deb, "Version")
    satellite, model = beside(deb)
    share = work / "share"
    share.mkdir(parents=True)
    for file in (deb, satellite, model):
        shutil.copy(file, share)
    shutil.copytree(former, share / "former")
    newer = newer_package(deb, version, share)
    known = plan(deb, former, newer)
    chosen = sys.argv[6:] or [*known]
    if unknown := set(chosen) - known.keys():
        print(f"test-deb: no such check: {', '.join(unknown)}; there are {', '.join(known)}")
        return 2
    begun_s = time.monotonic()
    box = Container(tools, root, work)
    failed = run_checks(box, {name: known[name] for name in known if name in chosen})
    total = f"{len(chosen)} checks in {time.monotonic() - begun_s:.0f} s"
    if failed:
        print(f"test-deb: FAILED: {', '.join(failed)} of {total}")
    else:
        print(f"test-deb: passed: {total}, {deb.name}")
    return bool(failed)


def run_checks(box: Container, checks: dict[str, Callable[[Container], str]]) -> list[str]:
    """Run the checks in the container, which is ended then, and return the names of the failed."""
    failed: list[str] = []
    try:
        print(f"booted in {box.boot():.1f} s", flush=True)
        for name, check in checks.items():
            started_s = time.monotonic()
            try:
                result = check(box)
            except Exception as error:
                failed.append(name)
                result = f"FAILED: {error}"
                if not isinstance(error, CheckError):
                    traceback.print_exc()
                print(box.run("journalctl -n 40 --no-pager -o short-monotonic", check=False))
            took_s = time.monotonic() - started_s
            mark = "FAIL" if name in failed else "ok"
            print(f"{mark:4} {name} ({took_s:.0f} s) {result}", flush=True)
    finally:
        box.close()
    return failed


if __name__ == "__main__":
    sys.exit(main())
