"""What all tests share: the rigs' fixtures, and the model that they run with."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

pytest_plugins = ["rigs.models", "rigs.disks", "rigs.hailo"]

# whatever model this machine's user has chosen, the tests run with the built-in one
os.environ["ROOMSCRIBE_MODELS"] = str(Path(tempfile.gettempdir()) / "roomscribe-tests-no-models")
