"""Make tests/golden: results of transformers' Whisper for the parity tests.

    pip install torch==2.13.0 transformers safetensors
    PYTHONPATH=.:tests:scripts python -m generate.parity [--only tiny]

Run once, by a person; the tests themselves need no torch. Weights and inputs come from seeds
(tests/rigs/models.py), so that only results are stored.
"""

import argparse
import datetime
import platform
import sys
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from rigs.checkout import GOLDEN
from rigs.models import fingerprint, random_mel, random_weights
from rigs.parity_cases import CASES, INPUTS, STEPS, Case, log_sum
from rigs.plain_decoder import pad
from rigs.reference_whisper import Reference

from appliance.convert.tensors import Weights
from appliance.model.bundle import SILENCES, SILENT_MEL

LEAST_MARGIN = 2e-4
"""Between the best two tokens: twice the tolerance of the tests."""


def main() -> None:
    """Write one array file and one provenance file for each case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=[case.name for case in CASES])
    wanted = parser.parse_args().only
    torch.manual_seed(0)
    for case in CASES:
        if wanted in (None, case.name):
            make(case)


def make(case: Case) -> None:
    """Compute and write the golden values of one case."""
    weights = random_weights(case.config, case.seed)
    reference = Reference.build(case.config, weights, case.positions)
    silence = silence_of(case, weights)
    results: dict[str, list[NDArray[Any]]] = {"states": []}
    margin, scale, distinct = np.inf, 0.0, set()
    for index in range(INPUTS):
        mel = random_mel(case.config, 2 * case.positions, 1000 * case.seed + index)
        states = reference.encode(mel)
        results["states"].append(case.kept_states(states))
        padded = pad(states, silence, case.padded)
        for kind, heard in (("bare", states), ("padded", padded)):
            logits, tokens = reference.write(heard, case.prompt, STEPS)
            for name, values in (
                ("tokens", np.array(tokens, np.int32)),
                ("logits", logits[:, case.kept_ids]),
                ("peak", logits.max(axis=-1)),
                ("log_sum", log_sum(logits)),
            ):
                results.setdefault(f"{kind}_{name}", []).append(values)
            best = np.partition(logits[len(case.prompt) - 1 :], -2, axis=-1)[:, -2:]
            margin = min(margin, float((best[:, 1] - best[:, 0]).min()))
            scale = max(scale, float(np.abs(logits).max()))
            distinct.update(tokens)
        print(f"{case.name} {index + 1}/{INPUTS} {tokens[:8]}", flush=True)
    arrays = {name: np.stack(values) for name, values in results.items()}
    spread = float(arrays["bare_logits"].std())
    summary = (
        f"largest |logit| {scale:.2f}, standard deviation {spread:.2f}; smallest distance of the "
        f"best two {margin:.1e}; {len(distinct)} distinct tokens"
    )
    print(f"{case.name}: {summary}")
    if margin < LEAST_MARGIN:
        sys.exit(f"{case.name}: two tokens too close for any other machine: choose another seed")
    np.savez_compressed(GOLDEN / f"parity_{case.name}.npz", **arrays)  # type: ignore[arg-type]  # mypy fears a name "allow_pickle"
    (GOLDEN / f"parity_{case.name}.txt").write_text(describe(case, fingerprint(weights), summary))


def silence_of(case: Case, weights: Weights) -> NDArray[np.float32]:
    """Mean states of the positions behind the window, by transformers' encoder."""
    whole = Reference.build(case.config, weights, case.config.max_source_positions)
    shape = 2 * case.config.max_source_positions, case.config.num_mel_bins
    states = whole.encode(np.full(shape, SILENT_MEL, np.float32))
    parts = np.array_split(states[case.positions :], SILENCES)
    return np.stack([part.mean(axis=0) for part in parts])


def describe(case: Case, weights_sha256: str, summary: str) -> str:
    """The provenance of one case's values."""
    made = datetime.datetime.now(datetime.UTC).date()
    return (
        f"made by: scripts/generate/parity.py on {made}, {platform.machine()}\n"
        f"versions: python {platform.python_version()}, numpy {np.__version__}, "
        f"torch {torch.__version__}, transformers {transformers.__version__}\n"
        f"model: transformers' WhisperForConditionalGeneration, eager attention, fp32\n"
        f"shape: {case.config}\n"
        f"window: {case.positions} positions, padded to {case.padded}\n"
        f"seeds: weights {case.seed}, inputs {1000 * case.seed} to "
        f"{1000 * case.seed + INPUTS - 1}\n"
        f"weights sha256: {weights_sha256}\n"
        f"values: {summary}\n"
    )


if __name__ == "__main__":
    main()
