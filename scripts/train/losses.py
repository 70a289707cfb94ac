"""What training makes small: errors in the next token, in each position's phone and word piece, and
in where the decoder looks. All but the first learn from the synthesisers' phone times; of people
the pieces are known, not when they are spoken, and every way to place them counts (CTC).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from train.batches import Batch
from train.features import IGNORED
from train.network import Whisper
from train.wordpieces import PIECES

LABEL_SMOOTHING = 0.05
GUIDED_HEADS = 2
"""Of each decoder layer's cross-attention; the others look where they like."""
GUIDE_WIDTH = 8.0
"""Standard deviation, in positions, of the place where a piece is taken to be spoken."""


@dataclass(frozen=True, slots=True)
class Losses:
    """Scalars: per token, twice per encoder position, and per guided look."""

    token: Tensor
    phone: Tensor
    piece: Tensor
    guide: Tensor

    def every(self) -> Tensor:
        """The four in this order, (4,) float32."""
        return torch.stack([self.token, self.phone, self.piece, self.guide])


def guide(looked_at: list[Tensor], places: Tensor) -> Tensor:
    """How little the guided heads look at `places` (B, L), in -log of the share; a scalar.

    Without it the decoder is slow to find that speech is read from front to back.
    """
    known = ~places.isnan()
    positions = torch.arange(looked_at[0].shape[-1])
    away = (positions - places.nan_to_num()[:, :, None]) / GUIDE_WIDTH
    near = torch.exp(-0.5 * away.square())[:, None]
    total = torch.zeros(())
    for weights in looked_at:
        share = (weights[:, :GUIDED_HEADS].float() * near).sum(dim=-1)
        total = total - ((share + 1e-4).log().mean(dim=1) * known).sum()
    return total / (known.sum().clamp(min=1) * len(looked_at))


def _spelling(logits: Tensor, batch: Batch) -> Tensor:
    """Error in the piece of a position, a scalar; `logits` (B, P, vocabulary) float32.

    Silence is end-of-text, which stands behind the pieces; it is CTC's blank where times lack.
    """
    positions = logits.shape[1]
    known = F.cross_entropy(
        logits.flatten(0, 1), batch.spelled.flatten(), ignore_index=IGNORED, reduction="sum"
    )
    count = (batch.spelled != IGNORED).sum()
    if bool(batch.untimed.any()):
        targets = batch.targets[batch.untimed]
        spoken = (targets >= 0) & (targets < PIECES)
        rows = len(targets)
        known = known + F.ctc_loss(
            logits[batch.untimed].log_softmax(-1).transpose(0, 1),
            targets[spoken],
            torch.full((rows,), positions),
            spoken.sum(dim=1),
            blank=PIECES,
            reduction="sum",
            zero_infinity=True,
        )
        count = count + rows * positions
    return known / count


def losses(model: Whisper, batch: Batch, heads_apart: bool = False) -> Losses:
    """The losses of `batch`, network in bfloat16.

    `heads_apart`: the phone and piece heads learn, and the encoder does not hear of it.
    """
    with torch.autocast("cpu", torch.bfloat16):
        states = model.encoder(batch.mel, batch.start)
        logits = model.decoder(batch.tokens, states)
        looked_at = model.looked_at()
        heard = states.detach() if heads_apart else states
        phone_logits = model.phone_head(heard)
        piece_logits = model.piece_head(heard)
    token = F.cross_entropy(
        logits.float().flatten(0, 1),
        batch.targets.flatten(),
        ignore_index=IGNORED,
        label_smoothing=LABEL_SMOOTHING,
    )
    phone = F.cross_entropy(
        phone_logits.float().flatten(0, 1),
        batch.phones.flatten(),
        ignore_index=IGNORED,
        reduction="sum",
    ) / (batch.phones != IGNORED).sum().clamp(min=1)
    piece = _spelling(piece_logits.float(), batch)
    return Losses(token, phone, piece, guide(looked_at, batch.places))
