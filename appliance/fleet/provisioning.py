"""The server of a fleet: nats-server's configuration, its certificates, the codes for nodes.

All decisions are in one file, `server.json`, which is written whole. Every run makes nats-server's
own files from it again, so an interrupted run leaves nothing incomplete. Passwords are random and
not hashed in the files for nats-server, which only root and its user can read: with bcrypt each
connection would cost a small board a tenth of a second, and nobody can guess them.

Over 500 lines because certificates and codes are made from the same state.
Formats: docs.nats.io, "Configuring NATS Server"; tried with nats-server 2.9.10.
"""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import shutil
import ssl
import subprocess
import tempfile
import time
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from appliance.config import is_address, is_loopback
from appliance.errors import ConfigError, StoreError
from appliance.fleet.messages import STREAM, WORKERS, Subjects
from appliance.system import replacing, shorten, write_whole

STATE, CONFIG, NODES = "server.json", "nats.conf", "nodes.conf"
CERTIFICATE, KEY, AUTHORITY = "server.crt", "server.key", "ca.crt"
PORT, CLUSTER_PORT = 4222, 6222
ROLES = ("satellite", "worker", "both")
NODE = re.compile(r"[a-z0-9_]{1,64}")
HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
DAYS, AUTHORITY_DAYS = 3650, 7300
RENEW_S = 365 * 86_400
"""Setting the server up again renews our certificate if it ends sooner than this."""
OPENSSL_S = 60.0
MEMORY_MB = 64
"""Memory for waiting windows: 4 for each satellite, up to 512 kB each."""
FORM = 1
"""Version of codes; raised when older programs cannot read them."""
MARK = re.compile(r"roomscribe-(\d+)\.")
"""The beginning of a code."""
MOST_CODE = 200_000
PATHS = "/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin"
"""Folders in which Debian has nats-server; not on every user's path."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node that may connect, with its role."""

    role: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Code:
    """An invitation to join, for one node and role."""

    servers: tuple[str, ...]
    node: str
    role: str
    password: str = field(repr=False)
    authority: str = ""
    """The authority's certificate (PEM); empty if the system knows the authority."""
    expires_s: int = 0
    """Unix time after which `join` refuses the code; 0: never."""

    def text(self) -> str:
        """Return the code as one word without spaces. A damaged copy is recognised."""
        return _pack({
            "s": self.servers, "n": self.node, "r": self.role, "p": self.password,
            "a": _strip_pem(self.authority), "x": self.expires_s,
        })  # fmt: skip

    @classmethod
    def read(cls, text: str) -> Code:
        """Return the code in `text`, which may have line breaks. Raises ConfigError."""
        found = _unpack(text)
        if "engine" in found:
            raise ConfigError(
                "code: this code is for a server of the cluster. Run `sudo roomscribe fleet join "
                "--serve` with it"
            )
        try:
            code = cls(
                tuple(map(str, found["s"])), str(found["n"]), str(found["r"]),
                str(found["p"]), _restore_pem(str(found["a"])), int(found.get("x", 0)),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError):
            raise _not_a_code("other content") from None
        if not (code.servers and NODE.fullmatch(code.node) and code.role in ROLES):
            raise _not_a_code("an invalid node or role")
        return code


