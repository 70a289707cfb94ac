"""What all tests share."""

from __future__ import annotations

import sys
from pathlib import Path

from bundles_fixture import bundle, bundle_folder, checkpoint_folder

__all__ = ["bundle", "bundle_folder", "checkpoint_folder"]

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
