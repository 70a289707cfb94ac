"""A hub of models on this machine, with its content server and Hailo's store, and their faults.

    with local_hub() as hub:
        hub.add("openai/whisper-tiny", {"config.json": ..., "model.safetensors": ...})
        hub.misbehave("model.safetensors", Fault(break_after=1000), Fault(status=503))
        subprocess.run([...], env=os.environ | hub.environment())

It answers like Hugging Face's: /api/models/OWNER/NAME/revision/REVISION?blobs=true lists the files
of a commit; large ones are redirected to another host (here: another port); unknown repositories
are 401 to strangers.
"""

import hashlib
import json
import os
import re
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
LARGE = (".safetensors", ".onnx", ".bin")


@dataclass(frozen=True)
class Fault:
    """What is wrong with one answer; they are used up one after the other."""

    status: int = 0
    """Answer this in place of the file."""
    headers: dict[str, str] = field(default_factory=dict)
    """With `status`."""
    break_after: int | None = None
    """Close the connection after so many bytes of the body."""
    ignore_range: bool = False
    shift_range: int = 0
    """Send the rest from another byte on than requested."""
    content: bytes | None = None
    """Another content than the one that is listed."""
    no_length: bool = False
    """Leave Content-Length out and close the connection at the end."""


@dataclass(frozen=True)
class Seen:
    """A request that came."""

    server: str
    """hub, content or store."""
    path: str
    headers: dict[str, str]


@dataclass
class Repo:
    """What a repository holds."""

    files: dict[str, bytes]
    commit: str
    private: bool = False
    gated: bool = False


@dataclass
class LocalHub:
    """The servers; `requests` holds all that came."""

    repositories: dict[str, Repo] = field(default_factory=dict)
    hefs: dict[str, bytes] = field(default_factory=dict)
    """By path in Hailo's store, such as whisper/h8/x.hef."""
    faults: dict[str, list[Fault]] = field(default_factory=dict)
    requests: list[Seen] = field(default_factory=list)
    endpoint: str = ""
    content: str = ""
    store: str = ""

    def add(
        self, name: str, files: dict[str, bytes], *, private: bool = False, gated: bool = False
    ) -> str:
        """Puts a repository in place, or a new commit of it; the commit."""
        commit = hashlib.sha1(repr((name, sorted(files.items()))).encode()).hexdigest()
        self.repositories[name] = Repo(files, commit, private, gated)
        return commit

    def add_folder(self, name: str, folder: Path) -> str:
        """Puts the files of a checkpoint folder in place as a repository; the commit."""
        files = [file for file in folder.rglob("*") if file.is_file()]
        return self.add(
            name, {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}
        )

    def misbehave(self, file: str, *faults: Fault) -> None:
        """Gives the next answers for a file these faults; "main": those that list its files."""
        self.faults.setdefault(file, []).extend(faults)

    def environment(self) -> dict[str, str]:
        """What makes a command use these servers, and pip none."""
        return {
            "HF_ENDPOINT": self.endpoint,
            "ROOMSCRIBE_HAILO_STORE": self.store,
            "PIP_NO_INDEX": "1",
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }

    def fetched(self, file: str) -> list[Seen]:
        """The requests for a file, as they reached the server that has it."""
        server = "content" if file.endswith(LARGE) else "hub"
        servers = {server, "store"}
        return [s for s in self.requests if s.path.endswith(f"/{file}") and s.server in servers]


class Answering(BaseHTTPRequestHandler):
    """What the three servers share."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    role = ""
    hub: LocalHub

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing on the terminal."""

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(Seen(self.role, path, dict(self.headers.items())))
        self.answer(path.lstrip("/"))

    def do_HEAD(self) -> None:
        self.say(200)

    def answer(self, path: str) -> None:
        raise NotImplementedError

    def say(self, status: int, **headers: str) -> None:
        """An answer without a file."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def send(self, file: str, content: bytes) -> None:
        """A file or the rest of it, with the next fault."""
        waiting = self.hub.faults.get(file)
        fault = waiting.pop(0) if waiting else Fault()
        if fault.status:
            self.say(fault.status, **fault.headers)
            return
        content = content if fault.content is None else fault.content
        wanted = RANGE.fullmatch(self.headers.get("Range", ""))
        first, headers = 0, {"Accept-Ranges": "bytes"}
        if wanted and not fault.ignore_range:
            first = int(wanted[1]) + fault.shift_range
            headers["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
        if first and first >= len(content):
            self.say(416, Content_Range=f"bytes */{len(content)}")
            return
        if not fault.no_length:
            headers["Content-Length"] = str(len(content) - first)
        self.send_response(206 if "Content-Range" in headers else 200)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content[first:][: fault.break_after])
        self.close_connection = fault.break_after is not None or fault.no_length


class Hub(Answering):
    """Lists and has the files of repositories."""

    role = "hub"

    def answer(self, path: str) -> None:
        listed = re.fullmatch(r"api/models/([^/]+/[^/]+)/revision/(.+)", path)
        wanted = re.fullmatch(r"([^/]+/[^/]+)/resolve/([0-9a-f]{40})/(.+)", path)
        known = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        found = listed or wanted
        repo = self.hub.repositories.get(found[1]) if found else None
        if "Authorization" in self.headers and not known:
            self.say(401)
        elif repo is None or (repo.private and not known):
            self.say(404 if known else 401, X_Error_Code="RepoNotFound")
        elif listed and listed[2] not in ("main", "v1", repo.commit):
            self.say(404, X_Error_Code="RevisionNotFound")
        elif listed:
            self.send("main", json.dumps(listing(repo)).encode())
        elif wanted and repo.gated:
            self.say(403 if known else 401, X_Error_Code="GatedRepo")
        elif wanted and wanted[3].endswith(LARGE):
            self.say(302, Location=f"{self.hub.content}/{wanted[1]}/{wanted[2]}/{wanted[3]}")
        elif wanted:
            self.send(wanted[3], repo.files[wanted[3]])


def listing(repo: Repo) -> dict[str, Any]:
    """What the hub tells of a commit (huggingface_hub, hf_api.py, ModelInfo and RepoSibling)."""
    files: list[dict[str, Any]] = []
    for name, content in repo.files.items():
        blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        files.append({"rfilename": name, "size": len(content), "blobId": blob})
        if name.endswith(LARGE):
            files[-1]["lfs"] = {"sha256": hashlib.sha256(content).hexdigest()}
    return {"sha": repo.commit, "siblings": files, "cardData": {"license": "apache-2.0"}}


class Content(Answering):
    """OWNER/NAME/COMMIT/FILE."""

    role = "content"

    def answer(self, path: str) -> None:
        owner, name, _, file = path.split("/", 3)
        self.send(file, self.hub.repositories[f"{owner}/{name}"].files[file])


class Store(Answering):
    """Hailo's: any path, 403 for what is not there."""

    role = "store"

    def answer(self, path: str) -> None:
        content = self.hub.hefs.get(path)
        if content is None:
            self.say(403)
        else:
            self.send(path.rsplit("/", 1)[-1], content)


class Server(ThreadingHTTPServer):
    """A thread for each connection; clients may leave in the middle."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def local_hub() -> Iterator[LocalHub]:
    """The three servers, each on a port of 127.0.0.1, until the end of `with`."""
    hub = LocalHub()
    servers = []
    for kind in (Hub, Content, Store):
        server = Server(("127.0.0.1", 0), type(kind.__name__, (kind,), {"hub": hub}))
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        servers.append(server)
    hub.endpoint, hub.content, hub.store = (
        f"http://127.0.0.1:{server.server_address[1]}" for server in servers
    )
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
