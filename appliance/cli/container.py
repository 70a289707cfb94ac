"""`roomscribe container`: run the appliance in a container, in systemd's place.

The daemon is a child process, and so is the page while someone looks. The daemon's heartbeats come
over a socket, as systemd's would (sd_notify(3)). A daemon that ends or hangs is started again, and
finds in memory what it had not transcribed. Delays and limits are those of
systemd/roomscribe.service.
"""

from __future__ import annotations

import argparse
import logging
import os
import pwd
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from appliance import config
from appliance.config import Settings, WebSettings, store_folder
from appliance.errors import ConfigError, DeviceError, StoreError

log = logging.getLogger("roomscribe.container")

USER = "roomscribe"
"""Whom a Home Assistant app, which starts as root, runs as."""
DEVICES = ("snd/*", "hailo*")
"""Devices below /dev whose groups that user joins."""
FOLDERS = ("models", "page")
"""Folders beside the log, to which the image links /var/lib/roomscribe-models and -web."""
START_S, HEARTBEAT_S, STOP_S = 90.0, 30.0, 15.0
SHORTEST_DELAY_S, LONGEST_DELAY_S = 2.0, 300.0
STEADY_S = 60.0
"""After this long, the next start is not delayed for the failures before."""
FINAL = (0, ConfigError.exit_status)
"""Exit statuses of the daemon after which it is not started again."""
POLL_S = 0.5
ANSWER_S = 5.0
MOST_BUILDERS = 2
AS_SYSTEMD = 'LISTEN_PID=$$ LISTEN_FDS=1 exec "$@" 3<&0 0< /dev/null'
"""Passes standard input, a listening socket, as sd_listen_fds(3) says."""


def add_container(
    names: argparse._SubParsersAction[argparse.ArgumentParser], common: argparse.ArgumentParser
) -> None:
    """Add `roomscribe container run` and `check` to the command line."""
    container = names.add_parser("container", help="run in a container")
    words = container.add_subparsers(metavar="WHAT", required=True)
    run = words.add_parser(
        "run",
        parents=[common],
        help="run the daemon and the page (run by the container)",
        description="Runs the daemon, and the page while someone looks, until SIGTERM. A daemon "
        "that ends or hangs is started again. SIGHUP reads the configuration again. The image's "
        "entry point runs this command.",
    )
    run.add_argument(
        "--home-assistant",
        type=Path,
        metavar="FOLDER",
        help="folder with the options.json of a Home Assistant app, from which the configuration "
        "is made",
    )
    run.set_defaults(command=run_container)
    check = words.add_parser(
        "check",
        parents=[common],
        help="check whether the daemon answers",
        description="Asks the daemon over its control socket and prints its state and problems. "
        "The exit status is 0 if it answers, with or without problems: those heal, or need you. "
        "For the health check of a container.",
    )
    check.set_defaults(command=check_container)


def check_container(_options: argparse.Namespace, settings: Settings) -> int:
    """Run `roomscribe container check`. Raises DaemonError without an answer."""
    from appliance.control import SOCKET_NAME, ControlClient
    from appliance.store import runtime_folders

    paths = [folder / SOCKET_NAME for folder in runtime_folders(settings)]
    with ControlClient(paths, ANSWER_S) as daemon:
        state = daemon.call("state")
    print("; ".join([state["status"], *state["reasons"]]))
    return 0


def run_container(options: argparse.Namespace, settings: Settings) -> int:
    """Run `roomscribe container run`. Raises ConfigError, DeviceError, StoreError."""
    state = store_folder(settings.store)
    program = [*sys.orig_argv[: len(sys.orig_argv) - len(sys.argv) + 1]]
    arguments = ["--config", str(options.config)] if options.config else []
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core dump may contain speech
    private = Path(tempfile.mkdtemp(prefix="roomscribe-", dir="/dev/shm"))
    try:
        _make_folder(state)
        if options.home_assistant:
            from appliance.cli.app_options import write_app_config

            file = write_app_config(options.home_assistant, private, state)
            arguments = ["--config", str(file)]
            if os.geteuid() == 0:
                _leave_root(state, private)
            settings = config.load(file)
        for name in FOLDERS:
            _make_folder(state / name)
        return Appliance(program, arguments, settings.web, private).run()
    finally:
        shutil.rmtree(private, ignore_errors=True)


