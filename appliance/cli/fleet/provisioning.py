"""The server of a fleet: nats-server's configuration, its certificate, the codes for nodes.

All decisions are in one file, `server.json`, which is written whole. Every run makes nats-server's
own files from it again, so an interrupted run leaves nothing incomplete. Passwords are random and
not hashed in the files for nats-server, which only root and its user can read: with bcrypt each
connection would cost a small board a tenth of a second, and nobody can guess them.

Formats: docs.nats.io, "Configuring NATS Server"; tried with nats-server 2.9.10.
"""

import base64
import json
import re
import secrets
import shutil
import ssl
import subprocess
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from appliance.cli.config_file import must_write
from appliance.config import is_address, is_loopback, url_host
from appliance.errors import ConfigError, StoreError
from appliance.fleet import messages
from appliance.system import read_or_empty, replacing, shorten, write_whole

TEMPLATE = Path(__file__).with_name("nats.conf")
STATE, CONFIG, NODES = "server.json", "nats.conf", "nodes.conf"
CERTIFICATE, KEY = "server.crt", "server.key"
PORT = 4222
ROLES = ("satellite", "worker")
NODE = re.compile(r"[a-z0-9_]{1,64}")
HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
DAYS = 7300
"""How long the certificate is valid: longer than the machine lasts."""
OPENSSL_S = 60.0
MEMORY_MB = 64
"""Memory for waiting windows: 4 for each satellite, up to 512 kB each."""
MARK = "roomscribe-1."
"""The beginning of a code; the number changes when older programs cannot read it."""
MOST_CODE = 50_000
PATHS = "/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin"
"""Folders in which Debian has nats-server; not on every user's path."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node that may connect, with its role."""

    role: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Code:
    """What lets one machine join: where, as whom, and which certificate proves the server."""

    servers: tuple[str, ...]
    node: str
    role: str
    password: str = field(repr=False)
    certificate: str = ""
    """The server's own (PEM): no other one is trusted."""

    def text(self) -> str:
        """Return the code as one word without spaces. A damaged copy is recognised."""
        fields = (
            self.servers, self.node, self.role, self.password,
            base64.b64encode(ssl.PEM_cert_to_DER_cert(self.certificate)).decode(),
        )  # fmt: skip
        packed = zlib.compress(json.dumps(fields, separators=(",", ":")).encode(), 9)
        return MARK + base64.urlsafe_b64encode(packed).decode().rstrip("=")

    @classmethod
    def read(cls, text: str) -> "Code":
        """Return the code in `text`, which may have line breaks. Raises ConfigError."""
        copied = "".join(text.split())
        if not copied.startswith(MARK):
            raise _not_a_code(shorten(copied, 20) or "nothing")
        data = copied.removeprefix(MARK)
        try:
            packed = base64.b64decode(data + "=" * (-len(data) % 4), altchars=b"-_", validate=True)
            unpack = zlib.decompressobj()
            servers, node, role, word, der = json.loads(unpack.decompress(packed, MOST_CODE))
            certificate = ssl.DER_cert_to_PEM_cert(base64.b64decode(der, validate=True))
            if not (unpack.eof and servers and NODE.fullmatch(node) and role in ROLES):
                raise ValueError
            return cls(tuple(map(str, servers)), node, role, str(word), certificate)
        except (ValueError, TypeError, zlib.error, RecursionError):
            raise _not_a_code("an incomplete or changed code") from None


