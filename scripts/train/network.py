"""Whisper's network in PyTorch, small, with parameter names as Hugging Face writes them.

Shapes: B windows, T mel frames (10 ms), P = T / 2 encoder positions (20 ms), D = d_model, L tokens.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

LAYER_NORM_EPSILON = 1e-5
STEM_GAIN = 5.0
"""The stem starts this much louder than PyTorch's default, else the sinusoids swamp the sound."""


@dataclass(frozen=True, slots=True)
class NetworkSize:
    """Everything that fixes the network's shapes, named as in Hugging Face's config.json."""

    vocab_size: int
    d_model: int = 128
    encoder_layers: int = 4
    decoder_layers: int = 1
    encoder_attention_heads: int = 4
    decoder_attention_heads: int = 4
    encoder_ffn_dim: int = 512
    decoder_ffn_dim: int = 512
    num_mel_bins: int = 80
    max_source_positions: int = 500
    max_target_positions: int = 112

    def as_dict(self) -> dict[str, int]:
        """The fields by name, for config.json and checkpoints."""
        return asdict(self)


def sinusoids(positions: int, d_model: int) -> Tensor:
    """Whisper's fixed encoder positions, (positions, d_model) float32: sines, then cosines."""
    step = math.log(10_000) / (d_model // 2 - 1)
    rates = torch.exp(-step * torch.arange(d_model // 2))
    angles = torch.arange(positions)[:, None] * rates[None, :]
    return torch.cat([angles.sin(), angles.cos()], dim=1)


class Attention(nn.Module):  # type: ignore[misc]  # mypy does not follow torch
    """Multi-head attention; the key projection has no bias, as in Whisper.

    `weights` (B, heads, L, S) is where the last queries looked, in training and if not causal.
    """

    def __init__(self, d_model: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.weights: Tensor | None = None
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model, bias=False)
        self.v_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)

    def _split(self, x: Tensor) -> Tensor:
        """(B, L, D) as (B, heads, L, D / heads)."""
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)

    def keys_values(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of `states` (B, S, D), each (B, heads, S, D / heads)."""
        return self._split(self.k_proj(states)), self._split(self.v_proj(states))

    def attend(self, x: Tensor, keys: Tensor, values: Tensor, causal: bool = False) -> Tensor:
        """What `x` (B, L, D) gathers from keys and values, (B, L, D)."""
        queries = self._split(self.q_proj(x))
        if causal:
            mixed = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        else:  # PyTorch's fused attention is slow on a CPU in bfloat16: matrix products are faster
            scores = (queries * queries.shape[-1] ** -0.5) @ keys.transpose(-1, -2)
            weights = scores.softmax(dim=-1)
            self.weights = weights if self.training else None
            mixed = weights.to(values.dtype) @ values
        return self.out_proj(mixed.transpose(1, 2).reshape(x.shape))

    def forward(self, x: Tensor, causal: bool = False) -> Tensor:
        """Self-attention of `x` (B, L, D), (B, L, D)."""
        return self.attend(x, *self.keys_values(x), causal=causal)


class EncoderLayer(nn.Module):  # type: ignore[misc]  # mypy does not follow torch
    """Pre-norm self-attention and feed-forward with exact GELU."""

    def __init__(self, d_model: int, heads: int, ffn_dim: int) -> None:
        super().__init__()
        self.self_attn = Attention(d_model, heads)
        self.self_attn_layer_norm = nn.LayerNorm(d_model, eps=LAYER_NORM_EPSILON)
        self.fc1 = nn.Linear(d_model, ffn_dim)
        self.fc2 = nn.Linear(ffn_dim, d_model)
        self.final_layer_norm = nn.LayerNorm(d_model, eps=LAYER_NORM_EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        """(B, P, D) to (B, P, D)."""
        x = x + self.self_attn(self.self_attn_layer_norm(x))
        return x + self.fc2(F.gelu(self.fc1(self.final_layer_norm(x))))


class DecoderLayer(nn.Module):  # type: ignore[misc]  # mypy does not follow torch
    """Pre-norm causal self-attention, cross-attention and feed-forward."""

    def __init__(self, d_model: int, heads: int, ffn_dim: int) -> None:
        super().__init__()
        self.self_attn = Attention(d_model, heads)
        self.self_attn_layer_norm = nn.LayerNorm(d_model, eps=LAYER_NORM_EPSILON)
        self.encoder_attn = Attention(d_model, heads)
        self.encoder_attn_layer_norm = nn.LayerNorm(d_model, eps=LAYER_NORM_EPSILON)
        self.fc1 = nn.Linear(d_model, ffn_dim)
        self.fc2 = nn.Linear(ffn_dim, d_model)
        self.final_layer_norm = nn.LayerNorm(d_model, eps=LAYER_NORM_EPSILON)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """(B, L, D) and the window's cross keys and values to (B, L, D)."""
        x = x + self.self_attn(self.self_attn_layer_norm(x), causal=True)
        x = x + self.encoder_attn.attend(self.encoder_attn_layer_norm(x), keys, values)
        return x + self.fc2(F.gelu(self.fc1(self.final_layer_norm(x))))


class Encoder(nn.Module):  # type: ignore[misc]  # mypy does not follow torch
    """Mel to encoder states."""

    def __init__(self, size: NetworkSize) -> None:
        super().__init__()
        d = size.d_model
        self.conv1 = nn.Conv1d(size.num_mel_bins, d, 3, padding=1)
        self.conv2 = nn.Conv1d(d, d, 3, stride=2, padding=1)
        self.embed_positions = nn.Embedding(size.max_source_positions, d)
        self.embed_positions.weight = nn.Parameter(
            sinusoids(size.max_source_positions, d), requires_grad=False
        )
        self.layers = nn.ModuleList(
            EncoderLayer(d, size.encoder_attention_heads, size.encoder_ffn_dim)
            for _ in range(size.encoder_layers)
        )
        self.layer_norm = nn.LayerNorm(d, eps=LAYER_NORM_EPSILON)
        with torch.no_grad():
            self.conv1.weight.mul_(STEM_GAIN)
            self.conv2.weight.mul_(STEM_GAIN)

    def forward(self, mel: Tensor, start: Tensor | None = None) -> Tensor:
        """Encoder states (B, P, D) of `mel` (B, T, num_mel_bins) float32.

        `start` (B,) int64 is the position of each window's first state: a short clip learns every
        place of the full window. Left out, it is 0.
        """
        x = F.gelu(self.conv1(mel.transpose(1, 2)))
        x = F.gelu(self.conv2(x)).transpose(1, 2)
        places = torch.arange(x.shape[1])
        if start is not None:
            places = start[:, None] + places
        x = x + self.embed_positions.weight[places]
        for layer in self.layers:
            x = layer(x)
        return self.layer_norm(x)


class Decoder(nn.Module):  # type: ignore[misc]  # mypy does not follow torch
    """Tokens and encoder states to logits, with tied token embedding and learned positions."""

    def __init__(self, size: NetworkSize) -> None:
        super().__init__()
        d = size.d_model
        self.embed_tokens = nn.Embedding(size.vocab_size, d)
        self.embed_positions = nn.Embedding(size.max_target_positions, d)
        self.layers = nn.ModuleList(
            DecoderLayer(d, size.decoder_attention_heads, size.decoder_ffn_dim)
            for _ in range(size.decoder_layers)
        )
        self.layer_norm = nn.LayerNorm(d, eps=LAYER_NORM_EPSILON)
        nn.init.normal_(self.embed_tokens.weight, std=d**-0.5)
        nn.init.normal_(self.embed_positions.weight, std=0.02)

    def forward(self, tokens: Tensor, states: Tensor) -> Tensor:
        """Logits (B, L, vocab_size) of `tokens` (B, L) int64 given `states` (B, P, D)."""
        cross = [layer.encoder_attn.keys_values(states) for layer in self.layers]
        return self.step(tokens, cross)

    def step(self, tokens: Tensor, cross: list[tuple[Tensor, Tensor]]) -> Tensor:
        """As `forward`, with each layer's cross keys and values already computed."""
        x = self.embed_tokens(tokens) + self.embed_positions.weight[: tokens.shape[1]]
        for layer, (keys, values) in zip(self.layers, cross, strict=True):
            x = layer(x, keys, values)
        return F.linear(self.layer_norm(x), self.embed_tokens.weight)


class Whisper(nn.Module):  # type: ignore[misc]  # mypy does not follow torch
    """Encoder and decoder under Hugging Face's prefix `model.`, and two heads for training only."""

    def __init__(self, size: NetworkSize, phones: int) -> None:
        super().__init__()
        self.size = size
        self.model = nn.Module()
        self.model.encoder = Encoder(size)
        self.model.decoder = Decoder(size)
        self.phone_head = nn.Linear(size.d_model, phones)
        self.piece_head = nn.Linear(size.d_model, size.vocab_size)

    def looked_at(self) -> list[Tensor]:
        """Each decoder layer's cross-attention of the last forward, (B, heads, L, P), once."""
        layers = [layer.encoder_attn for layer in self.decoder.layers]
        found = [layer.weights for layer in layers]
        for layer in (module for module in self.modules() if isinstance(module, Attention)):
            layer.weights = None
        return [weights for weights in found if weights is not None]

    @property
    def encoder(self) -> Encoder:
        """The encoder."""
        found: Encoder = self.model.encoder
        return found

    @property
    def decoder(self) -> Decoder:
        """The decoder."""
        found: Decoder = self.model.decoder
        return found
