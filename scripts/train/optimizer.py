"""One flat parameter vector, averaged over processes, moved by Muon (matrices) and AdamW (rest).

Muon: https://kellerjordan.github.io/posts/muon/ (momentum, orthogonalised by Newton-Schulz).
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_STEPS = 5
MOMENTUM = 0.95


def orthogonalise(x: Tensor) -> Tensor:
    """Nearest semi-orthogonal matrices of `x` (k, rows, columns), rows <= columns, roughly."""
    a, b, c = NEWTON_SCHULZ
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    x = x.bfloat16()
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.transpose(1, 2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.float()


class FlatOptimizer:
    """All trainable parameters as views of one vector, their gradients as views of another."""

    def __init__(
        self, model: nn.Module, rate: float, matrix_rate: float, decay: float, clip: float
    ) -> None:
        """`rate` and `matrix_rate` are AdamW's and Muon's peak rates; matrix_rate 0: no Muon."""
        self.rate, self.matrix_rate, self.decay, self.clip = rate, matrix_rate, decay, clip
        self.processes = dist.get_world_size() if dist.is_initialized() else 1
        self.process = dist.get_rank() if dist.is_initialized() else 0
        named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        matrices = [p for n, p in named if matrix_rate > 0 and p.ndim == 2 and ".layers." in n]
        matrices.sort(key=lambda p: (p.numel(), p.shape[0]))
        chosen = {id(p) for p in matrices}
        others = [p for _, p in named if id(p) not in chosen]
        self.parameters = [*matrices, *others]
        total = sum(p.numel() for p in self.parameters)
        self.flat = torch.empty(total)
        self.gradient = torch.zeros(total + 1)
        self._groups: list[tuple[int, int, int, int]] = []
        at = 0
        for p in self.parameters:
            n = p.numel()
            self.flat[at : at + n] = p.detach().reshape(-1)
            p.data = self.flat[at : at + n].view(p.shape)
            p.grad = self.gradient[at : at + n].view(p.shape)
            if id(p) in chosen:
                rows, columns = p.shape
                if self._groups and self._groups[-1][2:] == (rows, columns):
                    first, count = self._groups[-1][:2]
                    self._groups[-1] = (first, count + 1, rows, columns)
                else:
                    self._groups.append((at, 1, rows, columns))
            at += n
        self._edge = sum(p.numel() for p in matrices)
        self.momentum = torch.zeros(self._edge)
        rest = nn.Parameter(self.flat[self._edge :])
        rest.grad = self.gradient[self._edge : -1]
        self._adam = torch.optim.AdamW(
            [rest], lr=rate, betas=(0.9, 0.98), weight_decay=decay, fused=True
        )

    def share(self, number: float) -> tuple[float, float]:
        """Averages the gradients over processes; their norm, and process 0's `number`."""
        self.gradient[-1] = number * self.processes if self.process == 0 else 0.0
        if self.processes > 1:
            dist.all_reduce(self.gradient)
            self.gradient /= self.processes
        return float(self.gradient[:-1].norm()), float(self.gradient[-1])

    def step(self, scale: float, norm: float) -> None:
        """One update at `scale` (0..1) times the peak rates; `norm` is the gradient's."""
        self.gradient *= min(1.0, self.clip / (norm + 1e-9))
        if self._groups:
            self._move_matrices(scale)
        for group in self._adam.param_groups:
            group["lr"] = self.rate * scale
        self._adam.step()

    def _move_matrices(self, scale: float) -> None:
        gradient = self.gradient[: self._edge]
        self.momentum.mul_(MOMENTUM).add_(gradient)
        wanted = gradient.add(self.momentum, alpha=MOMENTUM)
        update = torch.zeros(self._edge)
        for first, count, rows, columns in self._groups:
            low = count * self.process // self.processes
            high = count * (self.process + 1) // self.processes
            size = rows * columns
            part = slice(first + low * size, first + high * size)
            stack = wanted[part].view(high - low, rows, columns)
            tall = rows > columns
            moved = orthogonalise(stack.transpose(1, 2) if tall else stack)
            moved = moved.transpose(1, 2) if tall else moved
            update[part] = moved.reshape(-1) * max(1.0, rows / columns) ** 0.5
        if self.processes > 1:
            dist.all_reduce(update)
        matrices = self.flat[: self._edge]
        rate = self.matrix_rate * scale
        matrices.mul_(1 - rate * self.decay).sub_(update, alpha=rate)

    def zero(self) -> None:
        """Forget the gradients."""
        self.gradient.zero_()

    def state(self) -> dict[str, object]:
        """Momentum and moments, for a checkpoint."""
        return {"momentum": self.momentum, "adam": self._adam.state_dict()}

    def load(self, state: dict[str, object]) -> None:
        """Take over a checkpoint's `state`."""
        self.momentum.copy_(state["momentum"])
        self._adam.load_state_dict(state["adam"])
