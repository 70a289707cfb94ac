"""A checkpoint by name: all of its files at one commit, verified, and clear words otherwise."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rigs.hub import TOKEN, Fault, LocalHub, local_hub

from appliance.convert.download import RetryPolicy
from appliance.convert.huggingface import (
    NAMES,
    Origin,
    Repository,
    fetch_checkpoint,
    find_token,
    hub_is_reachable,
    repository_of,
)
from appliance.errors import ModelError

TINY = "openai/whisper-tiny"
CONFIG = json.dumps({"model_type": "whisper", "d_model": 384}).encode()
WEIGHTS = bytes(range(251)) * 1500
README = b"---\nlanguage:\n- en\nlicense: apache-2.0\n---\n# Whisper\nlicense: none\n"
FILES = {
    "config.json": CONFIG,
    "generation_config.json": b'{"is_multilingual": true}',
    "vocab.json": b'{"a": 0}',
    "added_tokens.json": b'{"<|en|>": 1}',
    "model.safetensors": WEIGHTS,
    "pytorch_model.bin": b"a pickle",
    "README.md": README,
    "tf_model.h5": b"not wanted",
}
WANTED = ["added_tokens.json", "config.json", "generation_config.json", "vocab.json"]


@pytest.fixture
def hub() -> Iterator[LocalHub]:
    with local_hub() as running:
        yield running


class Quiet:
    """A ProgressDisplay that shows nothing."""

    def begin(self, name: str, done: int, total: int | None) -> None: ...
    def advance(self, count: int) -> None: ...
    def end(self) -> None: ...
    def note(self, line: str) -> None: ...


def fetch(
    hub: LocalHub, folder: Path, name: str = "tiny", revision: str = "main", token: str = ""
) -> Origin:
    folder.mkdir(exist_ok=True)
    return fetch_checkpoint(
        name,
        revision,
        folder,
        progress=Quiet(),
        policy=RetryPolicy(connect_s=5, read_s=5, pauses_s=(0.0,) * 3),
        environment=hub.environment() | {"HF_TOKEN": token},
    )


def refusal(hub: LocalHub, folder: Path, **how: str) -> str:
    """The one line that a failing fetch ends with."""
    with pytest.raises(ModelError) as caught:
        fetch(hub, folder, **how)
    message = str(caught.value)
    assert "\n" not in message
    assert not list(folder.glob("**/*.safetensors"))
    return message


def without(*names: str, **others: bytes) -> dict[str, bytes]:
    return {name: content for name, content in FILES.items() if name not in names} | others


def names(folder: Path) -> list[str]:
    files = (file for file in folder.rglob("*") if file.is_file())
    return sorted(file.relative_to(folder).as_posix() for file in files)


def test_a_known_name_brings_the_files_of_one_commit(hub: LocalHub, tmp_path: Path) -> None:
    commit = hub.add(TINY, FILES)
    origin = fetch(hub, tmp_path / "x")
    assert (origin.repository, origin.revision, origin.licence) == (TINY, commit, "apache-2.0")
    assert sorted(origin.files) == sorted([*WANTED, "model.safetensors"])
    for name, digest in origin.files.items():
        assert (tmp_path / "x" / name).read_bytes() == FILES[name]
        assert hashlib.sha256(FILES[name]).hexdigest() == digest
    assert names(tmp_path / "x") == sorted([*origin.files, "fetched.json"])
    contents = [seen.path for seen in hub.requests if seen.method == "GET"]
    assert all(commit in path for path in contents), "nothing is fetched by the branch's name"


def test_the_commit_is_settled_once_though_the_branch_moves(hub: LocalHub, tmp_path: Path) -> None:
    commit = hub.add(TINY, FILES)
    fetch(hub, tmp_path / "x")
    assert [seen.path for seen in hub.requests if "/resolve/main/" in seen.path] == [
        f"/{TINY}/resolve/main/config.json"
    ]
    assert commit in hub.requests[1].path


@pytest.mark.parametrize("revision", ["main", "v1"])
def test_branches_tags_and_commits_are_revisions(
    hub: LocalHub, tmp_path: Path, revision: str
) -> None:
    commit = hub.add("me/fine-tune", FILES)
    assert fetch(hub, tmp_path / "x", "me/fine-tune", revision).revision == commit
    assert fetch(hub, tmp_path / "y", "me/fine-tune", commit).revision == commit


def test_a_mirror_that_answers_without_redirects_will_do(hub: LocalHub, tmp_path: Path) -> None:
    hub.plain_redirects = True
    hub.add(TINY, FILES)
    assert len(fetch(hub, tmp_path / "x").files) == 5


def test_without_readme_the_licence_is_unknown(hub: LocalHub, tmp_path: Path) -> None:
    hub.add(TINY, without("README.md"))
    assert fetch(hub, tmp_path / "x").licence == ""
    hub.add(TINY, without("README.md", **{"README.md": b"license: mit, it says somewhere"}))
    assert fetch(hub, tmp_path / "x").licence == ""


def test_optional_files_may_be_missing(hub: LocalHub, tmp_path: Path) -> None:
    hub.add(TINY, without("generation_config.json", "added_tokens.json"))
    assert sorted(fetch(hub, tmp_path / "x").files) == [
        "config.json",
        "model.safetensors",
        "vocab.json",
    ]


def test_what_is_whole_is_not_fetched_again(hub: LocalHub, tmp_path: Path) -> None:
    hub.add(TINY, FILES)
    first = fetch(hub, tmp_path / "x")
    assert len(hub.fetched("model.safetensors")) == 1
    assert fetch(hub, tmp_path / "x") == first
    assert len(hub.fetched("model.safetensors")) == 1
    assert len(hub.fetched("vocab.json")) == 1


def test_a_file_damaged_on_the_disk_is_fetched_again(hub: LocalHub, tmp_path: Path) -> None:
    hub.add(TINY, FILES)
    fetch(hub, tmp_path / "x")
    for name in ("model.safetensors", "vocab.json"):
        content = FILES[name]
        (tmp_path / "x" / name).write_bytes(b"X" + content[1:])
        fetch(hub, tmp_path / "x")
        assert (tmp_path / "x" / name).read_bytes() == content


def test_without_checksums_the_record_decides_what_is_whole(hub: LocalHub, tmp_path: Path) -> None:
    hub.checksums = False
    hub.add(TINY, FILES)
    first = fetch(hub, tmp_path / "x")
    assert fetch(hub, tmp_path / "x") == first
    assert len(hub.fetched("model.safetensors")) == 1
    (tmp_path / "x" / "model.safetensors").write_bytes(b"X" + WEIGHTS[1:])
    fetch(hub, tmp_path / "x")
    assert len(hub.fetched("model.safetensors")) == 2
    # the same size at another commit is another file
    hub.add(TINY, FILES | {"model.safetensors": WEIGHTS[::-1]})
    fetch(hub, tmp_path / "x")
    assert (tmp_path / "x" / "model.safetensors").read_bytes() == WEIGHTS[::-1]


def test_a_break_in_the_weights_goes_on_at_the_next_run(hub: LocalHub, tmp_path: Path) -> None:
    hub.add(TINY, FILES)
    hub.misbehave("model.safetensors", Fault(break_after=200_000), *[Fault(status=502)] * 3)
    message = refusal(hub, tmp_path / "x")
    assert "answer 502 at " in message
    assert "run the same command again to go on" in message
    part = (tmp_path / "x" / "model.safetensors.part").stat().st_size
    assert 0 < part <= 200_000
    fetch(hub, tmp_path / "x")
    assert hub.fetched("model.safetensors")[-1].headers["Range"] == f"bytes={part}-"
    assert names(tmp_path / "x") == sorted([*WANTED, "fetched.json", "model.safetensors"])


def test_weights_that_changed_between_two_runs_begin_anew(hub: LocalHub, tmp_path: Path) -> None:
    hub.add(TINY, FILES)
    hub.misbehave("model.safetensors", Fault(break_after=200_000), *[Fault(status=502)] * 3)
    refusal(hub, tmp_path / "x")
    hub.add(TINY, FILES | {"model.safetensors": WEIGHTS[::-1]})
    fetch(hub, tmp_path / "x")
    assert "Range" not in hub.fetched("model.safetensors")[-1].headers
    assert (tmp_path / "x" / "model.safetensors").read_bytes() == WEIGHTS[::-1]


def test_weights_with_a_wrong_checksum_are_deleted(hub: LocalHub, tmp_path: Path) -> None:
    hub.add(TINY, FILES)
    hub.misbehave("model.safetensors", Fault(content=b"X" + WEIGHTS[1:]))
    message = refusal(hub, tmp_path / "x")
    assert "expected SHA-256" in message
    assert not list((tmp_path / "x").glob("*.part*"))


def test_small_files_are_checked_by_the_name_git_gives_them(hub: LocalHub, tmp_path: Path) -> None:
    hub.add(TINY, FILES)
    hub.misbehave("vocab.json", Fault(content=b'{"b": 0}'))
    assert "vocab.json: expected git blob" in refusal(hub, tmp_path / "x")
    assert "vocab.json" not in names(tmp_path / "x")


def test_a_repository_that_is_no_whisper_costs_one_small_file(
    hub: LocalHub, tmp_path: Path
) -> None:
    hub.add("me/bert", FILES | {"config.json": b'{"model_type": "bert"}'})
    message = refusal(hub, tmp_path / "x", name="me/bert")
    assert message == "me/bert: expected a Whisper (model_type), found 'bert'"
    assert [seen.path for seen in hub.requests if seen.method == "GET"] == [
        hub.fetched("config.json")[0]
        .path.replace("/api/resolve-cache/models", "")
        .replace("me/bert/", "me/bert/resolve/"),
        hub.fetched("config.json")[0].path,
    ]


def test_shards_come_with_their_index(hub: LocalHub, tmp_path: Path) -> None:
    one, two = (f"model-0000{i}-of-00002.safetensors" for i in (1, 2))
    index = json.dumps({"metadata": {}, "weight_map": {"a": one, "b": two, "c": one}}).encode()
    hub.add(
        "me/large",
        without("model.safetensors")
        | {"model.safetensors.index.json": index, one: WEIGHTS, two: WEIGHTS[:99]},
    )
    origin = fetch(hub, tmp_path / "x", "me/large")
    assert sorted(origin.files) == sorted([*WANTED, "model.safetensors.index.json", one, two])


@pytest.mark.parametrize(
    "bad", ["../../etc/passwd", "/etc/x.safetensors", "a/b.safetensors", ".x.safetensors", "x.bin"]
)
def test_an_index_names_plain_files_only(hub: LocalHub, tmp_path: Path, bad: str) -> None:
    index = json.dumps({"weight_map": {"a": bad}}).encode()
    hub.add("me/evil", without("model.safetensors") | {"model.safetensors.index.json": index})
    message = refusal(hub, tmp_path / "x", name="me/evil")
    assert f"found {bad!r}" in message


@pytest.mark.parametrize("index", [b"{}", b'{"weight_map": {}}', b'{"weight_map": {"a": 7}}'])
def test_an_index_that_names_nothing_is_refused(
    hub: LocalHub, tmp_path: Path, index: bytes
) -> None:
    hub.add("me/empty", without("model.safetensors") | {"model.safetensors.index.json": index})
    assert "expected weight_map with" in refusal(hub, tmp_path / "x", name="me/empty")


def test_a_missing_shard_is_named(hub: LocalHub, tmp_path: Path) -> None:
    index = b'{"weight_map": {"a": "model-1.safetensors"}}'
    hub.add("me/half", without("model.safetensors") | {"model.safetensors.index.json": index})
    message = refusal(hub, tmp_path / "x", name="me/half")
    assert "expected model-1.safetensors, which model.safetensors.index.json names" in message


def test_onnx_graphs_will_do_where_there_are_no_safetensors(hub: LocalHub, tmp_path: Path) -> None:
    graphs = {f"onnx/{half}_model.onnx": half.encode() for half in ("encoder", "decoder")}
    graphs["onnx/decoder_model.onnx_data"] = b"weights"
    hub.add("onnx-community/whisper", without("model.safetensors") | graphs)
    origin = fetch(hub, tmp_path / "x", "onnx-community/whisper")
    assert sorted(origin.files) == sorted([*WANTED, *graphs])
    assert (tmp_path / "x/onnx/encoder_model.onnx").read_bytes() == b"encoder"


def test_a_pickle_is_refused_with_its_fix(hub: LocalHub, tmp_path: Path) -> None:
    hub.add("me/old", without("model.safetensors"))
    message = refusal(hub, tmp_path / "x", name="me/old")
    assert "pytorch_model.bin, a pickle" in message
    assert "save_pretrained(FOLDER, safe_serialization=True)" in message
    assert not hub.fetched("pytorch_model.bin")


def test_a_repository_without_weights_says_what_was_looked_for(
    hub: LocalHub, tmp_path: Path
) -> None:
    hub.add("me/none", without("model.safetensors", "pytorch_model.bin"))
    assert "expected model.safetensors, model.safetensors.index.json or onnx/" in refusal(
        hub, tmp_path / "x", name="me/none"
    )


def test_a_repository_without_vocabulary_is_refused(hub: LocalHub, tmp_path: Path) -> None:
    hub.add("me/none", without("vocab.json"))
    message = refusal(hub, tmp_path / "x", name="me/none")
    assert "expected vocab.json or tokenizer.json, found neither; " in message


def test_tokenizer_json_will_do_where_there_is_no_vocab_json(hub: LocalHub, tmp_path: Path) -> None:
    hub.add("me/new", without("vocab.json", "added_tokens.json") | {"tokenizer.json": b"{}"})
    origin = fetch(hub, tmp_path / "x", "me/new")
    wanted = ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json"]
    assert sorted(origin.files) == wanted
    hub.add("me/old", FILES | {"tokenizer.json": b"{}"})
    assert "tokenizer.json" not in fetch(hub, tmp_path / "y", "me/old").files


def test_what_is_wrong_with_the_small_files_costs_no_weights(hub: LocalHub, tmp_path: Path) -> None:
    hub.add("me/new", without("vocab.json", "added_tokens.json") | {"tokenizer.json": b"{}"})
    fetch(hub, tmp_path / "x", "me/new")
    hub.add(TINY, FILES)
    there: list[list[str]] = []

    def check(folder: Path) -> None:
        there.append(names(folder))
        raise ModelError("it does not fit")

    (tmp_path / "y").mkdir()
    for folder in (tmp_path / "x", tmp_path / "y"):
        with pytest.raises(ModelError, match="it does not fit"):
            fetch_checkpoint(
                "tiny", "main", folder,
                progress=Quiet(), environment=hub.environment(), check=check,
            )  # fmt: skip
    assert there[0] == sorted([*WANTED, "fetched.json", "model.safetensors"])
    assert there[1] == sorted([*WANTED, "fetched.json"])


@pytest.mark.parametrize(
    ("name", "files", "message"),
    [
        ("me/lora", {"adapter_config.json": b"{}"}, "found an adapter (LoRA)"),
        (
            "Systran/faster-whisper-tiny.en",
            {"config.json": b'{"suppress_ids": [1]}', "model.bin": b"WhisperSpec"},
            "found a model for CTranslate2 (faster-whisper); add the model that it was made from "
            "in place of it: roomscribe model add openai/whisper-tiny.en",
        ),
        (
            "mlx-community/whisper-base-mlx",
            {
                "config.json": b'{"model_type": "whisper", "n_audio_state": 512}',
                "weights.npz": b"PK",
            },
            "found a model for MLX; add the model that it was made from in place of it: roomscribe "
            "model add openai/whisper-base",
        ),
        (
            "ggerganov/whisper.cpp",
            {"ggml-base.bin": b"lmgg", "ggml-tiny.bin": b"lmgg"},
            "found ggml-base.bin, a model for whisper.cpp; ",
        ),
        ("me/text", {"README.md": b"#"}, "expected config.json at main, found no such file"),
    ],
)
def test_a_repository_of_another_program_is_explained(
    hub: LocalHub, tmp_path: Path, name: str, files: dict[str, bytes], message: str
) -> None:
    hub.add(name, files)
    assert message in refusal(hub, tmp_path / "x", name=name)
    assert not any(hub.fetched(file) for file in files if file != "config.json")


def test_an_unknown_repository_looks_to_strangers_like_a_private_one(
    hub: LocalHub, tmp_path: Path
) -> None:
    message = refusal(hub, tmp_path / "x", name="me/nothing")
    assert f"{hub.endpoint}/me/nothing: answer 401 (RepoNotFound)" in message
    assert "no such repository, or it needs a login: then set HF_TOKEN" in message
    assert "tiny, tiny.en, base" in message
    message = refusal(hub, tmp_path / "x", name="me/nothing", token=TOKEN)
    assert "answer 404 (RepoNotFound): there is no such repository; check" in message


def test_a_private_repository_opens_with_the_token(hub: LocalHub, tmp_path: Path) -> None:
    hub.add("me/private", FILES, private=True)
    assert "HF_TOKEN" in refusal(hub, tmp_path / "x", name="me/private")
    assert len(fetch(hub, tmp_path / "x", "me/private", token=f" {TOKEN}\n").files) == 5
    with_token = {seen.server for seen in hub.requests if "Authorization" in seen.headers}
    assert with_token == {"hub"}


def test_a_wrong_token_is_not_shown(hub: LocalHub, tmp_path: Path) -> None:
    hub.add(TINY, FILES)
    message = refusal(hub, tmp_path / "x", token="hf_wrong")
    assert "the token in HF_TOKEN is not accepted" in message
    assert "hf_wrong" not in message
    message = refusal(hub, tmp_path / "x", token="hf_wrong\nX: y")
    assert message == "HF_TOKEN: expected letters, digits and signs without spaces"


PLACES = {
    "HF_TOKEN_PATH": ({"HF_TOKEN_PATH": "there/mine"}, "there/mine"),
    "HF_HOME": ({"HF_HOME": "hf", "XDG_CACHE_HOME": "xdg"}, "hf/token"),
    "XDG_CACHE_HOME": ({"XDG_CACHE_HOME": "xdg", "HOME": "home"}, "xdg/huggingface/token"),
    "HOME": ({"HOME": "home", "HF_TOKEN": " "}, "home/.cache/huggingface/token"),
    "sudo": ({"HOME": "root", "SUDO_USER": "ann"}, "homes/ann/.cache/huggingface/token"),
}


@pytest.mark.parametrize(("environment", "place"), PLACES.values(), ids=PLACES)
def test_the_token_of_a_login_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], place: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_token(environment, "homes/{}".format) == ("", "")
    Path(place).parent.mkdir(parents=True)
    Path(place).write_text(f"{TOKEN}\n")
    assert find_token(environment, "homes/{}".format) == (TOKEN, place)
    assert find_token(environment | {"HF_TOKEN": "other"}, "homes/{}".format)[1] == "HF_TOKEN"


def test_whoever_called_sudo_and_is_nobody_here_has_no_token(tmp_path: Path) -> None:
    assert find_token({"HOME": str(tmp_path), "SUDO_USER": "no such user"}) == ("", "")


def test_a_token_file_that_may_not_be_read_is_none(tmp_path: Path) -> None:
    (tmp_path / "token").mkdir()
    assert find_token({"HF_HOME": str(tmp_path)}) == ("", "")


def test_a_login_opens_a_repository_and_a_stale_one_is_named(hub: LocalHub, tmp_path: Path) -> None:
    hub.add("me/private", FILES, private=True)
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "x").mkdir()
    environment = hub.environment() | {"HF_HOME": str(tmp_path)}

    def fetch_private() -> Origin:
        return fetch_checkpoint(
            "me/private", "main", tmp_path / "x", progress=Quiet(), environment=environment
        )

    fetch_private()
    (tmp_path / "token").write_text("hf_stale")
    with pytest.raises(ModelError, match=f"the token in {tmp_path}/token is not accepted"):
        fetch_private()


def test_a_disabled_repository_is_said_to_be_one(hub: LocalHub, tmp_path: Path) -> None:
    hub.add("me/closed", FILES)
    hub.repositories["me/closed"].disabled = True
    message = refusal(hub, tmp_path / "x", name="me/closed")
    assert "answer 403 (Access to this resource is disabled.): the hub has closed it" in message


@pytest.mark.parametrize("token", ["", TOKEN])
def test_a_gated_repository_names_the_page_of_its_licence(
    hub: LocalHub, tmp_path: Path, token: str
) -> None:
    hub.add("me/gated", FILES, gated=True)
    message = refusal(hub, tmp_path / "x", name="me/gated", token=token)
    assert f"accept its licence at {hub.endpoint}/me/gated and set HF_TOKEN" in message


def test_an_unknown_revision_is_named(hub: LocalHub, tmp_path: Path) -> None:
    hub.add(TINY, FILES)
    message = refusal(hub, tmp_path / "x", revision="v9")
    assert "expected the branch, tag or commit 'v9', found none; check --revision" in message


@pytest.mark.parametrize("revision", ["", "..", "a/../b", "-x", "a b", "a\nb", "x?y", "/main"])
def test_a_revision_that_cannot_be_is_not_asked_for(
    hub: LocalHub, tmp_path: Path, revision: str
) -> None:
    assert "--revision: expected" in refusal(hub, tmp_path / "x", revision=revision)
    assert hub.requests == []


@pytest.mark.parametrize(
    "name",
    [
        "",
        "tinny",
        "a/b/c",
        "../x",
        "a/..",
        "a/.",
        "./a",
        "a b/c",
        "a/b?c",
        "a/b#c",
        "/a",
        "a/",
        "é/b",
    ],
)
def test_a_name_that_cannot_be_is_not_asked_for(hub: LocalHub, tmp_path: Path, name: str) -> None:
    assert f"model {name!r}: expected tiny, " in refusal(hub, tmp_path / "x", name=name)
    assert hub.requests == []


def test_a_typing_mistake_is_answered_with_the_right_name() -> None:
    with pytest.raises(ModelError, match=r"did you mean tiny\?$"):
        repository_of("tinny")
    assert {repository_of(name) for name in NAMES} == set(NAMES.values())
    assert repository_of("NbAiLab/nb-whisper-tiny_1.0") == "NbAiLab/nb-whisper-tiny_1.0"


def test_a_hub_out_of_reach_is_one_line_with_both_fixes(tmp_path: Path) -> None:
    hub = LocalHub(endpoint="http://127.0.0.1:1")
    message = refusal(hub, tmp_path / "x")
    assert message.startswith(
        f"http://127.0.0.1:1/{TINY}/resolve/main/config.json: Connection refused, 3 times"
    )
    assert "check the network and HF_ENDPOINT" in message
    assert "give a folder with the checkpoint" in message


def test_a_place_that_is_no_hub_is_told_from_one(hub: LocalHub, tmp_path: Path) -> None:
    hub.hefs["openai/whisper-tiny/resolve/main/config.json"] = b"<html>please log in</html>"
    hub.endpoint = hub.store
    assert "expected a hub's answer with X-Repo-Commit, found none" in refusal(hub, tmp_path / "x")


@pytest.mark.parametrize("endpoint", ["huggingface.co", "ftp://hub", "https://"])
def test_an_endpoint_is_a_web_address(tmp_path: Path, endpoint: str) -> None:
    message = refusal(LocalHub(endpoint=endpoint), tmp_path / "x")
    assert "expected an address such as https://" in message


def test_an_absurdly_large_small_file_is_refused_by_its_length(hub: LocalHub) -> None:
    hub.add(TINY, FILES | {"vocab.json": b"{}" + b" " * 2000})
    repository = Repository(TINY, hub.environment(), progress=Quiet())
    repository.settle("main", "config.json")
    with pytest.raises(ModelError, match=r"vocab\.json: expected at most 1000 bytes, found 2002"):
        repository.find("vocab.json", limit=1000)


def test_a_small_file_that_lies_about_its_length_is_read_no_further(
    hub: LocalHub, tmp_path: Path
) -> None:
    hub.add(TINY, FILES)
    hub.misbehave("vocab.json", Fault(content=b" " * 5_000_000, no_length=True))
    assert "expected at most 8 bytes, found more" in refusal(hub, tmp_path / "x")


def test_a_hub_that_recovers_is_waited_for(hub: LocalHub, tmp_path: Path) -> None:
    hub.add(TINY, FILES)
    hub.misbehave("config.json", Fault(status=503), Fault(status=429), head=True)
    hub.misbehave("vocab.json", Fault(status=500), Fault(status=429, headers={"Retry-After": "0"}))
    assert len(fetch(hub, tmp_path / "x").files) == 5


def test_a_folder_with_somebody_elses_checkpoint_is_left_alone(
    hub: LocalHub, tmp_path: Path
) -> None:
    hub.add(TINY, FILES)
    (tmp_path / "config.json").write_text("mine")
    with pytest.raises(ModelError, match=r"expected an empty folder.*found config.json in it"):
        fetch(hub, tmp_path)
    assert (tmp_path / "config.json").read_text() == "mine"


def test_nothing_of_another_checkpoint_stays_in_the_folder(hub: LocalHub, tmp_path: Path) -> None:
    hub.add(TINY, FILES)
    hub.misbehave("model.safetensors", Fault(break_after=200_000), *[Fault(status=502)] * 3)
    refusal(hub, tmp_path / "x")
    graphs = {f"onnx/{half}_model.onnx": half.encode() for half in ("encoder", "decoder")}
    hub.add("me/onnx", without("model.safetensors", "added_tokens.json") | graphs)
    origin = fetch(hub, tmp_path / "x", "me/onnx")
    assert names(tmp_path / "x") == sorted([*origin.files, "fetched.json"])


def test_too_little_room_is_found_before_the_weights(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = "a.safetensors", "b.safetensors"
    index = json.dumps({"weight_map": {"a": one, "b": two}}).encode()
    hub.add(
        "me/large",
        without("model.safetensors")
        | {"model.safetensors.index.json": index, one: WEIGHTS, two: WEIGHTS},
    )
    usage = shutil.disk_usage(tmp_path)
    # room for one of the two
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage._replace(free=500_000))
    message = refusal(hub, tmp_path / "x", name="me/large")
    assert "expected 0.8 MB of free space for me/large, found 0.5 MB" in message
    assert not hub.fetched(one)


def test_the_command_line_of_a_process_finds_the_hub_by_its_environment(
    hub: LocalHub, tmp_path: Path
) -> None:
    hub.add(TINY, FILES)
    program = (
        "import sys; from pathlib import Path\n"
        "from appliance.convert.huggingface import fetch_checkpoint\n"
        "print(fetch_checkpoint('tiny', 'main', Path(sys.argv[1])).repository)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env=os.environ | hub.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert (run.stdout, run.stderr) == (f"{TINY}\n", "")


def test_the_record_in_the_folder_says_where_its_files_come_from(
    hub: LocalHub, tmp_path: Path
) -> None:
    hub.add(TINY, FILES)
    origin = fetch(hub, tmp_path)
    record = json.loads((tmp_path / "fetched.json").read_text())
    told = dataclasses.asdict(origin)
    del told["licence"]
    assert record == told


def test_it_is_known_whether_the_hub_takes_connections() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert hub_is_reachable({"HF_ENDPOINT": address})
        assert hub_is_reachable({"HF_ENDPOINT": "https://hub.invalid", "https_proxy": address})
    assert not hub_is_reachable({"HF_ENDPOINT": address}, within_s=0.5)
    assert not hub_is_reachable({"HF_ENDPOINT": "http://127.0.0.1:99999"})
