"""What a test needs of its machine; without it the test is skipped and says so."""

from __future__ import annotations

import os
import shutil

import pytest
from rigs import broker, microphone, nats

from appliance.store.folders import SHARED_MEMORY, is_in_memory

needs_broker = pytest.mark.skipif(bool(broker.missing()), reason=broker.missing() or "")
needs_nats = pytest.mark.skipif(bool(nats.missing()), reason=nats.missing() or "")
needs_microphone = pytest.mark.skipif(
    bool(microphone.missing_packages()),
    reason=f"not installed: {' '.join(microphone.missing_packages())}",
)
needs_mosquitto_sub = pytest.mark.skipif(
    not shutil.which("mosquitto_sub"), reason="not installed: mosquitto-clients"
)
needs_ffmpeg = pytest.mark.skipif(not shutil.which("ffmpeg"), reason="not installed: ffmpeg")
needs_memory = pytest.mark.skipif(
    not is_in_memory(SHARED_MEMORY) or not os.access(SHARED_MEMORY, os.W_OK),
    reason="no shared memory to keep a spool or a log in",
)