@dataclass(frozen=True, slots=True)
class FleetServer:
    """A server, alone or in a cluster of three: everything that its files are made from."""

    names: tuple[str, ...]
    """Host names and addresses under which nodes reach it, the best first."""
    port: int = PORT
    memory_mb: int = MEMORY_MB
    cluster: tuple[str, ...] = ()
    """The hosts of all servers, this one among them; empty without a cluster."""
    cluster_port: int = CLUSTER_PORT
    cluster_password: str = field(default="", repr=False)
    authority: str = ""
    """Certificate (PEM) of our own authority, or of the user's."""
    authority_key: str = field(default="", repr=False)
    """Its private key; only on the first server, and empty for the user's certificate."""
    certificate: str = ""
    key: str = field(default="", repr=False)
    nodes: Mapping[str, Node] = field(default_factory=dict)
    store_dir: str = ""
    """The folder that nats-server was set up with: a server that runs cannot change it."""

    @classmethod
    def load(cls, folder: Path) -> FleetServer | None:
        """Return the server that was set up in this folder, or None. Raises ConfigError."""
        file = folder / STATE
        try:
            return cls.from_state(json.loads(file.read_bytes()))
        except FileNotFoundError:
            return None
        except PermissionError as error:
            raise ConfigError(f"{file}: this user may not read it; run this with sudo") from error
        except OSError as error:
            raise ConfigError(f"{file}: cannot be read: {error.strerror}; see its disk") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{file}: expected what `roomscribe fleet join --serve` wrote, found "
                f"{shorten(error)}; move it away and set the server up again, with new codes"
            ) from error

    @classmethod
    def from_state(cls, found: dict[str, Any]) -> FleetServer:
        """Return the server in a state file's content. Raises KeyError, TypeError, ValueError."""
        nodes = {name: Node(**node) for name, node in found["nodes"].items()}
        lists = {"names": tuple(found["names"]), "cluster": tuple(found["cluster"])}
        return cls(**{**found, **lists, "nodes": nodes})

    @property
    def host(self) -> str:
        """Its name in the cluster; without a cluster, the first of its names."""
        return next((host for host in self.names if host in self.cluster), self.names[0])

    @property
    def addresses(self) -> tuple[str, ...]:
        """Addresses for nodes: this server under all its names, or all servers of the cluster."""
        return tuple(f"tls://{url_host(host)}:{self.port}" for host in self.cluster or self.names)

    def invite(self, node: str, role: str) -> FleetServer:
        """Return the server with that node; a known node keeps its password. Raises ConfigError."""
        if not NODE.fullmatch(node):
            raise ConfigError(
                f"{shorten(node)}: expected a node's name, at most 64 of a-z, 0-9 and _, as "
                "appliance.node has it"
            )
        before = self.nodes.get(node)
        password = before.password if before else secrets.token_urlsafe(18)
        return replace(self, nodes={**self.nodes, node: Node(role, password)})

    def remove(self, node: str) -> FleetServer:
        """Return the server without that node. Raises ConfigError if it is unknown."""
        if node not in self.nodes:
            there = ", ".join(sorted(self.nodes)) or "none"
            raise ConfigError(
                f"{shorten(node)}: this node was not invited here; known nodes: {there}"
            )
        return replace(self, nodes={name: self.nodes[name] for name in self.nodes if name != node})

    def code(self, node: str, valid_days: float = 0) -> Code:
        """Return the code for that node, which expires after `valid_days`; 0: never."""
        invited = self.nodes[node]
        expires_s = int(time.time() + valid_days * 86_400) if valid_days else 0
        return Code(self.addresses, node, invited.role, invited.password, self.authority, expires_s)

    def with_certificate(self) -> FleetServer:
        """Return the server with a valid certificate: the user's, or one of our own authority.

        Raises StoreError if openssl is missing or fails.
        """
        if self.certificate and not self.authority_key:
            return self  # it is the user's, or the first server of the cluster made it
        made = self
        if not self.authority_key:
            authority, key = _make_authority()
            made = replace(made, authority=authority, authority_key=key)
        if not made.certificate or not _is_valid(made.certificate, made.names):
            certificate, key = sign(made, made.names)
            made = replace(made, certificate=certificate, key=key)
        if made.cluster and not made.cluster_password:
            made = replace(made, cluster_password=secrets.token_urlsafe(18))
        return made

    def sibling(self, host: str) -> FleetServer:
        """Return another server of the cluster, with a certificate and no key to make more."""
        certificate, key = sign(self, (host,))
        return replace(
            self,
            names=(host,),
            authority_key="",
            certificate=certificate,
            key=key,
            store_dir="",
        )

    def text(self) -> str:
        """Return the code that sets up this server's machine."""
        return _pack({"engine": self._state()})

    def files(self, folder: Path, store_dir: Path) -> dict[str, str]:
        """Return nats-server's files by name; it makes its own folders in `store_dir`."""
        files = {
            AUTHORITY: self.authority,
            CERTIFICATE: self.certificate,
            KEY: self.key,
            NODES: _format_nodes(self.nodes),
            CONFIG: self._format_config(folder, store_dir),
        }
        return {name: text for name, text in files.items() if text}

    def write(self, folder: Path, store_dir: Path) -> bool:
        """Write all files, once nats-server has accepted a draft of its own.

        Return True if it has to be restarted, False if it only has to read its nodes again. Raises
        StoreError if a file cannot be written, or nats-server refuses its configuration.
        """
        try:
            make_folder(folder)
            files = self.files(folder, store_dir)
            self._check(files, folder)
            state = replace(self, store_dir=str(store_dir))._state()
            write_whole(folder / STATE, json.dumps(state, indent=1), 0o600)
            anew = False
            for name, text in files.items():
                if _read(folder / name) == text:
                    continue
                anew = anew or name != NODES
                with replacing(folder / name, 0o644 if name == AUTHORITY else 0o600) as draft:
                    draft.write_text(text, encoding="utf-8")
                    if os.geteuid() == 0 and name != AUTHORITY:
                        with suppress(LookupError):
                            shutil.chown(draft, "root", "nats")
                            draft.chmod(0o640)
        except OSError as error:
            raise unwritable(folder, error) from error
        return anew

    def _check(self, files: Mapping[str, str], folder: Path) -> None:
        """Have nats-server check a draft of the files. Raises StoreError, OSError."""
        with tempfile.TemporaryDirectory(prefix="roomscribe-") as draft_dir:
            for name, text in files.items():
                drafted = text.replace(f"{folder}/", f"{draft_dir}/")
                write_whole(Path(draft_dir, name), drafted, 0o600)
            done = subprocess.run(
                [find_nats_server(), "-t", "-c", str(Path(draft_dir, CONFIG))],
                capture_output=True, text=True, timeout=OPENSSL_S, check=False,
            )  # fmt: skip
            if done.returncode:
                output = (done.stderr + done.stdout).strip().splitlines()[-1:] or ["no reason"]
                raise StoreError(
                    f"nats-server refuses its configuration: {shorten(output[0], 300)}; nothing "
                    "was changed"
                )

    def _state(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key != "store_dir" or value}

    def _format_config(self, folder: Path, store_dir: Path) -> str:
        """Return `nats.conf`. It traces nothing: a trace would contain texts."""
        here = {name: json.dumps(str(folder / name)) for name in (CERTIFICATE, KEY, AUTHORITY)}
        most = self.memory_mb << 20
        listen = self.host if all(map(is_loopback, self.names)) else "0.0.0.0"
        lines = [
            "# Written by `roomscribe fleet join --serve`, and by each later run of it anew.",
            f'server_name: "{self.host}"',
            f'host: "{listen}"',
            f"port: {self.port}",
            "max_payload: 1048576",
            "max_pending: 8388608",
            'ping_interval: "30s"',
            f"tls {{ cert_file: {here[CERTIFICATE]}, key_file: {here[KEY]}, timeout: 5 }}",
            "# sound waits in memory only; the store_dir contains names of queues, and who leads",
            f"jetstream {{ store_dir: {json.dumps(str(store_dir))}, max_memory_store: {most}, "
            "max_file_store: 0 }",
            "accounts {",
            f"  {STREAM} {{",
            "    jetstream { max_file: 0, max_streams: 1, max_consumers: 64 }",
            f'    include "{NODES}"',
            "  }",
            "}",
        ]
        if self.cluster:
            login = f"roomscribe:{self.cluster_password}"
            routes = [
                f'"nats://{login}@{url_host(host)}:{self.cluster_port}"' for host in self.cluster
            ]
            lines += [
                "cluster {",
                f'  name: "roomscribe", host: "{listen}", no_advertise: true',
                f"  port: {self.cluster_port}",
                f'  authorization {{ user: "roomscribe", password: "{self.cluster_password}" }}',
                f"  tls {{ cert_file: {here[CERTIFICATE]}, key_file: {here[KEY]}, "
                f"ca_file: {here[AUTHORITY]}, verify: true, timeout: 5 }}",
                f"  routes: [{', '.join(routes)}]",
                "}",
            ]
        return "\n".join([*lines, ""])


