"""`roomscribe web`: switch the local page on and off, log in, serve it."""

import argparse
import getpass
import socket
import sys
from pathlib import Path

from appliance import config
from appliance.cli.commands import Commands, control_sockets
from appliance.cli.config_file import must_write, read_text, set_keys, systemctl, write_config
from appliance.config import Settings, page_url, url_host
from appliance.errors import ConfigError
from appliance.system import write_whole

UNIT, SERVICE = "roomscribe-web.socket", "roomscribe-web.service"
MODELS_UNIT, MODELS_SERVICES = "roomscribe-models.socket", "roomscribe-models@*.service"
"""Units that install models for the page."""
DROP_IN = Path("/etc/systemd/system/roomscribe-web.socket.d/listen.conf")


def add_web(commands: Commands) -> None:
    """`roomscribe web enable`, `disable`, `open`, `password`, `token` and `serve`"""
    web = commands.group("web", help="the local page: switch it on, log in, serve it")
    web.add(
        "enable",
        enable_page,
        help="switch the page on",
        description="Sets web.enabled and makes systemd listen as the [web] section of the "
        "configuration says. systemd starts the page when a browser opens it, and the page ends "
        "when it is idle. Run this again after you change the section. Needs root.",
    )
    web.add(
        "disable",
        disable_page,
        help="switch the page off",
        description="Unsets web.enabled and stops the page. Needs root.",
    )
    web.add(
        "open",
        print_link,
        help="print a link that logs in once",
        description="Prints a link to the page that logs in once, within ten minutes.",
    )
    password = web.add(
        "password",
        set_password,
        help="set or remove the page's password",
        description="Asks for the page's password on the terminal, or reads a line of standard "
        "input, and ends all sessions. Only a hash of the password is saved.",
    )
    password.add_argument(
        "--remove", action="store_true", help="remove the password, so that only links log in"
    )
    _add_programs(web)


def _add_programs(web: Commands) -> None:
    """Add `token`, for programs, and `serve`, which systemd runs."""
    web.add(
        "token",
        print_token,
        help="print a new token for programs",
        description="Prints a new token for programs that use POST /v1/audio/transcriptions "
        "(web.api), and makes the one before invalid. Only a hash of it is saved.",
    )
    serve = web.add(
        "serve",
        serve_page,
        help="serve the page",
        description="Serves the page until it is idle. The systemd unit runs this command.",
    )
    serve.add_argument(
        "--idle",
        type=_seconds,
        default=600.0,
        metavar="SECONDS",
        help="end after this time without a request (default: %(default)s)",
    )


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < 1e9:
        raise ValueError
    return seconds


def serve_page(options: argparse.Namespace, settings: Settings) -> int:
    """Run `roomscribe web serve`. Raises ConfigError, DeviceError, StoreError."""
    from appliance.web import serve

    serve(settings, control_sockets(settings), options.idle)
    return 0


def print_link(_options: argparse.Namespace, settings: Settings) -> int:
    """Run `roomscribe web open`. Raises ConfigError, StoreError."""
    from appliance.web import Access

    web = settings.web
    if not web.enabled:
        raise ConfigError("the page is off: run `sudo roomscribe web enable`")
    if web.listen.startswith("/") and not web.url:
        raise ConfigError(
            f"web.url: expected the page's address at the proxy, because web.listen is {web.listen}"
        )
    token = Access(web).new_link()
    print(f"{page_url(web) or f'http://localhost:{web.port}/'}#link={token}")
    tunnel = f"ssh -L {web.port}:localhost:{web.port} {socket.gethostname()}"
    hint = "" if page_url(web) else f" From another machine, run `{tunnel}` first."
    print(f"The link works once, within ten minutes.{hint}", file=sys.stderr)
    return 0


def print_token(_options: argparse.Namespace, settings: Settings) -> int:
    """Run `roomscribe web token`. Raises StoreError."""
    from appliance.web import Access

    print(Access(settings.web).new_api_token())
    if not settings.web.api:
        print("roomscribe: Programs can use it once you set web.api = true.", file=sys.stderr)
    return 0


def set_password(options: argparse.Namespace, settings: Settings) -> int:
    """Run `roomscribe web password`. Raises ConfigError, StoreError."""
    from appliance.web import Access

    access = Access(settings.web)
    access.prepare()
    password = "" if options.remove else _read_password()
    access.set_password(password)
    print(f"The password is {'set' if password else 'removed'}. All sessions have ended.")
    return 0


def _read_password() -> str:
    """Return the password, typed twice, or piped. Raises ConfigError."""
    if not sys.stdin.isatty():
        password = sys.stdin.readline().rstrip("\n")
    else:
        password = getpass.getpass("Password of the page: ")
        if getpass.getpass("Once more: ") != password:
            raise ConfigError("the two passwords differ: try again")
    if not password:
        raise ConfigError("the password is empty: --remove removes the password")
    return password


def enable_page(options: argparse.Namespace, settings: Settings) -> int:
    """Run `roomscribe web enable`. Raises ConfigError, StoreError."""
    from appliance.web import Access, is_local, password_missing

    access, web = Access(settings.web), settings.web
    if not is_local(web.listen) and not access.has_password and not web.ingress:
        raise ConfigError(password_missing(web.listen))
    access.prepare()
    stream = web.listen if web.listen.startswith("/") else f"{url_host(web.listen)}:{web.port}"
    # an empty value removes the address of the package's unit
    text = (
        f"# Written by `roomscribe web enable`.\n[Socket]\nListenStream=\nListenStream={stream}\n"
    )
    with must_write(DROP_IN, "run this with sudo, on a machine with the package"):
        DROP_IN.parent.mkdir(exist_ok=True)
        write_whole(DROP_IN, text, 0o644)
    _set_enabled(options, settings, True)
    systemctl("daemon-reload")
    systemctl("stop", UNIT, SERVICE)
    systemctl("enable", "--now", UNIT, MODELS_UNIT)
    print(f"The page listens on {stream}. To log in, run `sudo roomscribe web open`.")
    return 0


def disable_page(options: argparse.Namespace, settings: Settings) -> int:
    """Run `roomscribe web disable`. Raises StoreError."""
    systemctl("disable", "--now", UNIT, MODELS_UNIT)
    systemctl("stop", SERVICE, MODELS_SERVICES)
    _set_enabled(options, settings, False)
    print("The page is off.")
    return 0


def _set_enabled(options: argparse.Namespace, settings: Settings, on: bool) -> None:
    """Write web.enabled into the configuration and reload the daemon. Raises StoreError."""
    if settings.web.enabled == on:
        return
    file = options.config or config.default_path()
    with must_write(file):
        write_config(file, set_keys(read_text(file), {"web.enabled": on}))
    # the daemon sends Home Assistant a link to the page
    systemctl("try-reload-or-restart", "roomscribe.service")