@dataclass(frozen=True, slots=True)
class FleetServer:
    """A server: everything that its files are made from."""

    names: tuple[str, ...]
    """Host names and addresses under which nodes reach it, the best first."""
    port: int = PORT
    certificate: str = ""
    """Signed by itself (PEM), for `names`; codes contain it."""
    key: str = field(default="", repr=False)
    nodes: Mapping[str, Node] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path) -> "FleetServer | None":
        """Return the server that was set up in this folder, or None. Raises ConfigError."""
        file = folder / STATE
        try:
            found = json.loads(file.read_bytes())
            nodes = {name: Node(**node) for name, node in found["nodes"].items()}
            return cls(**{**found, "names": tuple(found["names"]), "nodes": nodes})
        except FileNotFoundError:
            return None
        except PermissionError as error:
            raise ConfigError(f"{file}: this user may not read it; run this with sudo") from error
        except OSError as error:
            raise ConfigError(f"{file}: cannot be read: {error.strerror}; see its disk") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{file}: expected what `roomscribe fleet invite` wrote, found {shorten(error)}; "
                "move it away and set the server up again, with new codes"
            ) from error

    @property
    def addresses(self) -> tuple[str, ...]:
        """This server under all its names."""
        return tuple(f"tls://{url_host(host)}:{self.port}" for host in self.names)

    def invite(self, node: str, role: str) -> "FleetServer":
        """Return the server with that node; a known node keeps its password. Raises ConfigError."""
        if not NODE.fullmatch(node):
            raise ConfigError(
                f"{shorten(node)}: expected a node's name, at most 64 of a-z, 0-9 and _, as "
                "appliance.node has it"
            )
        before = self.nodes.get(node)
        password = before.password if before else secrets.token_urlsafe(18)
        return replace(self, nodes={**self.nodes, node: Node(role, password)})

    def remove(self, node: str) -> "FleetServer":
        """Return the server without that node. Raises ConfigError if it is unknown."""
        if node not in self.nodes:
            there = ", ".join(sorted(self.nodes)) or "none"
            raise ConfigError(
                f"{shorten(node)}: this node was not invited here; known nodes: {there}"
            )
        return replace(self, nodes={name: self.nodes[name] for name in self.nodes if name != node})

    def code(self, node: str) -> "Code":
        """Return the code for that node."""
        invited = self.nodes[node]
        return Code(self.addresses, node, invited.role, invited.password, self.certificate)

    def with_certificate(self) -> "FleetServer":
        """Return the server with a certificate. Raises StoreError if openssl cannot make one."""
        if self.certificate:
            return self
        certificate, key = _make_certificate(self.names)
        return replace(self, certificate=certificate, key=key)

    def write(self, folder: Path, store_dir: Path) -> bool:
        """Write nats-server's files; it makes its own folders in `store_dir`.

        Return True if it has to be restarted, False if it only has to read its nodes again. Raises
        StoreError.
        """
        files = {
            CERTIFICATE: self.certificate,
            KEY: self.key,
            NODES: _format_nodes(self.nodes),
            CONFIG: self._format_config(folder, store_dir),
        }
        anew = False
        with must_write(folder):
            make_folder(folder)
            write_whole(folder / STATE, json.dumps(asdict(self), indent=1), 0o600)
            for name, text in files.items():
                if read_or_empty(folder / name) == text:
                    continue
                anew = anew or name != NODES
                with replacing(folder / name, 0o600) as draft:
                    draft.write_text(text, encoding="utf-8")
                    with suppress(LookupError, PermissionError):
                        shutil.chown(draft, group="nats")
                        draft.chmod(0o640)
        return anew

    def _format_config(self, folder: Path, store_dir: Path) -> str:
        """Return `nats.conf`. It traces nothing: a trace would contain texts."""
        listen = self.names[0] if all(map(is_loopback, self.names)) else "0.0.0.0"
        return TEMPLATE.read_text("utf-8").format(
            listen=listen,
            port=self.port,
            certificate=json.dumps(str(folder / CERTIFICATE)),
            key=json.dumps(str(folder / KEY)),
            store=json.dumps(str(store_dir)),
            memory=MEMORY_MB << 20,
            account=messages.STREAM,
            nodes=NODES,
        )


