"""The command on a machine without what runs a model, as the package roomscribe-ear leaves it."""

from __future__ import annotations

MAIN = """
from appliance.__main__ import main

sys.exit(main())
"""
PROGRAM = (
    "-c",
    """
import importlib.abc, sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("onnx", "onnxruntime"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""
    + MAIN,
)
"""What Python runs in place of `-m appliance`."""
