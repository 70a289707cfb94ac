"""Where things lie in a checkout, and how a program of ours finds its imports there."""

from __future__ import annotations

import os
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
ROOT = TESTS.parent
GOLDEN = TESTS / "golden"
SPEECH = TESTS / "speech"
HOME_EN = ROOT / "appliance" / "bundles" / "home-en"


def environment(**more: str) -> dict[str, str]:
    """For `python -m PACKAGE.MODULE` of appliance/, tests/ and scripts/ in another process."""
    folders = (ROOT, TESTS, ROOT / "scripts")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders)), **more}
