"""Make tests/golden/hailo_*.txt: the operators of torch's own export of a Whisper, in order.

    pip install torch==2.13.0 transformers safetensors onnx onnxsim==0.4.36
    PYTHONPATH=.:tests:scripts python -m generate.hailo

Run once, by a person; the tests themselves need no torch. The network is transformers' with eager
attention, its two convolutions two-dimensional as Hailo's compiler wants them, its decoder fed
with embeddings, its logits in four parts. What is kept is the sequence of operator types alone,
one line for each node, behind lines that say where it is from. onnxsim 0.4.36 is what was current
when Hailo published its Whisper; later ones put Gemm between Reshapes where it leaves MatMul.
"""

from __future__ import annotations

import datetime
import platform
import tempfile
import warnings
from pathlib import Path

import onnx
import onnxsim
import torch
import transformers
from rigs.checkout import GOLDEN
from rigs.models import random_weights
from rigs.parity_cases import CASES
from rigs.reference_whisper import Reference
from torch import Tensor, nn

OPSETS = (13, 17)
CASE = next(case for case in CASES if case.name == "odd")
LENGTH = 24
PARTS = 4


def main() -> None:
    """Write one file for each network and opset."""
    weights = random_weights(CASE.config, CASE.seed)
    model = Reference.build(CASE.config, weights, CASE.positions).model
    mel = torch.zeros(1, CASE.config.num_mel_bins, 1, 2 * CASE.positions)
    states = torch.zeros(1, CASE.positions, CASE.config.d_model)
    embeddings = torch.zeros(1, LENGTH, CASE.config.d_model)
    for opset in OPSETS:
        record("encoder", opset, export(Encoder(model), (mel,), opset))
        record("decoder", opset, export(Decoder(model), (states, embeddings), opset))


class Encoder(nn.Module):  # type: ignore[misc]  # mypy does not follow torch
    """transformers' encoder, fed (1, n_mels, 1, W)."""

    def __init__(self, model: transformers.WhisperForConditionalGeneration) -> None:
        super().__init__()
        self.encoder = model.model.encoder
        self.conv1, self.conv2 = widen(self.encoder.conv1, 1), widen(self.encoder.conv2, 2)

    def forward(self, mel: Tensor) -> Tensor:
        """States (1, W / 2, d_model)."""
        x = nn.functional.gelu(self.conv1(mel))
        x = nn.functional.gelu(self.conv2(x))
        x = x.flatten(2).permute(0, 2, 1) + self.encoder.embed_positions.weight
        for layer in self.encoder.layers:
            x = layer(x, None)
        return self.encoder.layer_norm(x)


class Decoder(nn.Module):  # type: ignore[misc]  # mypy does not follow torch
    """transformers' decoder for a fixed sequence of placed embeddings (1, L, d_model)."""

    def __init__(self, model: transformers.WhisperForConditionalGeneration) -> None:
        super().__init__()
        self.decoder = model.model.decoder
        table = model.proj_out.weight.detach()
        self.parts = [part.T.contiguous() for part in table.tensor_split(PARTS)]
        closed = torch.full((LENGTH, LENGTH), torch.finfo(torch.float32).min)
        self.mask = torch.triu(closed, diagonal=1)[None, None]

    def forward(self, states: Tensor, embeddings: Tensor) -> tuple[Tensor, ...]:
        """The logits in four parts, (1, L, vocabulary / 4) each."""
        x = embeddings.unsqueeze(1).transpose(1, -1).flatten(2).permute(0, 2, 1)
        for layer in self.decoder.layers:
            x = layer(x, attention_mask=self.mask, encoder_hidden_states=states, use_cache=False)
        x = self.decoder.layer_norm(x)
        return tuple(x @ part for part in self.parts)


def widen(narrow: nn.Conv1d, stride: int) -> nn.Conv2d:
    """The same convolution over an image of height one."""
    wide = nn.Conv2d(
        narrow.in_channels, narrow.out_channels, (1, 3), stride=(1, stride), padding=(0, 1)
    )
    wide.weight, wide.bias = nn.Parameter(narrow.weight.detach()[:, :, None]), narrow.bias
    return wide


def export(network: nn.Module, inputs: tuple[Tensor, ...], opset: int) -> onnx.ModelProto:
    """torch's TorchScript export, simplified."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        file = str(Path(folder) / "export.onnx")
        torch.onnx.export(network.eval(), inputs, file, opset_version=opset, dynamo=False)
        model: onnx.ModelProto
        model, unchanged = onnxsim.simplify(onnx.load(file))
    if not unchanged:
        raise ValueError("the simplified graph computes something else")
    return model


def record(network: str, opset: int, model: onnx.ModelProto) -> None:
    """Write the operators of one graph with their provenance."""
    made = datetime.datetime.now(datetime.UTC).date()
    head = (
        f"# made by: scripts/generate/hailo.py on {made}, {platform.machine()}\n"
        f"# versions: torch {torch.__version__}, transformers {transformers.__version__}, "
        f"onnx {onnx.__version__}, onnxsim {onnxsim.__version__}\n"
        f"# graph: {network} of the parity case {CASE.name}, {CASE.positions} positions, "
        f"{LENGTH} tokens, opset {opset}, torch.onnx.export(dynamo=False), then simplified\n"
    )
    operators = "".join(f"{node.op_type}\n" for node in model.graph.node)
    (GOLDEN / f"hailo_{network}_opset{opset}.txt").write_text(head + operators)
    print(f"{network}, opset {opset}: {len(model.graph.node)} nodes")


if __name__ == "__main__":
    main()