def make_folder(folder: Path) -> None:
    """Make a folder that nats-server's user may enter, whatever the umask. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)


def unwritable(path: Path, error: OSError) -> StoreError:
    """Return an error with the fix for a path that cannot be written."""
    fix = "run this with sudo" if isinstance(error, PermissionError) else "see its disk, try again"
    return StoreError(f"{path}: cannot be written: {error.strerror}; {fix}")


def read_server_code(text: str) -> FleetServer:
    """Return the server of the cluster in a code. Raises ConfigError."""
    found = _unpack(text)
    if "engine" not in found:
        raise ConfigError(
            "code: this code is for a node, not for a server of the cluster; leave --serve out"
        )
    try:
        return FleetServer.from_state(found["engine"])
    except (KeyError, TypeError, ValueError, AttributeError):
        raise _not_a_code("other content") from None


def rights(node: str, role: str) -> tuple[list[str], list[str]]:
    """Return the subjects that a node may publish to, and those that it may read."""
    own, everybody = Subjects(node, model="*"), Subjects("*")
    read = {f"{own.inbox}.>"}
    publish = {WORKERS, own.machines}
    if role in ("satellite", "both"):
        publish.add(own.window)
        read.add(own.answer)
    if role in ("worker", "both"):
        publish |= {
            everybody.answer,
            f"{everybody.inbox}.>",
            f"$JS.API.STREAM.INFO.{STREAM}",
            f"$JS.API.CONSUMER.INFO.{STREAM}.*",
            "$JS.API.INFO",
            "$JS.API.STREAM.NAMES",
            *(f"$JS.API.STREAM.{what}.{STREAM}" for what in ("CREATE", "UPDATE", "DELETE")),
            *(f"$JS.API.CONSUMER.{what}.{STREAM}.>" for what in ("CREATE", "DELETE", "MSG.NEXT")),
            f"$JS.API.CONSUMER.DURABLE.CREATE.{STREAM}.*",
            f"$JS.API.CONSUMER.CREATE.{STREAM}",
            f"$JS.API.CONSUMER.NAMES.{STREAM}",
            f"$JS.API.CONSUMER.LIST.{STREAM}",
            f"$JS.ACK.{STREAM}.>",
        }
        read.add(WORKERS)
    return sorted(publish), sorted(read)


def find_nats_server() -> str:
    """Return the path of nats-server. Raises StoreError if it is not installed."""
    found = shutil.which("nats-server") or shutil.which("nats-server", path=PATHS)
    if not found:
        raise StoreError("nats-server is not installed. Run `sudo apt install nats-server`")
    return found


def nats_server_version() -> tuple[int, ...]:
    """Return nats-server's version, such as (2, 10, 27). Raises StoreError if it is unknown."""
    try:
        output = subprocess.run(
            [find_nats_server(), "--version"],
            capture_output=True,
            text=True,
            timeout=OPENSSL_S,
            check=False,
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise StoreError(f"nats-server --version: {shorten(error, 200)}; try again") from error
    found = re.search(r"v(\d+)\.(\d+)\.(\d+)", output)
    if not found:
        raise StoreError(
            f"nats-server --version: expected its version, found {shorten(output) or 'nothing'}; "
            "install Debian's (`sudo apt install nats-server`)"
        )
    return tuple(map(int, found.groups()))


def read_certificate(certificate: Path, key: Path, names: Sequence[str]) -> tuple[str, str]:
    """Return the user's certificate and key, if they fit each other and the first name.

    Raises ConfigError.
    """

    def no_passphrase() -> str:
        raise ConfigError(f"--key: {key} is encrypted. Use a key without a passphrase")

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, no_passphrase)
        texts = certificate.read_text(encoding="ascii"), key.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"--certificate: expected a certificate and its key (PEM), found {certificate} and "
            f"{key}: {getattr(error, 'reason', None) or getattr(error, 'strerror', None) or error}"
        ) from error
    if not _is_for_host(texts[0], names[0]):
        raise ConfigError(
            f"--certificate: expected one for {names[0]}, found {certificate}, which is for "
            "another name; --name says under which name the nodes reach this machine"
        )
    return texts


