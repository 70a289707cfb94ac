"""Where things lie in a checkout, and beside it; scripts use it on machines without pytest, too."""

from __future__ import annotations

import os
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
ROOT = TESTS.parent
GOLDEN = TESTS / "golden"
SPEECH = TESTS / "speech"
BUILT_IN = ROOT / "appliance" / "bundles" / "tiny.en"
"""The built-in model, which scripts/setup.sh makes; see rigs.needs."""
TINY_EN = BUILT_IN
SHARED = Path(os.environ.get("ROOMSCRIBE_SHARED") or ROOT.parent / "shared")
"""Recordings, models and published values that are too large for the repository, or not ours."""


def shared(*parts: str) -> Path:
    """A file or folder of SHARED; skips the test, or the module being imported, without it."""
    path = SHARED.joinpath(*parts)
    if not path.exists():
        import pytest

        reason = f"no recordings: {'/'.join(parts)} (set ROOMSCRIBE_SHARED)"
        pytest.skip(reason, allow_module_level=True)
    return path


def environment(**more: str) -> dict[str, str]:
    """For `python -m PACKAGE.MODULE` of appliance/, tests/ and scripts/ in another process."""
    folders = (ROOT, TESTS, ROOT / "scripts")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders)), **more}
