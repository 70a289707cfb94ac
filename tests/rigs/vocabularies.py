"""The byte letters of GPT-2 and the published vocabularies, read apart from the product."""

import base64
from pathlib import Path

PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
OTHERS = [byte for byte in range(256) if byte not in PRINTABLE]
LETTERS = [chr(b) if b in PRINTABLE else chr(256 + OTHERS.index(b)) for b in range(256)]


def letters_of(data: bytes) -> str:
    """Bytes as GPT-2 writes them, built here from its definition."""
    return "".join(LETTERS[byte] for byte in data)


def published_ranks(file: Path) -> dict[int, bytes]:
    """Ids and bytes of a .tiktoken file."""
    lines = (line.split() for line in file.read_text().splitlines())
    return {int(rank): b"" if data == "=" else base64.b64decode(data) for data, rank in lines}
