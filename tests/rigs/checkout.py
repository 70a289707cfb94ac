"""Where things lie in a checkout."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
ROOT = TESTS.parent
GOLDEN = TESTS / "golden"
SPEECH = TESTS / "speech"
HOME_EN = ROOT / "appliance" / "bundles" / "home-en"