def is_host(text: str) -> bool:
    """Return True for a host name or address that certificates and NATS addresses may contain."""
    return is_address(text) or (bool(HOST.fullmatch(text)) and ".." not in text)


def url_host(host: str) -> str:
    """Return the host as in a URL."""
    return f"[{host}]" if ":" in host else host


def sign(server: FleetServer, names: Sequence[str]) -> tuple[str, str]:
    """Return a certificate of the server's authority for these names, and its key. Raises
    StoreError."""
    others = ("localhost", "127.0.0.1", "::1")
    alternatives = ",".join(
        f"{'IP' if is_address(host) else 'DNS'}:{host}" for host in dict.fromkeys((*names, *others))
    )
    with tempfile.TemporaryDirectory(prefix="roomscribe-") as scratch:
        folder = Path(scratch)
        write_whole(folder / "ca.crt", server.authority, 0o600)
        write_whole(folder / "ca.key", server.authority_key, 0o600)
        _openssl(
            *("req", "-x509", *_NEW_KEY, "-days", str(DAYS), "-subj", f"/CN={names[0][:64]}"),
            *("-CA", folder / "ca.crt", "-CAkey", folder / "ca.key"),
            *("-keyout", folder / "key", "-out", folder / "crt"),
            *("-addext", f"subjectAltName={alternatives}"),
            *("-addext", "basicConstraints=critical,CA:FALSE"),
            *("-addext", "extendedKeyUsage=serverAuth,clientAuth"),
        )
        return (folder / "crt").read_text("ascii"), (folder / "key").read_text("ascii")


