"""Training checkpoints, written so that a cut never leaves a broken one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from train.network import NetworkSize, Whisper
from train.optimizer import FlatOptimizer


def save_checkpoint(
    path: Path,
    model: Whisper,
    optimizer: FlatOptimizer,
    average: Tensor | None,
    progress: dict[str, Any],
) -> None:
    """Write model, averaged weights, optimiser and progress; the old file stays until done."""
    current = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    averaged = current
    flat = optimizer.flat.clone()
    if average is not None:
        optimizer.flat.copy_(average)
        averaged = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        optimizer.flat.copy_(flat)
    content = {
        **progress,
        "model": current,
        "average_model": averaged,
        "average": flat if average is None else average,
        "optimizer": optimizer.state(),
    }
    fresh = path.with_suffix(".new")
    torch.save(content, fresh)
    fresh.replace(path)


def load_checkpoint(path: Path) -> dict[str, Any] | None:
    """The checkpoint at `path`, or None where there is none."""
    if not path.exists():
        return None
    content: dict[str, Any] = torch.load(path, weights_only=True)
    return content


def load_model(path: Path) -> Whisper:
    """The network at `path` with its averaged weights."""
    saved = load_checkpoint(path)
    if saved is None:
        raise FileNotFoundError(f"no checkpoint at {path}; run train.train first")
    model = Whisper(NetworkSize(**saved["size"]), saved["phones"])
    model.load_state_dict(saved["average_model"])
    return model
