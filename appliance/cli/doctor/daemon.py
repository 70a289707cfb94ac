"""Find the running daemon, and the secrets and folders that systemd gives it."""

from __future__ import annotations

import logging
import os
import pwd
import re
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from appliance.config import DEFAULT_PATH, MqttSettings, Settings
from appliance.control import SOCKET_NAME, ControlClient
from appliance.errors import DaemonError
from appliance.mqtt import PASSWORD_CREDENTIAL
from appliance.store import runtime_folders
from appliance.system import find_credential

log = logging.getLogger("roomscribe.cli")

UNIT = "roomscribe.service"
ADOPTED = ("STATE_DIRECTORY", "CREDENTIALS_DIRECTORY", "ROOMSCRIBE_MODELS")
"""Variables of its environment that decide where store, password and models are."""
INSTALLED_STATE = Path("/var/lib/roomscribe")
PLAIN, ENCRYPTED = Path("/etc/credstore"), Path("/etc/credstore.encrypted")
"""Folders of the unit's state and of systemd's credentials for it, if it does not run."""
ANSWER_S = 5.0
DECRYPT_S = 30.0
"""Longest wait for systemd-creds, which may ask a TPM."""


@dataclass(frozen=True, slots=True)
class DaemonProcess:
    """A running `roomscribe run`."""

    pid: int
    user: str
    service: bool
    """True if systemd started it as UNIT."""
    environment: dict[str, str] = field(default_factory=dict)
    """Its ADOPTED variables; empty if this user may not read them."""

    def __str__(self) -> str:
        return f"{'the service' if self.service else 'the daemon'} (process {self.pid})"


def beside_daemon(config: Path | None, settings: Settings) -> tuple[DaemonProcess | None, Settings]:
    """Return the daemon that runs with `config`, if any, and `settings` with its secrets.

    Sets the ADOPTED variables as the daemon has them or, if the service does not run, as systemd
    would set them.
    """
    daemon = running_daemon(config)
    if daemon:
        os.environ.update(daemon.environment)
    if config not in (None, DEFAULT_PATH) or not DEFAULT_PATH.exists():
        return daemon, settings
    if not daemon and INSTALLED_STATE.exists():
        os.environ.setdefault("STATE_DIRECTORY", str(INSTALLED_STATE))
    if "CREDENTIALS_DIRECTORY" not in os.environ and (daemon is None or daemon.service):
        settings = replace(settings, mqtt=with_credentials(settings.mqtt))
    return daemon, settings


def with_credentials(
    mqtt: MqttSettings, plain: Path = PLAIN, encrypted: Path = ENCRYPTED
) -> MqttSettings:
    """Return `mqtt` with the password file that systemd would give the service, if it is readable.

    Logs a warning for a file that cannot be decrypted.
    """
    if not mqtt.username or mqtt.password_file:
        return mqtt
    if os.access(plain / PASSWORD_CREDENTIAL, os.R_OK):
        return replace(mqtt, password_file=str(plain / PASSWORD_CREDENTIAL))
    if os.geteuid() == 0 and (encrypted / PASSWORD_CREDENTIAL).exists():
        return replace(mqtt, password_file=_decrypt(encrypted / PASSWORD_CREDENTIAL))
    return mqtt


def _decrypt(file: Path) -> str:
    """Return a file in this process's memory with the decrypted text of `file`; empty if systemd
    cannot decrypt it."""
    try:
        text = subprocess.run(
            ["systemd-creds", "decrypt", f"--name={file.name}", file, "-"],
            capture_output=True, timeout=DECRYPT_S, check=True,
        ).stdout  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        output = (getattr(error, "stderr", b"") or str(error).encode()).decode(errors="replace")
        log.warning(
            "%s cannot be decrypted: %s. Encrypt it again on this machine with systemd-creds.",
            file,
            " ".join(output.split()),
        )
        return ""
    memory = os.memfd_create(file.name)
    os.write(memory, text)
    return f"/proc/self/fd/{memory}"


def is_hidden(
    file: str,
    credential: str,
    daemon: DaemonProcess | None,
    folders: tuple[Path, ...] = (PLAIN, ENCRYPTED),
) -> bool:
    """Return True if the daemon may have a secret that this user may not read: in the configured
    `file`, or else as the systemd `credential`."""
    if file:
        return _is_closed(Path(file).expanduser())
    if os.geteuid() == 0 or find_credential(credential):
        return False
    service = daemon is not None and daemon.service
    return service or any(_is_closed(folder / credential) for folder in folders)


def _is_closed(file: Path) -> bool:
    """Return True for a file that this user may not read or find."""
    try:
        file.stat()
    except PermissionError:
        return True
    except OSError:
        return False
    return not os.access(file, os.R_OK)


def running_daemon(config: Path | None, proc: Path = Path("/proc")) -> DaemonProcess | None:
    """Return the daemon that runs with the configuration `config`, or None."""
    wanted = (config or DEFAULT_PATH).absolute()
    for folder in _processes(proc):
        words = _words(folder / "cmdline")
        if not _is_daemon(words) or _its_config(words, folder) != wanted or _in_container(folder):
            continue
        with suppress(OSError):
            return DaemonProcess(
                pid=int(folder.name),
                user=_user(folder.stat().st_uid),
                service=UNIT in _text(folder / "cgroup"),
                environment=_adopted(_words(folder / "environ")),
            )
    return None


def ask_daemon(settings: Settings, command: str) -> dict[str, Any]:
    """Return the running daemon's `state` or `stats`; empty if it does not answer this user."""
    places = [folder / SOCKET_NAME for folder in runtime_folders(settings)]
    with suppress(DaemonError), ControlClient(places, ANSWER_S) as daemon:
        found: dict[str, Any] = daemon.call(command)
        return found
    return {}


def _processes(proc: Path) -> Iterator[Path]:
    for folder in sorted(proc.glob("[0-9]*")):
        if folder.name.isdigit() and folder.name != str(os.getpid()):
            yield folder


def _is_daemon(words: list[str]) -> bool:
    """Return True for `[python] roomscribe run` and `python -m appliance run`."""
    if "run" not in words:
        return False
    before = words[: words.index("run")]
    return "appliance" in before or any(Path(word).name == "roomscribe" for word in before)


def _in_container(folder: Path) -> bool:
    """Return True for a process that has another number in a container."""
    numbers = re.search(r"^NSpid:(.*)$", _text(folder / "status"), re.MULTILINE)
    return numbers is not None and len(numbers[1].split()) > 1


def _its_config(words: list[str], folder: Path) -> Path:
    """Return the configuration on a daemon's command line, or the default one."""
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
