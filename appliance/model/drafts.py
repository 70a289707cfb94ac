"""A folder written whole or not at all: built beside its place and moved there."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def drafted(out: Path) -> Iterator[Path]:
    """An empty folder that becomes `out` when the block ends well; one that is there is replaced.

    When it ends otherwise nothing is left of the draft, and `out` is as it was. Raises OSError.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as scratch:
        draft = Path(scratch) / "new"
        draft.mkdir()
        yield draft
        if out.exists():
            out.rename(Path(scratch) / "old")
        draft.rename(out)
