"""One daemon at a time: the log, and the client id at the broker, are claimed by one process.

Two daemons would tell every sentence twice, and throw each other off the broker. A second appliance
on another machine is the broker's to notice (mqtt/connection).
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import signal
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from appliance.config import Settings, node_name, store_folder
from appliance.errors import BrokerError, StoreError
from appliance.mqtt import client_id
from appliance.system import Holder, shorten

log = logging.getLogger("roomscribe.daemon")

ASKED = 4096
"""So often a claim can be asked for its holder; then it has no name."""


@contextmanager
def claims(settings: Settings) -> Iterator[None]:
    """The log, and with MQTT the client id at the broker, are this process's as long as it lasts.

    Raises StoreError or BrokerError, naming the process that has them.
    """
    folder, broker = store_folder(settings.store), settings.mqtt
    client = client_id(broker, node_name(settings))
    with ExitStack() as held:
        try:
            held.enter_context(claim(f"log {os.path.realpath(folder)}"))
        except ClaimedError as error:
            raise StoreError(
                f"{folder}: expected a log that no other process keeps, found {error}: end that "
                "one (`systemctl stop roomscribe`), or give this one its own [store] path"
            ) from None
        try:
            if broker.enabled:
                held.enter_context(claim(f"client {client} {broker.host.lower()}:{broker.port}"))
        except ClaimedError as error:
            raise BrokerError(
                f"broker {broker.host}:{broker.port}: expected nobody else on this machine with "
                f"the client id {client!r}, found {error}: end that one (`systemctl stop "
                "roomscribe`), or give this one its own [appliance] node"
            ) from None
        yield


class ClaimedError(Exception):
    """Another process has it; the text names that one."""


def claim(name: str, proc: Path = Path("/proc")) -> socket.socket:
    """Makes `name` this process's until what is returned is closed, or the process ends, however.

    For all users of the machine (of the network namespace): the name is that of an abstract Unix
    socket (unix(7)), which needs no file, no permission and no disk, and leaves nothing behind. A
    holder that has been killed and hangs in the kernel counts for nothing. Raises ClaimedError
    while another process has it. Where the system allows no such socket, nothing is claimed.
    """
    address = "\0roomscribe/" + hashlib.sha256(name.encode(errors="replace")).hexdigest()[:32]
    for _ in range(5):
        own = socket.socket(socket.AF_UNIX)
        try:
            own.bind(address)
            own.listen(ASKED)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                log.warning("cannot see whether another daemon runs: %s", error.strerror)
                return own
            pid = _listener(address)
        else:
            return own
        if pid and _is_ending(proc / str(pid)):
            return own
        own.close()
        if pid:
            words = _text(proc / str(pid) / "cmdline").replace("\0", " ").strip()
            raise ClaimedError(str(Holder(pid, shorten(words or "a program", 120))))
        time.sleep(0.05)  # it has just begun, or ended
    raise ClaimedError("a process that does not say which")


def _listener(address: str) -> int:
    """The process that listens there; 0 when nobody does, or it is not to be known."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.setblocking(False)
        try:
            asking.connect(address)
        except OSError:
            return 0
        credentials = asking.getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
        )
    return int(struct.unpack("3i", credentials)[0])


def _is_ending(process: Path) -> bool:
    """True for a process that was killed and is there because the kernel does not let it go."""
    status = _text(process / "status")
    pending = re.findall(r"^(?:Sig|Shd)Pnd:\s*([0-9a-f]+)$", status, re.MULTILINE)
    killed = any(int(mask, 16) >> (signal.SIGKILL - 1) & 1 for mask in pending)
    return killed or bool(re.search(r"^State:\s*[ZX]", status, re.MULTILINE))


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
