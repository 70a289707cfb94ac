"""The single-instance lock: one process at a time owns the log and the client id at the broker.

Two daemons would publish every sentence twice, and disconnect each other from the broker. A second
appliance on another machine is noticed at the broker (mqtt/connection).
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

OWNER_QUERIES = 4096
"""How often others can ask who owns a lock; after that the owner is unknown."""


@contextmanager
def lock_instance(settings: Settings) -> Iterator[None]:
    """Own the log, and with MQTT the client id at the broker.

    Raises StoreError or BrokerError, which name the process that owns them.
    """
    folder, broker = store_folder(settings.store), settings.mqtt
    client = client_id(broker, node_name(settings))
    with ExitStack() as locks:
        try:
            locks.enter_context(acquire(f"log {os.path.realpath(folder)}"))
        except OwnedError as error:
            raise StoreError(
                f"{folder}: another process uses this log: {error}. Stop it (`systemctl stop "
                "roomscribe`), or give this one its own [store] path"
            ) from None
        try:
            if broker.enabled:
                locks.enter_context(acquire(f"client {client} {broker.host.lower()}:{broker.port}"))
        except OwnedError as error:
            raise BrokerError(
                f"broker {broker.host}:{broker.port}: another process on this machine uses the "
                f"client id {client!r}: {error}. Stop it (`systemctl stop roomscribe`), or give "
                "this one its own [appliance] node"
            ) from None
        yield


class OwnedError(Exception):
    """Another process owns the name; the text says which."""


def acquire(name: str, proc: Path = Path("/proc")) -> socket.socket:
    """Own `name` until the returned socket is closed or the process ends in any way.

    This holds for all users of the machine (of the network namespace): the name is that of an
    abstract Unix socket (unix(7)), which needs no file, permission or disk, and leaves nothing
    behind. An owner that was killed and hangs in the kernel does not count. Raises OwnedError while
    another process owns it. If the system allows no such socket, there is no lock.
    """
    address = "\0roomscribe/" + hashlib.sha256(name.encode(errors="replace")).hexdigest()[:32]
    for _ in range(5):
        own = socket.socket(socket.AF_UNIX)
        try:
            own.bind(address)
            own.listen(OWNER_QUERIES)
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
            raise OwnedError(str(Holder(pid, shorten(words or "a program", 120))))
        time.sleep(0.05)  # it has just started, or ended
    raise OwnedError("a process that does not say which")


def _listener(address: str) -> int:
    """Return the id of the process that listens there; 0 if none does or it is unknown."""
    with socket.socket(socket.AF_UNIX) as client:
        client.setblocking(False)
        try:
            client.connect(address)
        except OSError:
            return 0
        credentials = client.getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
        )
    return int(struct.unpack("3i", credentials)[0])


def _is_ending(process: Path) -> bool:
    """Return True for a process that was killed but still hangs in the kernel."""
    status = _text(process / "status")
    pending = re.findall(r"^(?:Sig|Shd)Pnd:\s*([0-9a-f]+)$", status, re.MULTILINE)
    killed = any(int(mask, 16) >> (signal.SIGKILL - 1) & 1 for mask in pending)
    return killed or bool(re.search(r"^State:\s*[ZX]", status, re.MULTILINE))


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
