"""The single-instance lock: one process at a time owns the log.

Two daemons would publish every sentence twice. Another appliance with the same client id is noticed
at the broker (mqtt/connection).
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from appliance.errors import StoreError

log = logging.getLogger("roomscribe.daemon")


@contextmanager
def lock_instance(folder: Path) -> Iterator[None]:
    """Own the log in `folder` until the process ends in any way. Raises StoreError.

    This holds for all users of the machine (of the network namespace): the lock is an abstract Unix
    socket (unix(7)), which needs no file, permission or disk, and leaves nothing behind. If the
    system allows no such socket, there is no lock.
    """
    name = hashlib.sha256(os.fsencode(os.path.realpath(folder))).hexdigest()
    with socket.socket(socket.AF_UNIX) as held:
        try:
            held.bind(f"\0roomscribe/{name[:32]}")
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise StoreError(
                    f"{folder}: another process uses this log: stop it (`systemctl stop "
                    "roomscribe`), or give this one its own [store] path"
                ) from None
            log.warning("cannot see whether another daemon runs: %s", error.strerror)
        yield
