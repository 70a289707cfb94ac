"""A hub for scripts/test-deb, whose whisper-tiny is a small model with random weights.

python hub.py FILE    writes the hub's address to FILE and serves until it is ended
"""

import signal
import sys
import tempfile
from pathlib import Path

from rigs.hub import local_hub
from rigs.models import random_weights, sized, write_checkpoint


def main() -> None:
    """Serve the model under its own name, and under that of a fine-tuned one in docs/."""
    config = sized(16, (1, 1), 2, 140, 500, 60)
    with tempfile.TemporaryDirectory() as scratch, local_hub() as hub:
        folder = write_checkpoint(Path(scratch) / "tiny", config, random_weights(config, 6))
        for name in ("openai/whisper-tiny", "name/whisper-fine-tune"):
            hub.add_folder(name, folder)
        Path(sys.argv[1]).write_text(hub.endpoint, encoding="ascii")
        signal.pause()


if __name__ == "__main__":
    main()
