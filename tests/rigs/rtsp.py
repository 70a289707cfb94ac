"""A camera: an RTSP server with a password that sends a tone (RFC 2326; RTP inside the connection).

It asks for a digest, as cameras do, and knows no more than ffmpeg needs.
"""

import hashlib
import re
import socketserver
import struct
import threading
import time
from contextlib import suppress
from typing import Self

import numpy as np

RATE_HZ, PACKET = 16_000, 320
"""Samples per second, and per packet (20 ms)."""
REALM, NONCE = "camera", "0c8f4b"
SDP = f"""v=0
o=- 1 1 IN IP4 127.0.0.1
s=camera
c=IN IP4 0.0.0.0
t=0 0
m=audio 0 RTP/AVP 96
a=rtpmap:96 L16/{RATE_HZ}/1
a=control:sound
""".replace("\n", "\r\n")


class Camera:
    """A camera that breaks each connection off after `seconds` of sound."""

    def __init__(self, user: str, password: str, seconds: float = 600.0) -> None:
        self.user, self.password, self.seconds = user, password, seconds
        self.plays = 0
        """How often the sound was asked for."""
        self.silent = False
        """True: it sends nothing, and keeps the connection."""
        camera = self

        class Connection(_Connection):
            owner = camera

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Connection)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def admits(self, method: str, authorization: str) -> bool:
        """Return True if the digest is that of the user and the password (RFC 2069)."""
        given = dict(re.findall(r'(\w+)="([^"]*)"', authorization))
        own = _md5(f"{self.user}:{REALM}:{self.password}")
        action = _md5(f"{method}:{given.get('uri')}")
        wanted = _md5(f"{own}:{NONCE}:{action}")
        return given.get("username") == self.user and given.get("response") == wanted


class _Connection(socketserver.StreamRequestHandler):
    """One client."""

    owner: Camera

    def handle(self) -> None:
        with suppress(OSError):
            while self._answer():
                pass

    def _answer(self) -> bool:
        """Answer a request; return False at the end of the connection."""
        lines = list[str]()
        while line := self.rfile.readline().decode().strip():
            lines.append(line)
        if not lines:
            return False
        method = lines[0].split()[0]
        fields = dict(line.split(": ", 1) for line in lines[1:])
        also, body = "", ""
        status = "200 OK"
        if method == "OPTIONS":
            also = "Public: OPTIONS, DESCRIBE, SETUP, PLAY\r\n"
        elif not self.owner.admits(method, fields.get("Authorization", "")):
            status = "401 Unauthorized"
            also = f'WWW-Authenticate: Digest realm="{REALM}", nonce="{NONCE}"\r\n'
        elif method == "DESCRIBE":
            also, body = "Content-Type: application/sdp\r\n", SDP
        elif method == "SETUP":
            also = "Transport: RTP/AVP/TCP;unicast;interleaved=0-1\r\n"
        head = f"RTSP/1.0 {status}\r\nCSeq: {fields['CSeq']}\r\nSession: 1\r\n{also}"
        self.wfile.write(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        if method != "PLAY" or not status.startswith("200"):
            return True
        self.owner.plays += 1
        self._play()
        return False

    def _play(self) -> None:
        """Send a tone in real time."""
        tone = 8000 * np.sin(np.arange(RATE_HZ // 10) * 2 * np.pi * 440 / RATE_HZ)
        packets = tone.astype(">i2").reshape(-1, PACKET)
        began_s = time.monotonic()
        for number in range(int(self.owner.seconds * RATE_HZ / PACKET)):
            header = struct.pack(">BBHII", 0x80, 96, number & 0xFFFF, number * PACKET, 1)
            data = header + packets[number % len(packets)].tobytes()
            if not self.owner.silent:
                self.wfile.write(struct.pack(">cBH", b"$", 0, len(data)) + data)
            time.sleep(max(0.0, began_s + (number + 1) * PACKET / RATE_HZ - time.monotonic()))


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
