"""What systemd does for roomscribe-models.socket: `roomscribe model serve` for each connection."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rigs.checkout import ROOT

SERVE = (sys.executable, "-m", "appliance", "model", "serve")


@contextmanager
def adder(
    place: Path, environment: Mapping[str, str], command: tuple[str, ...] = SERVE
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Listens at `place`; the processes that were started, in order."""
    begun: list[subprocess.Popen[bytes]] = []

    def serve() -> None:
        while True:
            try:
                opened, _ = listener.accept()
            except OSError:
                return
            with opened:
                begun.append(
                    subprocess.Popen(
                        command,
                        stdin=opened.fileno(),
                        stdout=opened.fileno(),
                        stderr=subprocess.DEVNULL,
                        env={**os.environ, **environment},
                        cwd=ROOT,
                    )
                )

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place))
        listener.listen(1)
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield begun
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for one in begun:
                one.kill()
                one.wait()
            place.unlink()
