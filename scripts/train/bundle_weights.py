"""A bundle's weights, so that training can go on from what was shipped. The heads that only
training uses are not in a bundle.
"""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from pathlib import Path

import torch
from torch import Tensor
from train.bundle_arrays import read_arrays
from train.network import NetworkSize


def read_weights(bundle: Path) -> tuple[NetworkSize, dict[str, Tensor]]:
    """Return the size of a bundle's network and its weights: see `read_arrays`."""
    config, arrays = read_arrays(bundle)
    weights = {name: torch.tensor(array) for name, array in arrays.items()}
    return NetworkSize(**asdict(config)), weights


def deepen(
    size: NetworkSize, weights: dict[str, Tensor], layers: int
) -> tuple[NetworkSize, dict[str, Tensor]]:
    """The network with `layers` encoder layers, saying what it said before: it can learn more.

    A new layer is a copy of the one below that adds nothing to the residual yet (its output
    projections are 0), as in Net2Net (https://arxiv.org/abs/1511.05641).
    """
    old = size.encoder_layers
    below = [layer * old // layers for layer in range(layers)]
    grown = {name: tensor for name, tensor in weights.items() if ".encoder.layers." not in name}
    for layer, source in enumerate(below):
        new = layer > 0 and below[layer - 1] == source
        pattern = re.compile(rf"(.*\.encoder\.layers\.){source}\.(.*)")
        for name, tensor in weights.items():
            if found := pattern.fullmatch(name):
                silent = new and found[2].startswith(("self_attn.out_proj.", "fc2."))
                grown[f"{found[1]}{layer}.{found[2]}"] = (
                    torch.zeros_like(tensor) if silent else tensor.clone()
                )
    return replace(size, encoder_layers=layers), grown
