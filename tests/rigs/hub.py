"""A hub of models on this machine, with its content servers and Hailo's store, and their faults.

    with local_hub() as hub:
        hub.add("openai/whisper-tiny", {"config.json": ..., "model.safetensors": ...})
        hub.misbehave("model.safetensors", Fault(break_after=1000), Fault(status=503))
        subprocess.run([...], env=os.environ | hub.environment())

It answers like Hugging Face's: HEAD tells X-Repo-Commit, X-Linked-Size and X-Linked-Etag; large
files are redirected to another host (here: another port) whose ETag is its own; small ones to a
relative address whose ETag is the git blob's name; unknown repositories are 401 to strangers.
"""

from __future__ import annotations

import hashlib
import os
import re
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_of_the_test"
RANGE = re.compile(r"bytes=(\d+)-")


@dataclass(frozen=True)
class Fault:
    """What is wrong with one answer to GET; they are used up one after the other."""

    status: int = 0
    """Answer this in place of the file."""
    headers: dict[str, str] = field(default_factory=dict)
    """With `status`."""
    break_after: int | None = None
    """Close the connection after so many bytes of the body."""
    ignore_range: bool = False
    shift_range: int = 0
    """Send the rest from another byte on than asked for."""
    content: bytes | None = None
    """Another content than the one that HEAD tells of."""
    more_length: int = 0
    """Added to Content-Length."""
    no_length: bool = False
    """Leave Content-Length out and close the connection at the end."""
    encoding: str = ""
    """Content-Encoding."""


@dataclass(frozen=True)
class Seen:
    """A request that came."""

    server: str
    """hub, content or store."""
    method: str
    path: str
    headers: dict[str, str]


@dataclass
class Repo:
    """What a repository holds."""

    files: dict[str, bytes]
    large: set[str]
    commit: str
    private: bool = False
    gated: bool = False
    disabled: bool = False


@dataclass
class LocalHub:
    """The servers; `requests` holds all that came."""

    repositories: dict[str, Repo] = field(default_factory=dict)
    hefs: dict[str, bytes] = field(default_factory=dict)
    """By path in Hailo's store, such as whisper/h8/x.hef."""
    faults: dict[str, list[Fault]] = field(default_factory=dict)
    head_faults: dict[str, list[Fault]] = field(default_factory=dict)
    requests: list[Seen] = field(default_factory=list)
    checksums: bool = True
    """Whether HEAD tells checksums."""
    plain_redirects: bool = False
    """Whether small files are sent by the hub's first answer, as mirrors do."""
    downgrade: str = ""
    """Where all large files are redirected to instead."""
    endpoint: str = ""
    content: str = ""
    store: str = ""

    def add(
        self,
        name: str,
        files: dict[str, bytes],
        *,
        large: set[str] | None = None,
        private: bool = False,
        gated: bool = False,
    ) -> str:
        """Puts a repository in place, or a new commit of it; the commit."""
        if large is None:
            large = {each for each in files if each.endswith((".safetensors", ".onnx", ".bin"))}
        digest = hashlib.sha1(repr((name, sorted(files.items()))).encode())
        self.repositories[name] = Repo(files, large, digest.hexdigest(), private, gated)
        return digest.hexdigest()

    def add_folder(self, name: str, folder: Path) -> str:
        """Puts the files of a checkpoint folder in place as a repository; the commit."""
        files = [file for file in folder.rglob("*") if file.is_file()]
        return self.add(
            name, {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}
        )

    def misbehave(self, file: str, *faults: Fault, head: bool = False) -> None:
        """Gives the next answers for a file these faults; `head`: those to HEAD."""
        (self.head_faults if head else self.faults).setdefault(file, []).extend(faults)

    def environment(self) -> dict[str, str]:
        """What makes a command use these servers."""
        return {
            "HF_ENDPOINT": self.endpoint,
            "ROOMSCRIBE_HAILO_STORE": self.store,
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }

    def fetched(self, file: str) -> list[Seen]:
        """The requests for a file's content, as they reached the server that has it."""
        return [
            seen
            for seen in self.requests
            if seen.method == "GET"
            and seen.path.endswith(f"/{file}")
            and (seen.server != "hub" or "/resolve-cache/" in seen.path)
        ]

    def fault(self, method: str, file: str) -> Fault:
        """Takes the next fault for a file."""
        waiting = (self.head_faults if method == "HEAD" else self.faults).get(file)
        return waiting.pop(0) if waiting else Fault()


class Answering(BaseHTTPRequestHandler):
    """What the three servers share."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    role = ""
    hub: LocalHub

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing on the terminal."""

    def do_HEAD(self) -> None:
        self._serve()

    def do_GET(self) -> None:
        self._serve()

    def _serve(self) -> None:
        path = unquote(urlsplit(self.path).path)
        seen = Seen(self.role, self.command, path, dict(self.headers.items()))
        self.hub.requests.append(seen)
        self.answer(path.lstrip("/"))

    def answer(self, path: str) -> None:
        raise NotImplementedError

    def say(self, status: int, **headers: str) -> None:
        """An answer without a file."""
        body = f"answer {status}".encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send(self, file: str, content: bytes, headers: dict[str, str], etag: str) -> None:
        """A file or the rest of it, with the next fault."""
        fault = self.hub.fault(self.command, file)
        if fault.status:
            self.say(fault.status, **fault.headers)
            return
        if fault.content is not None:
            content, etag = fault.content, f'"{hashlib.md5(fault.content).hexdigest()}"'
        wanted = RANGE.fullmatch(self.headers.get("Range", ""))
        fits = self.headers.get("If-Range", etag) == etag
        first = 0
        status = 200
        if wanted and fits and not fault.ignore_range:
            first, status = int(wanted[1]) + fault.shift_range, 206
        if first and first >= len(content):
            self.say(416, Content_Range=f"bytes */{len(content)}")
            return
        body = content[first:]
        self.send_response(status)
        if status == 206:
            headers = headers | {
                "Content-Range": f"bytes {first}-{len(content) - 1}/{len(content)}"
            }
        if not fault.no_length:
            headers = headers | {"Content-Length": str(len(body) + fault.more_length)}
        if fault.encoding:
            headers = headers | {"Content-Encoding": fault.encoding}
        for name, value in (headers | {"ETag": etag, "Accept-Ranges": "bytes"}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: fault.break_after])
        self.close_connection = (
            fault.break_after is not None or fault.no_length or fault.more_length > 0
        )


