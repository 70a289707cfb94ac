"""A client made of the protocol's own library, of whatever release is on the path: asks what the
server is, sends a WAV file as Home Assistant sends a command, prints each event as JSON.

python -m rigs.wyoming_client PORT FILE [real-time]
"""

import asyncio
import json
import sys
import time
import wave

from wyoming.asr import Transcribe, Transcript
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncTcpClient
from wyoming.error import Error
from wyoming.info import Describe, Info
from wyoming.ping import Ping, Pong

CHUNK_S = 0.01


async def talk(port: int, file: str, *, real_time: bool) -> None:
    with wave.open(file, "rb") as opened:
        rate, width, channels = opened.getframerate(), opened.getsampwidth(), opened.getnchannels()
        sound = opened.readframes(opened.getnframes())
    async with AsyncTcpClient("127.0.0.1", port) as client:
        await client.write_event(Describe().event())
        event = await client.read_event()
        assert event
        assert Info.is_type(event.type)
        info = Info.from_event(event)
        models = info.asr[0].models
        told = {"name": info.asr[0].name, "languages": models[0].languages}
        flags = getattr(info.asr[0], "supports_transcript_streaming", None)
        print(json.dumps({"type": "info", **told, "streaming": flags}))
        await client.write_event(Ping("hallo").event())
        event = await client.read_event()
        assert event
        print(json.dumps({"type": "pong", "text": Pong.from_event(event).text}))
        await client.write_event(Transcribe(language="en").event())
        await client.write_event(AudioStart(rate, width, channels).event())
        size = int(rate * CHUNK_S) * width * channels
        for at in range(0, len(sound), size):
            chunk = AudioChunk(rate, width, channels, sound[at : at + size])
            await client.write_event(chunk.event())
            if real_time:
                await asyncio.sleep(CHUNK_S)
        await client.write_event(AudioStop().event())
        begun_s = time.monotonic()
        while event := await client.read_event():
            shown = {"type": event.type, **event.data, "s": time.monotonic() - begun_s}
            print(json.dumps(shown))
            if Transcript.is_type(event.type):
                Transcript.from_event(event)
                break
            if Error.is_type(event.type):
                break


if __name__ == "__main__":
    asyncio.run(talk(int(sys.argv[1]), sys.argv[2], real_time="real-time" in sys.argv))
