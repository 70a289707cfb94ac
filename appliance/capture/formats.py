"""The format of a recording, recognised by its first bytes."""

from __future__ import annotations

import re
import struct
from typing import NamedTuple

import numpy as np

from appliance.records import SAMPLE_RATE


class Layout(NamedTuple):
    """Format of the samples in a pipe."""

    dtype: str
    """In numpy's notation."""
    rate_hz: int
    channels: int


HEAD = 4096
"""Bytes from which a format is recognised."""
RAW = Layout("<i2", SAMPLE_RATE, 1)
WAV, MP3, OGG, CAF = "a WAV file", "an MP3 file", "an Ogg file", "a CAF file"
READ_BY_LIBSNDFILE = {
    r"(RIFF|RF64)(?!.{4}(AVI |WEBP))|RIFX": WAV,
    r"ID3": MP3,
    r"OggS": OGG,
    r"caff": CAF,
    r"fLaC": "a FLAC file",
    r"FORM.{4}AIF": "an AIFF file",
    r"\.snd": "an AU file",
    r"riff\x2e\x91": "a W64 file",
}
READ_BY_FFMPEG = {
    r".{4}(ftyp|moov|mdat|wide)": "an MPEG-4 file (m4a, mp4, mov, 3gp)",
    r"\x1a\x45\xdf\xa3": "a Matroska file (webm, mkv)",
    r"RIFF.{4}AVI ": "an AVI file",
    r"FLV\x01": "a Flash film",
    r"#!AMR": "an AMR file",
    r"\x30\x26\xb2\x75\x8e\x66\xcf\x11": "a Windows Media file",
    r"wvpk": "a WavPack file",
    r"MAC ": "a Monkey's Audio file",
    r"\x47.{187}\x47.{187}\x47": "an MPEG transport stream",
    r"\x00\x00\x01\xba": "an MPEG film",
}
"""Patterns for the first bytes of a file, as Latin-1."""
AAC = "an AAC stream"
MAY_NEED_FFMPEG = {MP3, OGG, CAF}
"""Formats with encodings that libsndfile may not know; other files that it refuses are damaged."""
NO_SOUND = {
    r"%PDF": "a PDF file",
    r"\x89PNG|\xff\xd8\xff|GIF8|RIFF.{4}WEBP": "a picture",
    r"PK\x03\x04|Rar!|7z\xbc\xaf|.{257}ustar": "an archive",
    r"\x1f\x8b\x08|BZh[1-9]|\xfd7zXZ|\x28\xb5\x2f\xfd": "a compressed file",
    r"\x7fELF": "a program",
    r"SQLite format": "a database",
}
"""Files whose bytes would sound like noise."""
MIN_TEXT_BYTES = 12
"""Fewer bytes cannot be told from raw PCM."""
LOUD_RMS, SOUND_CORRELATION = 15_000, 0.15
"""Louder samples whose neighbours correlate less are compressed or encrypted bytes."""
KBPS = {
    3: (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 0),
    2: (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 0),
}
"""Bit rates of layer III in MPEG-1 (version 3 in the header) and MPEG-2 (ISO 11172-3, 13818-3)."""
MPEG_HZ = (44_100, 48_000, 32_000)
EXTENSIBLE, MAX_CHANNELS = 0xFFFE, 1024
WAV_DTYPES = {
    (1, 8): "u1", (1, 16): "<i2", (1, 32): "<i4", (3, 32): "<f4", (3, 64): "<f8",
}  # fmt: skip
"""numpy's name for a WAV's samples, by format tag and bits."""


def kind_of(head: bytes) -> str:
    """Return the format of a file that begins with `head`; "" if it is unknown."""
    text = head.decode("latin-1")
    for beginnings in (READ_BY_LIBSNDFILE, READ_BY_FFMPEG):
        for beginning, kind in beginnings.items():
            if re.match(beginning, text, re.DOTALL):
                return kind
    length, layer = _mpeg_frame(head)
    if length and _mpeg_frame(head[length:])[1] == layer:
        return AAC if layer == 0 else MP3
    return ""


def _mpeg_frame(head: bytes) -> tuple[int, int]:
    """Return length in bytes and layer (0: AAC) of the MPEG frame at the start, or (0, -1).

    Raw PCM may begin with the same two bytes: the caller checks that the next frame is where this
    header puts it (ISO 13818-3, 13818-7).
    """
    if len(head) < 7 or head[0] != 0xFF or head[1] & 0xE0 != 0xE0:
        return 0, -1
    version, layer = head[1] >> 3 & 3, head[1] >> 1 & 3
    if head[1] & 0xF6 == 0xF0:
        return (head[3] & 3) << 11 | head[4] << 3 | head[5] >> 5, 0
    kbps = KBPS[3 if version == 3 else 2][head[2] >> 4]
    rate = head[2] >> 2 & 3
    if version == 1 or layer != 1 or rate == 3 or not kbps:
        return 0, -1
    rate_hz = MPEG_HZ[rate] // {3: 1, 2: 2, 0: 4}[version]
    return (144 if version == 3 else 72) * kbps * 1000 // rate_hz + (head[2] >> 1 & 1), layer


def wave_layout(head: bytes) -> tuple[Layout, int, int] | None:
    """Return layout, offset and length of a WAV's samples; None if its header does not end within
    `head`, or if numpy has no such samples (an encoded file)."""
    layout, offset = None, 12
    while head.startswith(b"RIFF") and len(head) >= offset + 8:
        name = head[offset : offset + 4]
        length = int.from_bytes(head[offset + 4 : offset + 8], "little")
        offset += 8
        if name == b"data":
            return (layout, offset, length) if layout else None
        if name == b"fmt " and len(head) >= offset + 26:
            tag, channels, rate_hz, _, _, bits = struct.unpack_from("<HHIIHH", head, offset)
            if tag == EXTENSIBLE and length >= 26:
                (tag,) = struct.unpack_from("<H", head, offset + 24)
            dtype = WAV_DTYPES.get((tag, bits))
            if dtype and 0 < channels <= MAX_CHANNELS:
                layout = Layout(dtype, rate_hz, channels)
        offset += length
        if length % 2 and head[offset : offset + 4] != b"data":  # not all writers pad
            offset += 1
    return None


def name_if_not_sound(head: bytes) -> str:
    """Return what supposed raw PCM is by its beginning; "" if it may be sound."""
    if not head:
        return "nothing"
    text = head.decode("latin-1")
    for beginning, kind in NO_SOUND.items():
        if re.match(beginning, text, re.DOTALL):
            return kind
    letters = "".join(head.decode("utf-8", "ignore").split())
    spaces = sum(map(head.count, b" \t\n\r\f"))
    if (
        len(head) >= MIN_TEXT_BYTES
        and letters.isprintable()
        and len(letters.encode()) + spaces > len(head) - 4
    ):
        return "text"
    samples = np.frombuffer(head[: len(head) & ~1], "<i2").astype(np.float64)
    if len(samples) < HEAD // 4 or samples.std() < LOUD_RMS:
        return ""
    correlation = abs(np.corrcoef(samples[1:], samples[:-1])[0, 1])
    return "" if correlation > SOUND_CORRELATION else "compressed or encrypted bytes"
