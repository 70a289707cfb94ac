"""Export a trained run in Hugging Face's layout: averaged weights, pieces, configuration.

A run that went on from a bundle has learned new voices and lost a little of the old ones; --blend
mixes the bundle's weights back in, which keeps most of both (https://arxiv.org/abs/2109.01903).
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from safetensors.torch import save_file
from train.bundle_weights import deepen, read_weights
from train.checkpoint import load_model
from train.network import Whisper
from train.wordpieces import PROMPT, Wordpieces


def blend(model: Whisper, bundle: Path, share: float) -> None:
    """Move each weight of `model` by `share` (0..1) of the way to the bundle's.

    The bundle may have fewer encoder layers.
    """
    size, weights = read_weights(bundle)
    _, weights = deepen(size, weights, model.size.encoder_layers)
    own = model.state_dict()
    for name, weight in weights.items():
        own[name].lerp_(weight, share)


def export(run: Path, out: Path, bundle: Path | None = None, share: float = 0.0) -> None:
    """Write model.safetensors (float32), config.json and the tokenizer's files into `out`.

    Of the weights, `share` is those of `bundle`.
    """
    model = load_model(run / "last.pt")
    if bundle:
        blend(model, bundle, share)
    pieces = Wordpieces(run / "pieces")
    out.mkdir(parents=True, exist_ok=True)
    weights = {
        name: tensor.float().contiguous()
        for name, tensor in model.state_dict().items()
        if name.startswith("model.")
    }
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)
    for name in ("vocab.json", "merges.txt", "added_tokens.json"):
        shutil.copyfile(run / "pieces" / name, out / name)
    config = {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "activation_function": "gelu",
        "scale_embedding": False,
        "tie_word_embeddings": True,
        **model.size.as_dict(),
        "bos_token_id": pieces.end_of_text,
        "eos_token_id": pieces.end_of_text,
        "pad_token_id": pieces.end_of_text,
        "decoder_start_token_id": pieces.prompt[0],
        "forced_decoder_ids": [[i, pieces.prompt[i]] for i in range(1, len(PROMPT))],
    }
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="train.train's --out")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--blend", type=Path, help="folder of the bundle that the run began with")
    parser.add_argument("--share", type=float, default=0.3, help="of that bundle's weights, 0 to 1")
    args = parser.parse_args()
    export(args.run, args.out, args.blend, args.share)
    size = (args.out / "model.safetensors").stat().st_size
    print(f"{args.out}: {size / 1e6:.2f} MB of weights")


if __name__ == "__main__":
    main()
