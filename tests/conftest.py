"""What all tests share."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from rigs.models import bundle, bundle_folder, checkpoint_folder

__all__ = ["bundle", "bundle_folder", "checkpoint_folder"]

# whatever model this machine's user has chosen, the tests run with the built-in one
os.environ["ROOMSCRIBE_MODELS"] = str(Path(tempfile.gettempdir()) / "roomscribe-tests-no-models")
