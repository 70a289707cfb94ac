"""`roomscribe container`: run the appliance in a container, in systemd's place.

The daemon and the page are child processes. One that ends is started again: a new daemon finds in
memory what was not transcribed, which a restart of the container would delete.
"""

from __future__ import annotations

import argparse
import logging
import os
import pwd
import resource
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
DEVICES = ("snd/*", "hailo*", "h1x-*")
"""Devices below /dev whose groups that user joins."""
FOLDERS = ("models", "page")
"""Folders beside the log, to which the image links /var/lib/roomscribe-models and -web."""
STOP_S = 15.0
DELAY_S = 5.0
"""Before a process that failed is started again."""
FINAL = (0, ConfigError.exit_status)
"""Exit statuses of the daemon after which it is not started again."""
POLL_S = 0.5
ANSWER_S = 5.0
FOR_EVER_S = "1e8"
"""The page does not end by itself here."""


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
        description="Runs the daemon and the page until SIGTERM. A daemon that failed is started "
        "again. SIGHUP reads the configuration again. The image's "
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
    """The daemon, the page, and processes that add models, until a signal. One thread."""

    def __init__(
        self, program: Sequence[str], arguments: Sequence[str], web: WebSettings, private: Path
    ) -> None:
        """`private` is a folder in memory of this user alone."""
        self._environment = dict(os.environ)
        self._commands = [[*program, "run", *arguments]]
        self._builder = [*program, "model", "serve", *arguments]
        self._for_models: socket.socket | None = None
        if web.enabled:
            self._commands.append([*program, "web", "serve", "--idle", FOR_EVER_S, *arguments])
            path = private / "models"
            self._for_models = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._for_models.bind(str(path))
            self._for_models.listen()
            self._for_models.setblocking(False)
            self._environment["ROOMSCRIBE_MODELS_SOCKET"] = str(path)

    def run(self) -> int:
        """Run until SIGTERM, or the daemon's end with a status of FINAL; return that status."""
        received = list[int]()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda number, _: received.append(number))
        children = [self._start(command) for command in self._commands]
        while children[0].poll() not in FINAL:
            for index, command in enumerate(self._commands):
                if status := children[index].poll():
                    what = " ".join(command[-2:])
                    log.error("%s ended with status %d; starts again", what, status)
                    time.sleep(DELAY_S)
                    children[index] = self._start(command)
            self._add_model()
            time.sleep(POLL_S)
            if received and received[-1] != signal.SIGHUP:
                break
            if received:
                children[0].send_signal(received.pop())
        return self._end(children)

    def _start(self, command: Sequence[str], stdin: int | None = None) -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, stdin=stdin, env=self._environment)

    def _add_model(self) -> None:
        """Start the process for a client that wants a model to be added, if there is one."""
        if self._for_models:
            with suppress(BlockingIOError):
                connection, _ = self._for_models.accept()
                with connection:
                    self._start(self._builder, connection.fileno())

    def _end(self, children: Sequence[subprocess.Popen[bytes]]) -> int:
        """End the children, with force after STOP_S; return the daemon's exit status."""
        for child in children:
            child.terminate()
        deadline_s = time.monotonic() + STOP_S
        for child in children:
            try:
                child.wait(max(0.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        status = children[0].returncode
        return status if status >= 0 else DeviceError.exit_status