def make_folder(folder: Path) -> None:
    """Make a folder that nats-server's user may enter, whatever the umask. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)


def rights(node: str, role: str) -> tuple[list[str], list[str]]:
    """Return the subjects that a node may publish to, and those that it may read."""
    inbox = messages.INBOXES.format(node)
    if role == "satellite":
        publish = [messages.WORKERS, messages.WINDOW.format(node)]
        return publish, [f"{inbox}.>", messages.ANSWER.format(node)]
    publish = [
        messages.WORKERS,
        messages.ANSWER.format("*"),
        messages.INBOXES.format("*.>"),
        f"$JS.API.STREAM.INFO.{messages.STREAM}",
        f"$JS.API.CONSUMER.INFO.{messages.STREAM}.*",
        "$JS.API.INFO",
        "$JS.API.STREAM.NAMES",
        *(f"$JS.API.STREAM.{what}.{messages.STREAM}" for what in ("CREATE", "UPDATE", "DELETE")),
        *(
            f"$JS.API.CONSUMER.{what}.{messages.STREAM}.>"
            for what in ("CREATE", "DELETE", "MSG.NEXT")
        ),
        f"$JS.API.CONSUMER.DURABLE.CREATE.{messages.STREAM}.*",
        f"$JS.API.CONSUMER.CREATE.{messages.STREAM}",
        f"$JS.API.CONSUMER.NAMES.{messages.STREAM}",
        f"$JS.API.CONSUMER.LIST.{messages.STREAM}",
        f"$JS.ACK.{messages.STREAM}.>",
    ]
    return publish, [f"{inbox}.>", messages.WORKERS]


def find_nats_server() -> str:
    """Return the path of nats-server. Raises StoreError if it is not installed."""
    found = shutil.which("nats-server") or shutil.which("nats-server", path=PATHS)
    if not found:
        raise StoreError("nats-server is not installed. Run `sudo apt install nats-server`")
    return found


def is_host(text: str) -> bool:
    """Return True for a host name or address that certificates and NATS addresses may contain."""
    return is_address(text) or (bool(HOST.fullmatch(text)) and ".." not in text)


def _make_certificate(names: Sequence[str]) -> tuple[str, str]:
    """Return a certificate for these names, signed by itself, and its key. Raises StoreError."""
    hosts = dict.fromkeys((*names, "localhost", "127.0.0.1", "::1"))
    alternatives = ",".join(f"{'IP' if is_address(host) else 'DNS'}:{host}" for host in hosts)
    with tempfile.TemporaryDirectory(prefix="roomscribe-") as scratch:
        key, certificate = Path(scratch, "key"), Path(scratch, "crt")
        command = [
            "openssl", "req", "-x509", "-days", str(DAYS), "-subj", f"/CN={names[0][:64]}",
            "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc",
            "-keyout", str(key), "-out", str(certificate),
            "-addext", f"subjectAltName={alternatives}",
            "-addext", "keyUsage=critical,digitalSignature,keyCertSign",
        ]  # fmt: skip
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=OPENSSL_S, check=False
            )
        except FileNotFoundError:
            raise StoreError(
                "openssl, which makes the certificate, is not installed. Run `sudo apt install "
                "openssl`"
            ) from None
        except (OSError, subprocess.SubprocessError) as error:
            raise StoreError(f"openssl: {shorten(error, 200)}; try again") from error
        if done.returncode:
            lines = done.stderr.strip().splitlines()[-1:] or ["no reason"]
            raise StoreError(f"openssl req: {shorten(lines[0], 200)}; is it version 3 or newer?")
        return certificate.read_text("ascii"), key.read_text("ascii")


def _format_nodes(nodes: Mapping[str, Node]) -> str:
    """Return `nodes.conf`."""
    lines = [
        f'  {{ user: "{name}", password: "{node.password}", permissions: '
        f"{{ publish: {{ allow: {json.dumps(publish)} }}, "
        f"subscribe: {{ allow: {json.dumps(read)} }} }} }}"
        for name, node in sorted(nodes.items())
        for publish, read in (rights(name, node.role),)
    ]
    if not lines:  # without users nats-server would accept everybody
        deny = '{ publish: { deny: ">" }, subscribe: { deny: ">" } }'
        password = secrets.token_urlsafe(18)
        lines = [f'  {{ user: "nobody", password: "{password}", permissions: {deny} }}']
    return "\n".join(["users: [", *lines, "]", ""])


def _not_a_code(found: str) -> ConfigError:
    return ConfigError(
        f"code: expected what `roomscribe fleet invite` printed, found {found}; copy all of it, "
        "and use the same version of Roomscribe on both machines"
    )
