"""What is measured: one checkpoint, and the bundle that the product makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from appliance.benchmark.facts import Facts
from appliance.benchmark.random_model import SHAPES, write_random_checkpoint
from appliance.errors import ConfigError
from appliance.model.build import Recipe, build_bundle
from appliance.model.bundle import Bundle, load_bundle
from appliance.model.checkpoint import Checkpoint, load_checkpoint


@dataclass(frozen=True, slots=True)
class Subject:
    """The weights that every row runs."""

    name: str
    random: bool
    """True when the weights are made up: speed and memory are right, texts mean nothing."""
    folder: Path
    """The checkpoint's."""
    checkpoint: Checkpoint
    bundle: Bundle

    @property
    def facts(self) -> Facts:
        """What the rows need to know."""
        bundle, config = self.bundle, self.checkpoint.config
        return Facts(
            n_mels=bundle.n_mels,
            frames=bundle.frames,
            longest_frames=2 * config.max_source_positions,
            d_model=bundle.d_model,
            heads=bundle.heads,
            decoder_layers=bundle.decoder_layers,
            vocabulary_size=bundle.vocabulary_size,
            prompt=bundle.prompt,
            end_of_text=bundle.tokens.end_of_text,
            suppressed=bundle.suppressed,
            suppressed_first=bundle.suppressed_first,
        )


def make_subject(
    shape: str, checkpoint: Path | None, window_s: float, scratch: Path, quantize: str = "int8"
) -> Subject:
    """The random model of `shape` if one is given, else `checkpoint`, with the bundle for windows
    of `window_s` that `roomscribe model add` would build of it, in `scratch`.

    Raises ConfigError when neither is given, ModelError for a bad checkpoint.
    """
    if shape:
        folder = write_random_checkpoint(SHAPES[shape], scratch / "checkpoint")
        name = f"whisper-{shape}'s shape"
    elif checkpoint:
        folder, name = checkpoint, checkpoint.resolve().name
    else:
        raise ConfigError(
            "benchmark: expected a checkpoint, of which every row is made (an installed bundle has "
            "none in it); give --checkpoint FOLDER (`roomscribe model fetch` brings one), or "
            "--random-weights tiny"
        )
    recipe = Recipe(name="benchmark", window_s=window_s, quantize=quantize)
    build_bundle(folder, scratch / "bundle", recipe)
    bundle = load_bundle(scratch / "bundle")
    return Subject(name, bool(shape), folder, load_checkpoint(folder), bundle)


def wanted_rows(given: str, known: Sequence[str]) -> tuple[str, ...]:
    """The rows named in `given`, a list with commas; all when it is empty. Raises ConfigError."""
    names = tuple(name.strip() for name in given.split(",") if name.strip()) or tuple(known)
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(
            f"benchmark --rows: expected some of {', '.join(known)}, found {', '.join(unknown)}"
        )
    return names
