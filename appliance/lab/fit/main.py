"""`fit_model`: fits a bundle's confidence to recordings and corrections of the user.

    right and wrong texts -> calibration -> cross-validation -> bundle.json

Only what is better on sentences that it was not fitted to is written.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from appliance import build_version
from appliance.config import Settings
from appliance.errors import ConfigError, ModelError
from appliance.infer import open_transcriber
from appliance.lab.fit.choices import Example, fit_texts
from appliance.lab.fit.recordings import is_same, listen, spoken_recordings, words
from appliance.model import MANIFEST, Bundle, is_packaged, library, load_bundle, read_json
from appliance.system import write_whole

TOKENS_PER_WORD = 1.3
"""The log has no number of tokens."""


@dataclass(frozen=True, slots=True)
class FitRequest:
    """What to fit a model to."""

    folder: Path
    recordings: Path | None = None
    """See `spoken_recordings`."""
    corrections: Path | None = None
    """See `read_corrections`."""


def fit_model(
    request: FitRequest,
    settings: Settings,
    advance: Callable[[int, int], object] = lambda _done, _total: None,
) -> dict[str, Any]:
    """Fit a bundle and add the result to its bundle.json; return what was added.

    `fitted` in it has the figures; without `calibration`, nothing was better, and the bundle is as
    before. `advance` is called with the recordings that were heard and
    their number. Raises RoomscribeError; then the bundle is as before, too.
    """
    folder = request.folder
    if is_packaged(folder):
        raise ConfigError(
            f"{folder.name} belongs to the package. Name a model that you added, or a copy of its "
            "folder."
        )
    bundle = load_bundle(folder)
    before = (folder / MANIFEST).read_bytes()
    corrected = read_corrections(request.corrections, bundle) if request.corrections else []
    texts = list[Example]()
    if request.recordings:
        recordings = spoken_recordings(request.recordings)
        with open_transcriber(settings, bundle=bundle) as transcriber:
            texts = listen(transcriber, settings, recordings, advance)
    calibration, of_texts = fit_texts([*texts, *corrected], bundle.calibration)
    facts: dict[str, Any] = {"calibration": asdict(calibration)} if calibration else {}
    facts["fitted"] = {
        "version": build_version(),
        "date": datetime.now(UTC).date().isoformat(),
        "recordings": len(texts),
        "corrections": len(corrected),
        "confidence": of_texts,
    }
    if calibration:
        write_facts(folder, before, facts)
    return facts


def write_facts(folder: Path, before: bytes, facts: dict[str, Any]) -> None:
    """Add facts to bundle.json unless it differs from `before`. Raises ModelError."""
    file = folder / MANIFEST
    with library.model_errors(file):
        if file.read_bytes() != before:
            raise ModelError(
                f"{folder}: the model was replaced while it was being fitted; fit it again"
            )
        values = read_json(file) | facts
        text = json.dumps(values, ensure_ascii=False, indent=1) + "\n"
        write_whole(file, text, mode=file.stat().st_mode & 0o777)


def read_corrections(file: Path, bundle: Bundle) -> list[Example]:
    """Return the texts of a bundle that somebody corrected or confirmed, from what
    `roomscribe log --json` prints. Raises ConfigError, which names the line."""
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read: {getattr(error, 'strerror', error)}") from error
    found = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            text, spoken, mean = row["text"], row.get("correction"), row["avg_logprob"]
            if row["model"] != bundle.name or not spoken:
                continue
            count = round(TOKENS_PER_WORD * len(words(text))) + 1
            now = bundle.calibration.confidence([float(mean)] * count)
            features = (float(mean), float(mean) * count)
            found.append(Example(is_same(text, spoken), features, spoken, now))
        except (AttributeError, LookupError, RecursionError, TypeError, ValueError):
            raise ConfigError(
                f"{file}, line {number}: expected a transcript with a correction, as "
                "`roomscribe log --json` prints them; write the file with that command"
            ) from None
    return found
