"""A server made of the protocol's own library, of whatever release is on the path, which answers
each window with its length in samples. Prints its port.

python -m rigs.wyoming_server
"""

from __future__ import annotations

import asyncio
import socket

from wyoming.asr import Transcribe, Transcript
from wyoming.audio import AudioChunk, AudioStop
from wyoming.event import Event
from wyoming.info import AsrModel, AsrProgram, Attribution, Describe, Info
from wyoming.server import AsyncEventHandler, AsyncServer

NOBODY = Attribution(name="nobody", url="https://example.org")
# `version` is required since 1.5.4, and later again
COMMON = {"attribution": NOBODY, "installed": True, "description": None, "version": None}


class Handler(AsyncEventHandler):  # type: ignore[misc]
    """One connection."""

    sound, language = b"", "none"

    async def handle_event(self, event: Event) -> bool:
        """True while more may come."""
        if Describe.is_type(event.type):
            model = AsrModel(name="small", languages=["en"], **COMMON)
            program = AsrProgram(name="library", models=[model], **COMMON)
            await self.write_event(Info(asr=[program]).event())
        elif Transcribe.is_type(event.type):
            self.language = Transcribe.from_event(event).language or "none"
        elif AudioChunk.is_type(event.type):
            chunk = AudioChunk.from_event(event)
            assert (chunk.rate, chunk.width, chunk.channels) == (16000, 2, 1)
            self.sound += chunk.audio
        elif AudioStop.is_type(event.type):
            text = f"{len(self.sound) // 2} samples in {self.language}"
            await self.write_event(Transcript(text=text).event())
            return False
        return True


async def serve() -> None:
    """Until the process is ended."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    server = AsyncServer.from_uri(f"tcp://127.0.0.1:{port}")
    print(port, flush=True)
    await server.run(Handler)


if __name__ == "__main__":
    asyncio.run(serve())
