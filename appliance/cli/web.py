"""`roomscribe web`: the local page, and who may see it."""

from __future__ import annotations

import argparse
import getpass
import socket
import sys
from pathlib import Path

from appliance.cli.config_file import read_text, set_keys, systemctl, write_config
from appliance.config import DEFAULT_PATH, Settings, page_url
from appliance.errors import ConfigError, StoreError
from appliance.system import write_whole

UNIT, SERVICE = "roomscribe-web.socket", "roomscribe-web.service"
MODELS_UNIT, MODELS_SERVICES = "roomscribe-models.socket", "roomscribe-models@*.service"
"""What adds models for the page."""
DROP_IN = Path("/etc/systemd/system/roomscribe-web.socket.d/listen.conf")


def add_web(
    names: argparse._SubParsersAction[argparse.ArgumentParser], common: argparse.ArgumentParser
) -> None:
    """`roomscribe web enable`, `disable`, `open`, `password` and `serve`"""
    web = names.add_parser("web", help="the local page: switch it on, log in, serve it")
    words = web.add_subparsers(metavar="WHAT", required=True)
    enable = words.add_parser(
        "enable",
        parents=[common],
        help="have systemd start the page when somebody looks",
        description="Sets web.enabled, has systemd listen as the [web] section of the "
        "configuration says and start the page when somebody looks; it ends when nobody does. Run "
        "it again when the section has changed. Needs root.",
    )
    enable.set_defaults(command=enable_page)
    disable = words.add_parser(
        "disable",
        parents=[common],
        help="end the page",
        description="Takes web.enabled back and ends the page. Needs root.",
    )
    disable.set_defaults(command=disable_page)
    link = words.add_parser(
        "open",
        parents=[common],
        help="print a link that logs in once",
        description="Prints a link to the page that logs in once, within ten minutes.",
    )
    link.set_defaults(command=print_link)
    password = words.add_parser(
        "password",
        parents=[common],
        help="set or remove the page's password",
        description="Sets the password of the page, asked for on the terminal, else one line of "
        "standard input, and ends all sessions. Only its hash is kept.",
    )
    password.add_argument("--remove", action="store_true", help="no password: links alone log in")
    password.set_defaults(command=set_password)
    serve = words.add_parser(
        "serve",
        parents=[common],
        help="serve the page",
        description="Serves the page until nobody looks any more. This is what the systemd unit "
        "runs.",
    )
    serve.add_argument(
        "--idle",
        type=_seconds,
        default=600.0,
        metavar="SECONDS",
        help="end when nobody has looked for so long (default: %(default)s)",
    )
    serve.set_defaults(command=serve_page)


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < 1e9:
        raise ValueError
    return seconds


def serve_page(options: argparse.Namespace, settings: Settings) -> int:
    """`roomscribe web serve`. Raises ConfigError, DeviceError, StoreError."""
    from appliance.control import SOCKET_NAME
    from appliance.store import runtime_folders
    from appliance.web import serve

    places = [folder / SOCKET_NAME for folder in runtime_folders(settings)]
    serve(settings, places, options.idle)
    return 0


def print_link(_options: argparse.Namespace, settings: Settings) -> int:
    """`roomscribe web open`. Raises ConfigError, StoreError."""
    from appliance.web import Access

    _be_on(settings)
    web = settings.web
    if web.listen.startswith("/") and not web.url:
        raise ConfigError(
            f"web.url: expected the page's address at the proxy, as web.listen is {web.listen}; "
            "found none"
        )
    word = Access(web).new_link()
    print(f"{page_url(web) or f'http://localhost:{web.port}/'}#link={word}")
    here = f"ssh -L {web.port}:localhost:{web.port} {socket.gethostname()}"
    from_afar = "" if page_url(web) else f"; from another machine: {here}"
    print(f"roomscribe: good for ten minutes, once{from_afar}", file=sys.stderr)
    return 0


def set_password(options: argparse.Namespace, settings: Settings) -> int:
    """`roomscribe web password`. Raises ConfigError, StoreError."""
    from appliance.web import Access

    access = Access(settings.web)
    access.prepare()
    password = "" if options.remove else _asked()
    access.set_password(password)
    print("the password is " + ("set" if password else "removed") + "; all sessions are over")
    return 0


def _asked() -> str:
    """The password, typed twice, or piped. Raises ConfigError."""
    if not sys.stdin.isatty():
        password = sys.stdin.readline().rstrip("\n")
    else:
        password = getpass.getpass("Password of the page: ")
        if getpass.getpass("Once more: ") != password:
            raise ConfigError("the page's password: expected the same twice, found two; try again")
    if not password:
        raise ConfigError(
            "the page's password: expected one, found nothing; --remove takes it away"
        )
    return password


def enable_page(options: argparse.Namespace, settings: Settings) -> int:
    """`roomscribe web enable`. Raises ConfigError, StoreError."""
    from appliance.web import Access, is_local

    access, web = Access(settings.web), settings.web
    if not is_local(web.listen) and not access.has_password and not web.ingress:
        raise ConfigError(
            f"web.listen: expected a password for a page that others reach, found none for "
            f"{web.listen}; set one with `sudo roomscribe web password`"
        )
    access.prepare()
    stream = web.listen if web.listen.startswith("/") else f"{_bracketed(web.listen)}:{web.port}"
    # an empty line takes back what the package's unit says
    text = (
        f"# Written by `roomscribe web enable`.\n[Socket]\nListenStream=\nListenStream={stream}\n"
    )
    try:
        DROP_IN.parent.mkdir(exist_ok=True)
        write_whole(DROP_IN, text, 0o644)
    except OSError as error:
        raise StoreError(
            f"{DROP_IN}: cannot be written: {error.strerror}; run this with sudo, where the "
            "package is installed"
        ) from error
    _choose(options, settings, True)
    systemctl("daemon-reload")
    systemctl("stop", UNIT, SERVICE)
    systemctl("enable", "--now", UNIT, MODELS_UNIT)
    print(f"the page listens on {stream}; `sudo roomscribe web open` prints a link to it")
    return 0


def disable_page(options: argparse.Namespace, settings: Settings) -> int:
    """`roomscribe web disable`. Raises StoreError."""
    systemctl("disable", "--now", UNIT, MODELS_UNIT)
    systemctl("stop", SERVICE, MODELS_SERVICES)
    _choose(options, settings, False)
    print("the page is off")
    return 0


def _choose(options: argparse.Namespace, settings: Settings, on: bool) -> None:
    """Writes web.enabled into the configuration, and tells the daemon. Raises StoreError."""
    if settings.web.enabled == on:
        return
    file = options.config or DEFAULT_PATH
    try:
        write_config(file, set_keys(read_text(file), {"web.enabled": on}))
    except OSError as error:
        raise StoreError(f"{file}: cannot be written: {error.strerror}; use sudo") from error
    # Home Assistant's link to the page comes and goes with it
    systemctl("try-reload-or-restart", "roomscribe.service")


def _be_on(settings: Settings) -> None:
    """Raises ConfigError where the configuration does not allow the page."""
    if not settings.web.enabled:
        raise ConfigError(
            "web.enabled: expected true, found false; `sudo roomscribe web enable` sets it"
        )


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address
