"""`roomscribe container`: run the appliance in a container, in systemd's place.

The command prepares folders and configuration and becomes tini, the container's first process, with
a shell that runs the daemon and the page. One that fails is started again: a new daemon finds in
memory what was not transcribed, which a restart of the container would delete.
"""

import argparse
import os
import pwd
import resource
import shlex
import shutil
import sys
import tempfile
from pathlib import Path

from appliance import config
from appliance.cli.commands import Commands, control_sockets
from appliance.cli.config_file import must_write
from appliance.config import Settings, store_folder
from appliance.errors import ConfigError, StoreError

USER = "roomscribe"
"""Whom a Home Assistant app, which starts as root, runs as."""
DEVICES = ("snd/*", "hailo*", "h1x-*")
"""Devices below /dev whose groups that user joins."""
FOLDERS = ("models", "page")
"""Folders beside the log, to which the image links /var/lib/roomscribe-models and -web."""
ANSWER_S = 5.0
PAGE = "(trap '' HUP; until {page}; do sleep 5; done) &"
"""A page without a password fails until it has one. SIGHUP is for the daemon alone."""
DAEMON = """
trap ends=1 TERM INT; trap : HUP; ends=
while {daemon}; status=$?; test -z "$ends" -a $status -ne 0 -a $status -ne {final}; do
    echo "roomscribe: the daemon ended with status $status; it is started again" >&2
    sleep 5
done
exit $status
"""
"""tini passes each signal to all processes (-g). When the shell ends, so does the container."""


def add_container(commands: Commands) -> None:
    """Add `roomscribe container run` and `check` to the command line."""
    container = commands.group("container", help="run in a container")
    run = container.add(
        "run",
        run_container,
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
    container.add(
        "check",
        check_container,
        help="check whether the daemon answers",
        description="Asks the daemon over its control socket and prints its state and problems. "
        "The exit status is 0 if it answers, with or without problems: those heal, or need you. "
        "For the health check of a container.",
    )


def check_container(_options: argparse.Namespace, settings: Settings) -> int:
    """Run `roomscribe container check`. Raises DaemonError without an answer."""
    from appliance.control import ControlClient

    with ControlClient(control_sockets(settings), ANSWER_S) as daemon:
        state = daemon.call("state")
    print("; ".join([state["status"], *state["reasons"]]))
    return 0


def run_container(options: argparse.Namespace, settings: Settings) -> int:
    """Run `roomscribe container run`. Raises ConfigError, DeviceError, StoreError."""
    state = store_folder(settings.store)
    program = [*sys.orig_argv[: len(sys.orig_argv) - len(sys.argv) + 1]]
    arguments = ["--config", str(options.config)] if options.config else []
    if not (tini := shutil.which("tini")):
        raise StoreError("tini is not installed. Run `apt-get install tini` in the image")
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core dump may contain speech
    _make_folder(state)
    if options.home_assistant:
        from appliance.cli.app_options import write_app_config

        private = Path(tempfile.mkdtemp(prefix="roomscribe-", dir="/dev/shm"))
        file = write_app_config(options.home_assistant, private, state)
        arguments = ["--config", str(file)]
        if os.geteuid() == 0:
            _leave_root(state, private)
        settings = config.load(file)
    for name in FOLDERS:
        _make_folder(state / name)
    commands = (["run"], ["web", "serve", "--idle", "1e8"], ["model", "serve"])
    daemon, page, builder = (shlex.join([*program, *each, *arguments]) for each in commands)
    script = DAEMON.format(daemon=daemon, final=ConfigError.exit_status)
    if settings.web.enabled:
        os.environ["ROOMSCRIBE_MODELS_COMMAND"] = builder
        script = PAGE.format(page=page) + script
    os.execv(tini, ["tini", "-s", "-g", "--", "sh", "-c", script])


def _make_folder(folder: Path) -> None:
    with must_write(folder, f"mount a volume there that user {os.geteuid()} may write"):
        Path(os.path.realpath(folder)).mkdir(parents=True, exist_ok=True)


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