class Hub(Answering):
    """OWNER/NAME/resolve/REVISION/FILE and where it redirects small files to."""

    role = "hub"

    def answer(self, path: str) -> None:
        asked = re.fullmatch(r"([^/]+/[^/]+)/resolve/(.+)", path)
        cached = re.fullmatch(r"api/resolve-cache/models/([^/]+/[^/]+)/([0-9a-f]{40})/(.+)", path)
        if cached:
            repo = self.hub.repositories[cached[1]]
            self._small(repo, cached[3])
        elif asked is None:
            self.say(404)
        else:
            self._resolve(asked[1], asked[2])

    def _resolve(self, name: str, rest: str) -> None:
        repo = self.hub.repositories.get(name)
        known = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if "Authorization" in self.headers and not known:
            self.say(401, X_Error_Message="Invalid credentials in Authorization header")
            return
        if repo is None or (repo.private and not known):
            self.say(404 if known else 401, X_Error_Code="RepoNotFound")
            return
        if repo.disabled:
            self.say(403, X_Error_Message="Access to this resource is disabled.")
            return
        if repo.gated:
            self.say(403 if known else 401, X_Error_Code="GatedRepo")
            return
        revision, _, file = rest.partition("/")
        if revision not in ("main", "v1", repo.commit):
            self.say(404, X_Error_Code="RevisionNotFound")
        elif file not in repo.files:
            self.say(404, X_Error_Code="EntryNotFound", X_Repo_Commit=repo.commit)
        elif file in repo.large:
            self._large(repo, name, file)
        elif self.hub.plain_redirects:
            self._small(repo, file)
        else:
            # no X-Linked-Etag: what is known of a small file comes with the second answer
            place = f"/api/resolve-cache/models/{name}/{repo.commit}/{file}"
            self.say(307, Location=place, X_Repo_Commit=repo.commit, ETag='"of the redirect"')

    def _large(self, repo: Repo, name: str, file: str) -> None:
        fault = self.hub.fault("HEAD", file) if self.command == "HEAD" else Fault()
        if fault.status:
            self.say(fault.status, **fault.headers)
            return
        content = repo.files[file]
        told = {
            "X_Repo_Commit": repo.commit,
            "X_Linked_Size": str(len(content)),
            "X_Linked_Etag": f'"{hashlib.sha256(content).hexdigest()}"',
            "ETag": f'"{hashlib.sha1(b"of the redirect itself").hexdigest()}"',
            "Location": self.hub.downgrade or f"{self.hub.content}/{name}/{repo.commit}/{file}",
        }
        if not self.hub.checksums:
            del told["X_Linked_Etag"]
        self.say(302, **told)

    def _small(self, repo: Repo, file: str) -> None:
        content = repo.files[file]
        name = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        etag = f'"{name}"' if self.hub.checksums else 'W/"weak"'
        self.send(file, content, {"X-Repo-Commit": repo.commit}, etag)


class Content(Answering):
    """OWNER/NAME/COMMIT/FILE; its ETags look like SHA-256 and are not."""

    role = "content"

    def answer(self, path: str) -> None:
        owner, name, _, file = path.split("/", 3)
        content = self.hub.repositories[f"{owner}/{name}"].files[file]
        etag = hashlib.sha256(b"content server " + content).hexdigest()
        self.send(file, content, {}, f'"{etag}"')


class Store(Answering):
    """Hailo's: any path, MD5 as ETag, 403 for what is not there."""

    role = "store"

    def answer(self, path: str) -> None:
        content = self.hub.hefs.get(path)
        if content is None:
            self.say(403)
            return
        self.send(path.rsplit("/", 1)[-1], content, {}, f'"{hashlib.md5(content).hexdigest()}"')


class Server(ThreadingHTTPServer):
    """A thread for each connection; clients may leave in the middle."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError | ssl.SSLError):
            super().handle_error(request, client_address)


@contextmanager
def local_hub(certificate: Path | None = None) -> Iterator[LocalHub]:
    """The three servers, each on a port of 127.0.0.1, until the end of `with`.

    With a certificate (PEM with its key) the hub, and the hub alone, speaks TLS.
    """
    hub = LocalHub()
    servers = []
    for kind in (Hub, Content, Store):
        handler = type(kind.__name__, (kind,), {"hub": hub})
        server = Server(("127.0.0.1", 0), handler)
        if certificate and kind is Hub:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        servers.append(server)
    addresses = [f"http://127.0.0.1:{server.server_address[1]}" for server in servers]
    hub.endpoint, hub.content, hub.store = addresses
    if certificate:
        hub.endpoint = hub.endpoint.replace("http:", "https:")
    before = {name: os.environ.get(name) for name in ("NO_PROXY", "no_proxy")}
    os.environ.update(dict.fromkeys(before, "127.0.0.1"))
    try:
        yield hub
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        for server in servers:
            server.shutdown()
            server.server_close()
