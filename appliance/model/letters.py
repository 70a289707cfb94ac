"""The letters in which a vocabulary writes bytes."""

from __future__ import annotations

from functools import cache


@cache
def byte_of_letter() -> dict[str, int]:
    """Return the byte of each of GPT-2's letters (openai/gpt-2, encoder.py, bytes_to_unicode).

    Printable Latin-1 stands for itself; the other 68 bytes are the letters from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)) - set(printable))
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(0x100 + index): byte for index, byte in enumerate(others)}
