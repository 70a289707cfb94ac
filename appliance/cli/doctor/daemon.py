"""The daemon that the doctor runs beside: who it is, what it holds, and where it keeps things."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from appliance.config import DEFAULT_PATH

UNIT = "roomscribe.service"
ADOPTED = ("STATE_DIRECTORY", "CREDENTIALS_DIRECTORY", "ROOMSCRIBE_MODELS")
"""Of its environment, what decides where store, password and models are."""


@dataclass(frozen=True, slots=True)
class Daemon:
    """A running `roomscribe run`."""

    pid: int
    user: str
    service: bool
    """True when systemd started it as UNIT."""
    environment: dict[str, str] = field(default_factory=dict)
    """ADOPTED variables that it has; empty when this user may not look."""

    def __str__(self) -> str:
        return f"{'the service' if self.service else 'the daemon'} (process {self.pid})"


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that has a device open."""

    pid: int
    name: str

    def __str__(self) -> str:
        return f"{self.name} (process {self.pid})"


def running_daemon(config: Path | None, proc: Path = Path("/proc")) -> Daemon | None:
    """The daemon that runs on the configuration `config`; None when there is none."""
    wanted = (config or DEFAULT_PATH).absolute()
    for folder in _processes(proc):
        words = _words(folder / "cmdline")
        if not _is_daemon(words) or _its_config(words, folder) != wanted or _in_container(folder):
            continue
        with suppress(OSError):
            return Daemon(
                pid=int(folder.name),
                user=_user(folder.stat().st_uid),
                service=UNIT in _text(folder / "cgroup"),
                environment=_adopted(_words(folder / "environ")),
            )
    return None


def holders(device: str, root: Path = Path("/")) -> list[Holder]:
    """Who has a device open whose path below `root` fits the pattern `device` (dev/snd/pcmC*c).

    Processes of other users are only seen by root.
    """
    nodes = {str(Path("/") / node.relative_to(root)) for node in root.glob(device)}
    return [
        Holder(int(folder.name), _text(folder / "comm").strip() or "a program")
        for folder in _processes(root / "proc")
        if nodes & set(_open_files(folder))
    ]


def _processes(proc: Path) -> Iterator[Path]:
    for folder in sorted(proc.glob("[0-9]*")):
        if folder.name.isdigit() and folder.name != str(os.getpid()):
            yield folder


def _is_daemon(words: list[str]) -> bool:
    """True for `[python] roomscribe run` and `python -m appliance run`."""
    if "run" not in words:
        return False
    before = words[: words.index("run")]
    return "appliance" in before or any(Path(word).name == "roomscribe" for word in before)


def _in_container(folder: Path) -> bool:
    """True for a process that has another number, too, in a container of its own."""
    numbers = re.search(r"^NSpid:(.*)$", _text(folder / "status"), re.MULTILINE)
    return numbers is not None and len(numbers[1].split()) > 1


def _its_config(words: list[str], folder: Path) -> Path:
    """The configuration that a daemon's command line names, or the default one."""
    named = ""
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if word == "--config":
            named = after
        elif word.startswith("--config="):
            named = word.partition("=")[2]
    if not named:
        return DEFAULT_PATH
    home = Path("/")
    with suppress(OSError):
        home = (folder / "cwd").readlink()
    return home / named


def _adopted(environ: list[str]) -> dict[str, str]:
    pairs = (entry.partition("=") for entry in environ)
    return {name: value for name, _, value in pairs if name in ADOPTED}


def _open_files(folder: Path) -> Iterator[str]:
    with suppress(OSError):
        for link in (folder / "fd").iterdir():
            with suppress(OSError):
                yield str(link.readlink())


def _words(file: Path) -> list[str]:
    return [word for word in _text(file).split("\0") if word]


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
