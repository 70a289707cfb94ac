"""A stand-in for HailoRT's Python package, as strict as the real one: for tests alone.

$HAILO_SIMULATOR names a folder with what the chip is and does (see control.py). Classes,
signatures, defaults and refusals follow the published sources of HailoRT 4.19 to 5.2, and what is
known of 5.4.
"""

import os
import signal

from hailo_platform.pyhailort import _pyhailort
from hailo_platform.pyhailort.pyhailort import (
    HEF,
    Device,
    FormatType,
    HailoRTException,
    HailoSchedulingAlgorithm,
    VDevice,
)

if _pyhailort.setting("crash"):
    os.kill(os.getpid(), signal.SIGSEGV)
if _pyhailort.setting("import_error"):
    raise RuntimeError(_pyhailort.setting("import_error"))

__version__ = _pyhailort.setting("version")
__all__ = ["HEF", "Device", "FormatType", "HailoRTException", "HailoSchedulingAlgorithm", "VDevice"]
