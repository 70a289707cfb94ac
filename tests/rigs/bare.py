"""The command where nothing runs a model, as with the package roomscribe-satellite."""

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
        if name.partition(".")[0] in ("onnx", "onnxruntime", "requests", "tqdm"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""
    + MAIN,
)
"""What Python runs in place of `-m appliance`."""
