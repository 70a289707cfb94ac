"""Byte-level word pieces: 512 learned from the training texts, Whisper's special tokens behind.

Written as Hugging Face's vocab.json, merges.txt and added_tokens.json, and read back from there, so
that training and the exported folder share one fixed file. Texts begin with a space, as Whisper's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from train.texts import sentences

PIECES = 512
TEXTS = 40_000
"""Of the seeded grammar, from which the pieces are learned."""
SPECIALS = (
    "<|endoftext|>",
    "<|startoftranscript|>",
    "<|en|>",
    "<|translate|>",
    "<|transcribe|>",
    "<|startoflm|>",
    "<|startofprev|>",
    "<|nospeech|>",
    "<|notimestamps|>",
)
PROMPT = ("<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>")


def _dress(tokenizer: Tokenizer) -> Tokenizer:
    """`tokenizer` with GPT-2's byte-level splitting and joining."""
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def learn(texts: Iterable[str], folder: Path) -> None:
    """Learn the pieces from `texts` and write the three files into `folder`."""
    tokenizer = _dress(Tokenizer(models.BPE()))
    trainer = trainers.BpeTrainer(
        vocab_size=PIECES,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator((" " + text.strip() for text in texts), trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.model.save(str(folder))
    pieces = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    if len(pieces) != PIECES:
        raise ValueError(f"{PIECES} word pieces wanted, the texts gave {len(pieces)}")
    added = {name: PIECES + i for i, name in enumerate(SPECIALS)}
    pieces[SPECIALS[0]] = PIECES  # as in Whisper's own vocab.json
    ordered = dict(sorted(pieces.items(), key=lambda item: item[1]))
    for name, table in (("vocab.json", ordered), ("added_tokens.json", added)):
        text = json.dumps(table, ensure_ascii=False)
        (folder / name).write_text(text, encoding="utf-8")


def learn_once(folder: Path) -> None:
    """Learn the pieces from training's texts unless `folder` has them."""
    if not (folder / "vocab.json").exists():
        learn(islice(sentences(0, "train"), TEXTS), folder)


class Wordpieces:
    """Text to token ids and back."""

    def __init__(self, folder: Path) -> None:
        pieces = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
        lines = (folder / "merges.txt").read_text(encoding="utf-8").splitlines()
        merges = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#")]
        added = json.loads((folder / "added_tokens.json").read_text(encoding="utf-8"))
        base = {piece: i for piece, i in pieces.items() if piece not in added}
        self._tokenizer = _dress(Tokenizer(models.BPE(vocab=base, merges=merges)))
        self._tokenizer.add_special_tokens(
            [AddedToken(name, special=True) for name in sorted(added, key=added.__getitem__)]
        )
        self.size: int = self._tokenizer.get_vocab_size()
        self.ids: dict[str, int] = added
        self._lengths = np.zeros(self.size, np.int64)
        for piece, i in base.items():
            self._lengths[i] = len(piece)
        self.prompt: list[int] = [added[name] for name in PROMPT]
        self.end_of_text: int = added["<|endoftext|>"]
        self.no_speech: int = added["<|nospeech|>"]
        if any(self._tokenizer.token_to_id(name) != i for name, i in added.items()):
            raise ValueError(f"{folder}: special tokens are not numbered behind the pieces")

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, without prompt and end-of-text; nothing for an empty text."""
        text = text.strip()
        return self._tokenizer.encode(" " + text).ids if text else []

    def lengths(self, ids: Sequence[int]) -> NDArray[np.int64]:
        """Bytes of each of `ids`, the space in front of a word counted, (n,) int64."""
        return self._lengths[list(ids)]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, special tokens left out."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return text.strip()
