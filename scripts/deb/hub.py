"""Run by the container test: a hub on which whisper-tiny is a small one with random weights.

python hub.py FILE    writes the hub's address to FILE, and answers until it is ended.
"""

from __future__ import annotations

import signal
import sys
import tempfile
from pathlib import Path

from rigs.hub import local_hub
from rigs.models import random_weights, sized, write_checkpoint


def main() -> None:
    """Serves openai/whisper-tiny."""
    config = sized(16, (1, 1), 2, 140, 500, 60)
    with tempfile.TemporaryDirectory() as scratch, local_hub() as hub:
        folder = write_checkpoint(Path(scratch) / "tiny", config, random_weights(config, 6))
        hub.add_folder("openai/whisper-tiny", folder)
        Path(sys.argv[1]).write_text(hub.endpoint, encoding="ascii")
        signal.pause()


if __name__ == "__main__":
    main()
