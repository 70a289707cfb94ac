"""A request to a Wyoming server, as Home Assistant sends it: for the doctor and comparisons."""

from __future__ import annotations

import asyncio
import time

from appliance.errors import ServerError
from appliance.records import SAMPLE_RATE, Samples
from appliance.system import one_line
from appliance.wyoming.protocol import Event, ProtocolError, pack, read_event

FORMAT = {"rate": SAMPLE_RATE, "width": 2, "channels": 1}
CHUNK_S = 0.1


async def request_text(
    host: str, port: int, samples: Samples, within_s: float, *, real_time: bool = False
) -> tuple[str, float]:
    """Return the text of (n,) int16 mono at 16 kHz, and the seconds from its end to the text.

    `real_time`: send it as fast as it was spoken. Raises ServerError, after `within_s` at the
    latest.
    """
    where = f"the speech-to-text server {host}:{port}"
    try:
        async with asyncio.timeout(within_s):
            return await _converse(host, port, samples, real_time=real_time)
    except TimeoutError:
        raise ServerError(f"{where}: no text within {within_s:g} s; see its log") from None
    except (OSError, EOFError, ProtocolError) as error:
        raise ServerError(f"{where}: {one_line(error)}; check that it runs") from None


async def _converse(
    host: str, port: int, samples: Samples, *, real_time: bool
) -> tuple[str, float]:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(pack(Event("transcribe", {"language": "en"})))
        writer.write(pack(Event("audio-start", FORMAT)))
        begun_s, size = time.monotonic(), int(CHUNK_S * SAMPLE_RATE)
        for at in range(0, len(samples), size):
            sound = samples[at : at + size].astype("<i2").tobytes()
            writer.write(pack(Event("audio-chunk", FORMAT, sound)))
            await writer.drain()
            if real_time:
                await asyncio.sleep(begun_s + (at + size) / SAMPLE_RATE - time.monotonic())
        writer.write(pack(Event("audio-stop")))
        await writer.drain()
        ended_s = time.monotonic()
        while (event := await read_event(reader)).type != "transcript":
            if event.type == "error":
                raise ProtocolError(f"it reports {event.data.get('text')}")
        return str(event.data.get("text", "")).strip(), time.monotonic() - ended_s
    finally:
        writer.close()
