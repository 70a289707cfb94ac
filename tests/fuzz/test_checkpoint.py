"""A checkpoint's JSON files with anything in them are read, or refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given, strategies as st
from rigs.fuzzing import ODD_TEXTS, examples, is_one_line
from rigs.models import random_weights, sized, write_checkpoint

from appliance.convert.build import window_positions
from appliance.convert.checkpoint import require_checkpoint
from appliance.convert.decoding import read_decoding
from appliance.convert.shapes import read_config
from appliance.errors import ModelError

SMALL = sized(8, (1, 1), 2, 30, 12, 10)
ODD_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**63, 10**300, 0.5, float("nan"), float("inf"), "", "en", "\0",
    [], [0], [-1], [2**70], ["a"], [[]], [[1, 22]], [[1, None]], [[1, [2]]], [[1, {}]], [None],
    {}, {"a": 1}, {"type": "BPE"}, {"type": "BPE", "vocab": {"a": 0}}, {"type": "ByteLevel"},
    [{"id": 1, "content": "a"}], [{"id": [], "content": {}}], *ODD_TEXTS,
)  # fmt: skip
KEYS = {
    "config.json": (
        "model_type", "d_model", "vocab_size", "max_source_positions", "forced_decoder_ids",
        "suppress_tokens", "begin_suppress_tokens", "n_audio_state",
    ),
    "generation_config.json": (
        "is_multilingual", "language", "task", "forced_decoder_ids", "suppress_tokens",
        "begin_suppress_tokens",
    ),
    "tokenizer.json": ("model", "added_tokens", "decoder"),
    "vocab.json": ("<|endoftext|>", "a", "<|de|>", "\u0120", *ODD_TEXTS, "<|\u2028|>"),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("fuzzed") / "checkpoint"
    return write_checkpoint(place, SMALL, random_weights(SMALL, 1))


def test_odd_values_anywhere_are_read_or_refused_in_one_line(folder: Path) -> None:
    names = ("config.json", "vocab.json", "added_tokens.json")
    whole = {name: json.loads((folder / name).read_text()) for name in names}
    tokenizer = {
        "model": {"type": "BPE", "vocab": whole["vocab.json"]},
        "added_tokens": [{"id": i, "content": n} for n, i in whole["added_tokens.json"].items()],
        "decoder": {"type": "ByteLevel"},
    }
    changes = st.lists(
        st.sampled_from([(name, key) for name, keys in KEYS.items() for key in keys]).flatmap(
            lambda place: st.tuples(st.just(place), st.sampled_from(ODD_VALUES))
        ),
        max_size=3,
    )

    @given(
        changed=changes,
        new=st.booleans(),
        generation=st.booleans(),
        language=st.sampled_from(("", "de", "english", "\0")),
    )
    @examples(40)
    def read(
        changed: list[tuple[tuple[str, str], Any]], *, new: bool, generation: bool, language: str
    ) -> None:
        files: dict[str, Any] = {"config.json": whole["config.json"]}
        files |= {"tokenizer.json": tokenizer} if new else whole
        files |= {"generation_config.json": {}} if generation else {}
        for file in folder.glob("*.json"):
            file.unlink()
        for (name, key), value in changed:
            if name in files:
                files[name] = files[name] | {key: value}
        for name, values in files.items():
            (folder / name).write_text(json.dumps(values))
        try:
            require_checkpoint(folder)
            config = read_config(folder / "config.json")
            window_positions(config, 0.2)
            decoding = read_decoding(folder, config, language)
        except ModelError as error:
            event("refused")
            assert is_one_line(str(error))
        else:
            event("read")
            assert decoding.tokens.end_of_text not in decoding.suppressed
            assert max(decoding.prompt) < config.vocab_size

    read()
