"""The speech bank on disk: shards of utterances that join while training runs.

A shard is an uncompressed npz: `audio` int16 16 kHz, `offset` int64 (n+1), `voice` int16 (n),
`text` (n), `phone` uint8, `phone_end` float32 s from the utterance's start, `phone_offset` (n+1).
"""

from __future__ import annotations

import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray
from train.bank import FIRST_PERSON

SAMPLE_RATE = 16_000
SILENCE_PHONE = 0
WAIT_S = 5.0


@dataclass(frozen=True, slots=True, eq=False)
class Utterance:
    """One spoken sentence: samples (n,) int16, its text, phones (m,) uint8 and their ends in s."""

    audio: NDArray[np.int16]
    text: str
    phones: NDArray[np.uint8]
    phone_ends: NDArray[np.float32]
    voice: int

    def piece_times(self, lengths: NDArray[np.int64]) -> NDArray[np.float64]:
        """About when, in s, pieces of `lengths` letters are spoken: letters spread over phones.

        NaN where the phones are not known.
        """
        starts = np.concatenate([[0.0], self.phone_ends[:-1]])
        middles = ((starts + self.phone_ends) / 2)[self.phones != SILENCE_PHONE]
        if not len(middles):
            return np.full(len(lengths), np.nan)
        share = (np.cumsum(lengths) - lengths / 2) / lengths.sum()
        times: NDArray[np.float64] = np.interp(
            share * len(middles), np.arange(len(middles)) + 0.5, middles
        )
        return times


def map_member(path: Path, name: str) -> NDArray[np.int16]:
    """Array `name` of an uncompressed npz, memory-mapped so that processes share its pages."""
    with zipfile.ZipFile(path) as archive:
        member = archive.getinfo(f"{name}.npy")
        if member.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{path}: {name} is compressed; shards are written by numpy.savez")
    with path.open("rb") as file:
        file.seek(member.header_offset + 26)
        name_bytes, extra_bytes = np.frombuffer(file.read(4), "<u2")
        file.seek(member.header_offset + 30 + int(name_bytes) + int(extra_bytes))
        version = np.lib.format.read_magic(file)
        read_header: Callable[[BinaryIO], tuple[tuple[int, ...], bool, np.dtype[Any]]] = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        shape, _, dtype = read_header(file)
        start = file.tell()
    return np.memmap(path, dtype=dtype, mode="r", offset=start, shape=shape)


class Bank:
    """Utterances of all shards of one split (`train`, `dev`, `unseen`), numbered as they join."""

    def __init__(self, folder: Path, split: str, people: int | None = None) -> None:
        """`people` of them at most are heard, for trials of how many it takes; None: all."""
        self.folder = folder
        self._heard_at_most = people
        self.split = split
        self.names: list[str] = []
        self.durations: NDArray[np.float32] = np.zeros(0, np.float32)
        self.voices: NDArray[np.int16] = np.zeros(0, np.int16)
        self.people: NDArray[np.int64] = np.zeros(0, np.int64)
        self.synthesised: NDArray[np.int64] = self.people
        self._shards: list[dict[str, NDArray[Any]]] = []
        self._where: list[tuple[int, int]] = []
        self._by_voice: dict[int, NDArray[np.int64]] = {}

    def on_disk(self) -> list[str]:
        """Return the names of the split's shards in the folder, sorted."""
        return sorted(path.name for path in self.folder.glob(f"{self.split}-*.npz"))

    def join(self, names: list[str]) -> None:
        """Add the shards of `names` that are not in yet; an unreadable one raises."""
        for name in names:
            if name in self.names:
                continue
            path = self.folder / name
            with np.load(path, allow_pickle=False) as file:
                shard = {key: file[key] for key in file.files if key != "audio"}
            shard["audio"] = map_member(path, "audio")
            offset = shard["offset"].astype(np.int64)
            count = len(offset) - 1
            self._where += [(len(self._shards), i) for i in range(count)]
            self._shards.append(shard)
            seconds = (np.diff(offset) / SAMPLE_RATE).astype(np.float32)
            self.durations = np.concatenate([self.durations, seconds])
            self.voices = np.concatenate([self.voices, shard["voice"].astype(np.int16)])
            self.names.append(name)
        self._by_voice = {int(v): np.flatnonzero(self.voices == v) for v in np.unique(self.voices)}
        known = np.unique(self.voices[self.voices >= FIRST_PERSON])
        heard = np.random.default_rng(0).permutation(known)[: self._heard_at_most]
        self.people = np.flatnonzero(np.isin(self.voices, heard))
        self.synthesised = np.flatnonzero(self.voices < FIRST_PERSON)

    def __len__(self) -> int:
        return len(self._where)

    def same_voice(self, index: int) -> NDArray[np.int64]:
        """Numbers of all utterances of the voice that speaks utterance `index`."""
        return self._by_voice[int(self.voices[index])]

    def text(self, index: int) -> str:
        """Text of utterance `index`."""
        shard, i = self._where[index]
        return str(self._shards[shard]["text"][i])

    def utterance(self, index: int) -> Utterance:
        """Utterance `index`."""
        number, i = self._where[index]
        shard = self._shards[number]
        low, high = (int(v) for v in shard["offset"][i : i + 2])
        first, last = (int(v) for v in shard["phone_offset"][i : i + 2])
        return Utterance(
            audio=shard["audio"][low:high],
            text=str(shard["text"][i]),
            phones=shard["phone"][first:last],
            phone_ends=shard["phone_end"][first:last],
            voice=int(self.voices[index]),
        )


def readable(bank: Bank, name: str, phones: int) -> bool:
    """Whether shard `name` is complete and within the table of `phones` phones."""
    try:
        with np.load(bank.folder / name) as file:
            return int(file["phone"].max(initial=0)) < phones and len(file["offset"]) > 1
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return False


def join_new(bank: Bank, phones: int) -> None:
    """Let new shards on disk join, the same ones on every process; wait for the first."""
    while True:
        names: list[list[str]] = [[]]
        if dist.get_rank() == 0:
            fresh = [name for name in bank.on_disk() if name not in bank.names]
            names = [[name for name in fresh if readable(bank, name, phones)]]
        dist.broadcast_object_list(names)
        bank.join(names[0])
        if len(bank):
            return
        time.sleep(WAIT_S)
