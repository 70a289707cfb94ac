"""The built-in model: what it is made of, and how.

    python -m appliance.convert.built_in CHECKPOINT OUT

So the package roomscribe-model-tiny-en is built; in a checkout, scripts/setup.sh does the same. The
weights are those of known.PINNED, which debian/model.txt names for the package.
"""

import os
import sys
from pathlib import Path

from appliance.convert.build import Recipe, build_bundle
from appliance.errors import ModelError
from appliance.model import BUILT_IN, WINDOW_S, load_bundle

RECIPE = Recipe(
    name=BUILT_IN,
    window_s=WINDOW_S,
    description="Whisper tiny.en",
    source="OpenAI's tiny.en, as converted by Systran (faster-whisper-tiny.en)",
    licence="MIT",
    quantize="int8",
)


def build_built_in(checkpoint: Path, out: Path) -> None:
    """Write the bundle folder `out` from the published weights, the same bytes on each machine, and
    verify it. Raises ModelError."""
    build_bundle(checkpoint, out, RECIPE)
    load_bundle(out)


def main() -> int:
    """Build the package's bundle; return the exit status."""
    checkpoint, out = map(Path, sys.argv[1:])
    try:
        build_built_in(checkpoint, out)
    except ModelError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_status
    return os.EX_OK


if __name__ == "__main__":
    sys.exit(main())