def _make_authority() -> tuple[str, str]:
    with tempfile.TemporaryDirectory(prefix="roomscribe-") as scratch:
        folder = Path(scratch)
        _openssl(
            *("req", "-x509", *_NEW_KEY, "-days", str(AUTHORITY_DAYS)),
            *("-subj", "/CN=Roomscribe fleet"),
            *("-keyout", folder / "key", "-out", folder / "crt"),
            *("-addext", "basicConstraints=critical,CA:TRUE"),
            *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
        )
        return (folder / "crt").read_text("ascii"), (folder / "key").read_text("ascii")


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc")


def _openssl(*words: str | Path, input_text: str | None = None) -> str:
    """Return the output of openssl. Raises StoreError if it is missing or fails."""
    try:
        done = subprocess.run(
            ["openssl", *map(str, words)],
            input=input_text, capture_output=True, text=True, timeout=OPENSSL_S, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        raise StoreError(
            "openssl, which makes certificates, is not installed. Run `sudo apt install openssl`"
        ) from None
    except (OSError, subprocess.SubprocessError) as error:
        raise StoreError(f"openssl: {shorten(error, 200)}; try again") from error
    if done.returncode and input_text is None:
        lines = done.stderr.strip().splitlines()[-1:] or ["no reason"]
        raise StoreError(f"openssl {words[0]}: {shorten(lines[0], 200)}; is it version 3 or newer?")
    return done.stdout


def _is_valid(certificate: str, names: Sequence[str]) -> bool:
    """Return True if a certificate is for all these names, and valid for at least a year."""
    left = _openssl("x509", "-noout", "-checkend", str(RENEW_S), input_text=certificate)
    return "will not expire" in left and all(_is_for_host(certificate, name) for name in names)


def _is_for_host(certificate: str, name: str) -> bool:
    option = "-checkip" if is_address(name) else "-checkhost"
    return "does match" in _openssl("x509", "-noout", option, name, input_text=certificate)


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


def _pack(content: Mapping[str, Any]) -> str:
    data = zlib.compress(json.dumps(content, separators=(",", ":")).encode(), 9)
    return f"roomscribe-{FORM}." + base64.urlsafe_b64encode(data).decode().rstrip("=")


def _unpack(text: str) -> dict[str, Any]:
    """Return the content of a code. Raises ConfigError."""
    word = "".join(text.split())
    if not word:
        raise _not_a_code("nothing")
    mark = MARK.match(word)
    if not mark:
        raise _not_a_code(shorten(word, 20))
    if not 0 < int(mark[1][:9]) <= FORM:
        raise ConfigError(
            f"code: expected form {FORM}, found form {shorten(mark[1])}; install the server's "
            "version of Roomscribe on this machine"
        )
    try:
        data = word[mark.end() :]
        packed = base64.b64decode(data + "=" * (-len(data) % 4), altchars=b"-_", validate=True)
        unpack = zlib.decompressobj()
        found = json.loads(unpack.decompress(packed, MOST_CODE))
        if not unpack.eof or not isinstance(found, dict):
            raise ValueError
    except (ValueError, zlib.error, RecursionError):
        raise _not_a_code("an incomplete or changed code") from None
    return found


def _not_a_code(found: str) -> ConfigError:
    return ConfigError(
        f"code: expected what `roomscribe fleet invite` printed, found {found}; copy all of it"
    )


def _strip_pem(pem: str) -> str:
    """Return certificates without the lines around them."""
    return (
        pem.replace("-----BEGIN CERTIFICATE-----", "")
        .replace("-----END CERTIFICATE-----", ".")
        .replace("\n", "")
    )


def _restore_pem(bare: str) -> str:
    """Return the certificates as PEM again. Raises ValueError."""
    return "".join(
        ssl.DER_cert_to_PEM_cert(base64.b64decode(certificate, validate=True))
        for certificate in bare.split(".") if certificate
    )  # fmt: skip


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
