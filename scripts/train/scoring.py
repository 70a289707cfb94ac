"""Greedy decoding of windows and word error rates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rigs.word_errors import word_error_rate
from torch import Tensor
from train.features import HOP, PRE_ROLL_S
from train.network import Whisper
from train.plans import WINDOW_FRAMES
from train.shards import Bank
from train.wordpieces import Wordpieces

from appliance.infer.mel import log_mel


def window_of(sound: NDArray[np.float32], lead_s: float) -> NDArray[np.float32]:
    """`sound` (n,) behind `lead_s` of zeros, cut or filled with zeros to 10 s."""
    at = int(lead_s * HOP * 100)
    audio = np.zeros(WINDOW_FRAMES * HOP, np.float32)
    part = sound[: len(audio) - at]
    audio[at : at + len(part)] = part
    return audio


@torch.inference_mode()  # type: ignore[untyped-decorator]  # mypy does not follow torch
def _greedy(
    model: Whisper, mel: Tensor, pieces: Wordpieces, limit: int
) -> tuple[list[list[int]], list[bool]]:
    states = model.encoder(mel)
    cross = [layer.encoder_attn.keys_values(states) for layer in model.decoder.layers]
    tokens = torch.tensor([pieces.prompt]).repeat(len(mel), 1)
    prompt = len(pieces.prompt)
    ended = torch.zeros(len(mel), dtype=torch.bool)
    specials = torch.zeros(pieces.size)
    specials[pieces.end_of_text + 1 :] = -torch.inf
    for _ in range(limit):
        logits = model.decoder.step(tokens, cross)[:, -1] + specials
        best = logits.argmax(dim=-1).masked_fill(ended, pieces.end_of_text)
        ended |= best == pieces.end_of_text
        tokens = torch.cat([tokens, best[:, None]], dim=1)
        if bool(ended.all()):
            break
    rows = [row[prompt:].tolist() for row in tokens]
    texts = [
        row[: row.index(pieces.end_of_text)] if pieces.end_of_text in row else row for row in rows
    ]
    return texts, ended.tolist()


def transcribe(
    model: Whisper, pieces: Wordpieces, audio: Sequence[NDArray[np.float32]], batch: int = 16
) -> tuple[list[str], list[bool]]:
    """Texts of 10 s windows (160000,) float32, and whether each reached end-of-text."""
    model.eval()
    texts: list[str] = []
    ended: list[bool] = []
    limit = model.size.max_target_positions - len(pieces.prompt) - 1
    for at in range(0, len(audio), batch):
        mels = [log_mel(sound, frames=WINDOW_FRAMES) for sound in audio[at : at + batch]]
        ids, done = _greedy(model, torch.from_numpy(np.stack(mels)), pieces, limit)
        texts += [pieces.decode(row) for row in ids]
        ended += done
    model.train()
    return texts, ended


def hearing(model: Whisper, pieces: Wordpieces, bank_folder: Path, count: int) -> str:
    """One line: WER in 10 s windows of up to `count` clean utterances of `dev`, `unseen` and
    `people`, where the bank has such shards.
    """
    parts = []
    for split in ("dev", "unseen", "people"):
        bank = Bank(bank_folder, split)
        bank.join(bank.on_disk()[:1])
        if not len(bank):
            continue
        chosen = range(min(count, len(bank)))
        texts = [bank.text(i) for i in chosen]
        sounds = [bank.utterance(i).audio.astype(np.float32) / np.float32(32768) for i in chosen]
        heard, ended = transcribe(model, pieces, [window_of(s, PRE_ROLL_S) for s in sounds])
        rate = word_error_rate(texts, heard)
        parts.append(f"{split} WER {rate:.1f}%, {len(ended) - sum(ended)} endless")
        parts += [f"[{a!r} heard {b!r}]" for a, b in list(zip(texts, heard, strict=True))[:1]]
    return " ".join(parts)