def _make_folder(folder: Path) -> None:
    try:
        Path(os.path.realpath(folder)).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"{folder}: cannot be made: {error.strerror}. Mount a volume at {folder.parent} that "
            f"user {os.geteuid()} may write."
        ) from error


def _leave_root(*folders: Path) -> None:
    """Give the folders to USER and become that user, in the groups of the devices.

    Raises ConfigError if there is no such user.
    """
    try:
        user = pwd.getpwnam(USER)
    except KeyError:
        raise ConfigError(f"expected a user {USER} in the image, found none") from None
    for folder in map(Path, map(os.path.realpath, folders)):
        if folder.stat().st_uid == user.pw_uid:
            continue  # what that user put there must not lead root elsewhere
        for path in (folder, *folder.rglob("*")):
            os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)
    devices = [path for pattern in DEVICES for path in Path("/dev").glob(pattern)]
    groups = {path.stat().st_gid for path in devices} - {0}
    os.setgroups([*groups.union(os.getgrouplist(USER, user.pw_gid))])
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)
    os.environ |= {"HOME": user.pw_dir, "USER": USER}


class Appliance:
    """The daemon, and the processes that the page needs, until a signal. One thread."""

    def __init__(
        self, program: Sequence[str], arguments: Sequence[str], web: WebSettings, private: Path
    ) -> None:
        """`private` is a folder in memory of this user alone. Raises DeviceError."""
        self._program, self._arguments = [*program], [*arguments]
        self._daemon: subprocess.Popen[bytes] | None = None
        self._page: subprocess.Popen[bytes] | None = None
        self._builders: list[subprocess.Popen[bytes]] = []
        """Processes that add a model."""
        self._start_s = time.monotonic()
        """When the daemon starts or has started, on time.monotonic()'s clock; so for the next."""
        self._heartbeat_by_s = 0.0
        self._delay_s = SHORTEST_DELAY_S
        self._signals: list[int] = []
        self._heartbeats = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._heartbeats.bind("")  # the kernel chooses an abstract name: no file is needed
        self._for_page = _listen(web) if web.enabled else None
        self._for_models: socket.socket | None = None
        name = self._heartbeats.getsockname().decode()[1:]
        self._environment = os.environ | {
            "NOTIFY_SOCKET": f"@{name}",
            "WATCHDOG_USEC": str(int(HEARTBEAT_S * 1e6)),
        }
        if web.enabled:
            path = private / "models"
            self._for_models = socket.socket(socket.AF_UNIX)
            self._for_models.bind(str(path))
            self._for_models.listen()
            self._environment["ROOMSCRIBE_MODELS_SOCKET"] = str(path)

    def run(self) -> int:
        """Run until SIGTERM, or the daemon's end with a status of FINAL; return that status."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda number, _frame: self._signals.append(number))
        while True:
            self._reap()
            if (status := self._tend_daemon()) is not None:
                return self._end(status)
            for received in self._take_signals():
                if received != signal.SIGHUP:
                    return self._end(None)
                if self._daemon:
                    self._daemon.send_signal(received)
            self._serve_requests()

    def _take_signals(self) -> list[int]:
        taken, self._signals = self._signals, []
        return taken

    def _reap(self) -> None:
        """Note which processes have ended; those of processes that ended first come here, too."""
        children = [one for one in (self._daemon, self._page, *self._builders) if one]
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                for child in children:
                    if child.pid == ended[0]:
                        child.returncode = os.waitstatus_to_exitcode(ended[1])
        self._builders = [one for one in self._builders if one.returncode is None]

    def _tend_daemon(self) -> int | None:
        """Start the daemon if it is time, kill it if it hangs; return its status if it is final."""
        now_s = time.monotonic()
        if self._daemon is None:
            if now_s >= self._start_s:
                command = [*self._program, "run", *self._arguments]
                self._daemon = subprocess.Popen(command, env=self._environment)
                self._start_s, self._heartbeat_by_s = now_s, now_s + START_S
            return None
        status = self._daemon.returncode
        if status is None:
            if now_s > self._heartbeat_by_s:
                log.error("the daemon hangs: no heartbeat for too long; killing it")
                self._daemon.kill()
                self._heartbeat_by_s = now_s + HEARTBEAT_S
            return None
        if status in FINAL:
            return status
        if now_s - self._start_s > STEADY_S:
            self._delay_s = SHORTEST_DELAY_S
        log.error("the daemon ended with status %d; next start in %.0f s", status, self._delay_s)
        self._daemon, self._start_s = None, now_s + self._delay_s
        self._delay_s = min(2 * self._delay_s, LONGEST_DELAY_S)
        return None

    def _serve_requests(self) -> None:
        """Wait for heartbeats, for browsers and for models to add, POLL_S at most."""
        page, models = self._for_page, self._for_models
        if self._page and self._page.returncode is not None:
            self._forget_page()
        wanted = [self._heartbeats]
        wanted += [page] if page and not self._page else []
        wanted += [models] if models and len(self._builders) < MOST_BUILDERS else []
        ready, _, _ = select.select(wanted, [], [], POLL_S)
        if self._heartbeats in ready:
            self._heartbeats.recv(1 << 16)
            self._heartbeat_by_s = time.monotonic() + HEARTBEAT_S
        if page and page in ready:
            command = ["sh", "-c", AS_SYSTEMD, "sh", *self._program, "web", "serve"]
            self._page = subprocess.Popen([*command, *self._arguments], stdin=page.fileno())
        if models and models in ready:
            connection, _ = models.accept()
            with connection:
                command = [*self._program, "model", "serve", *self._arguments]
                self._builders.append(subprocess.Popen(command, stdin=connection.fileno()))

    def _forget_page(self) -> None:
        """Close the connections that a failed page has left, which would start it again at once."""
        failed = self._page is not None and self._page.returncode != 0
        self._page = None
        with suppress(OSError):
            while failed and self._for_page and select.select([self._for_page], [], [], 0)[0]:
                self._for_page.accept()[0].close()

    def _end(self, status: int | None) -> int:
        """End all processes; return `status`, if None the daemon's own."""
        children = [one for one in (self._daemon, self._page, *self._builders) if one]
        for child in children:
            if child.returncode is None:
                child.terminate()
        deadline_s = time.monotonic() + STOP_S
        while any(one.returncode is None for one in children) and time.monotonic() < deadline_s:
            time.sleep(0.02)
            self._reap()
            children = [one for one in (self._daemon, self._page) if one]
        for child in children:
            if child.returncode is None:
                log.error("process %d did not end within %.0f s; killing it", child.pid, STOP_S)
                child.kill()
        if status is None:
            status = self._daemon.returncode if self._daemon else 0
        return status if status is not None and status >= 0 else DeviceError.exit_status


def _listen(web: WebSettings) -> socket.socket:
    """Return a socket at the page's address. Raises DeviceError."""
    try:
        if not web.listen.startswith("/"):
            family = socket.AF_INET6 if ":" in web.listen else socket.AF_INET
            return socket.create_server((web.listen, web.port), family=family)
        Path(web.listen).unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(web.listen)
        listener.listen()
    except OSError as error:
        raise DeviceError(
            f"web.listen: cannot listen on {web.listen}, port {web.port}: {error.strerror}. Choose "
            "another port."
        ) from error
    return listener
