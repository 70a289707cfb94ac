"""Find the running daemon, and the secrets and folders that systemd gives it."""

import logging
import os
import socket
import struct
import subprocess
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from appliance.cli.commands import control_sockets
from appliance.config import DEFAULT_PATH, MqttSettings, Settings
from appliance.control import ControlClient
from appliance.errors import DaemonError
from appliance.mqtt import PASSWORD_CREDENTIAL
from appliance.system import find_credential, read_or_empty

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
    """0: this user may not ask it."""
    service: bool
    """True if systemd started it as UNIT."""

    def __str__(self) -> str:
        name = "the service" if self.service else "the daemon"
        return f"{name} (process {self.pid})" if self.pid else name


def beside_daemon(config: Path | None, settings: Settings) -> tuple[DaemonProcess | None, Settings]:
    """Return the daemon that has the log of `settings`, if any, and `settings` with its secrets.

    Sets the ADOPTED variables as the daemon has them or, for the installed configuration, as
    systemd would set them.
    """
    installed = config in (None, DEFAULT_PATH) and DEFAULT_PATH.exists()
    if installed and INSTALLED_STATE.exists():
        os.environ.setdefault("STATE_DIRECTORY", str(INSTALLED_STATE))
    daemon = running_daemon(settings)
    if daemon and daemon.pid:
        environment = read_or_empty(Path(f"/proc/{daemon.pid}/environ")).split("\0")
        pairs = (entry.partition("=") for entry in environment)
        os.environ.update({name: value for name, _, value in pairs if name in ADOPTED})
    given = "CREDENTIALS_DIRECTORY" in os.environ
    if installed and not given and (daemon is None or daemon.service):
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


def running_daemon(settings: Settings) -> DaemonProcess | None:
    """Return the daemon that listens on the control socket for the log of `settings`, or None."""
    for path in control_sockets(settings):
        with socket.socket(socket.AF_UNIX) as client:
            try:
                client.connect(str(path))
            except PermissionError:
                return DaemonProcess(0, service=True)
            except OSError:
                continue
            peer = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid: int = struct.unpack("3i", peer)[0]
        return DaemonProcess(pid, UNIT in read_or_empty(Path(f"/proc/{pid}/cgroup")))
    return None


def ask_daemon(settings: Settings, command: str) -> dict[str, Any]:
    """Return the running daemon's `state` or `stats`; empty if it does not answer this user."""
    with suppress(DaemonError), ControlClient(control_sockets(settings), ANSWER_S) as daemon:
        found: dict[str, Any] = daemon.call(command)
        return found
    return {}


def output(*command: str, within_s: float = 5.0) -> str:
    """Return what a program prints; empty if it is not there, fails or takes longer."""
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, timeout=within_s, check=True)
        return done.stdout.decode(errors="replace")
    return ""
