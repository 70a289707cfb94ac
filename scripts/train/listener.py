"""Compute how likely a recording has given texts, with a bundle's network."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from train.bundle_weights import read_weights
from train.features import IGNORED, PRE_ROLL_S
from train.network import Whisper
from train.phones import PHONES
from train.plans import WINDOW_FRAMES
from train.scoring import window_of
from train.wordpieces import Wordpieces

from appliance.infer.mel import log_mel


class Listener:
    """A bundle's network, to tell how likely texts are."""

    def __init__(self, bundle: Path, pieces: Wordpieces) -> None:
        size, weights = read_weights(bundle)
        self._model = Whisper(size, len(PHONES)).eval()
        self._model.load_state_dict(weights, strict=False)
        self._pieces = pieces

    @torch.inference_mode()  # type: ignore[untyped-decorator]  # mypy does not follow torch
    def likelihoods(self, sound: NDArray[np.float32], texts: list[str]) -> NDArray[np.float32]:
        """Log-probability of each text, (n,), given `sound` (samples,) of at most 9.4 s."""
        prompt, end = self._pieces.prompt, self._pieces.end_of_text
        mel = log_mel(window_of(sound, PRE_ROLL_S), frames=WINDOW_FRAMES)
        states = self._model.encoder(torch.from_numpy(mel[None]))
        rows = [[*prompt, *self._pieces.encode(text), end] for text in texts]
        tokens = torch.full((len(rows), max(map(len, rows))), end)
        targets = torch.full_like(tokens, IGNORED)
        for i, row in enumerate(rows):
            tokens[i, : len(row)] = torch.tensor(row)
            targets[i, len(prompt) : len(row)] = tokens[i, len(prompt) : len(row)]
        cross = [
            tuple(
                part.expand(len(rows), -1, -1, -1)
                for part in layer.encoder_attn.keys_values(states)
            )
            for layer in self._model.decoder.layers
        ]
        scores = self._model.decoder.step(tokens[:, :-1], cross).log_softmax(-1)
        of_target = scores.gather(-1, targets[:, 1:].clamp(min=0)[..., None])[..., 0]
        found: NDArray[np.float32] = (of_target * (targets[:, 1:] != IGNORED)).sum(dim=1).numpy()
        return found

    def likeliest(self, sound: NDArray[np.float32], texts: list[str]) -> tuple[str, float]:
        """The likeliest of `texts` and its share of them all, 0 to 1."""
        scores = self.likelihoods(sound, texts)
        share = np.exp(scores - scores.max())
        best = int(scores.argmax())
        return texts[best], float(share[best] / share.sum())
