"""The daemon serves the house, for real: who asks knows what becomes of it, and it comes back."""

import signal
from pathlib import Path

import pytest
from rigs.broker import free_port
from rigs.daemon import end, in_silence, log_of, write_config
from rigs.recordings import heard_right
from rigs.waiting import PATIENCE_S, until
from rigs.windows import NO_FOLDER
from rigs.word_errors import same_words
from rigs.wyoming import AUDIO_16K, Talk, sound_of, wait_for_port

from appliance.config import StoreSettings
from appliance.store.store import Store

SENTENCE = heard_right()[3]
SOUND = sound_of(SENTENCE.file)


class House:
    def __init__(self, folder: Path, **keys: object) -> None:
        self.port = free_port()
        self.folder = folder
        chosen = {"enabled": True, "listen": "127.0.0.1", "port": self.port, **keys}
        self.config = write_config(folder, wyoming=chosen, spool={"path": NO_FOLDER})

    def stored(self) -> list[tuple[str, str]]:
        """Text and source of each transcript in the log."""
        with Store.open(StoreSettings(path=str(self.folder / "state")), read_only=True) as store:
            return [(row.transcript.text, row.transcript.source) for row in store.query()]

    def text(self) -> str:
        with Talk(self.port) as talk:
            talk.speak(SOUND)
            return talk.text()


def test_a_daemon_that_is_killed_in_mid_request_serves_again_when_it_is_back(
    tmp_path: Path,
) -> None:
    house = House(tmp_path, log=True)
    with in_silence(house.config) as running:
        wait_for_port(house.port)
        assert same_words(house.text(), SENTENCE.text)
        until(lambda: len(house.stored()) == 1)
        talk = Talk(house.port)
        talk.send("audio-start", **AUDIO_16K)
        talk.sound(SOUND[: len(SOUND) // 2])
        talk.send("describe")
        assert talk.event()
        running.send_signal(signal.SIGKILL)
        with pytest.raises(ConnectionResetError):
            assert talk.events() == []
            raise ConnectionResetError  # the kernel closes in order where nothing was unread
        talk.close()
        running.wait(PATIENCE_S)
    with in_silence(house.config) as running:
        wait_for_port(house.port)
        assert same_words(house.text(), SENTENCE.text)
        until(lambda: len(house.stored()) == 2)
        end(running)
    texts, sources = zip(*house.stored(), strict=True)
    assert all(same_words(text, SENTENCE.text) for text in texts)
    assert sources == ("wyoming",) * 2


def test_the_mute_leaves_the_server_alone_and_nothing_of_others_is_stored(tmp_path: Path) -> None:
    house = House(tmp_path)
    with in_silence(house.config) as running:
        wait_for_port(house.port)
        running.send_signal(signal.SIGUSR1)
        until(lambda: "the microphone is closed" in log_of(house.config))
        text = house.text()
        end(running)
    assert same_words(text, SENTENCE.text)
    assert house.stored() == []
    assert text not in log_of(house.config)


def test_an_appliance_that_was_not_asked_to_listens_on_no_port(tmp_path: Path) -> None:
    config = write_config(tmp_path, spool={"path": NO_FOLDER})
    with in_silence(config) as running:
        until(lambda: "listening to" in log_of(config))
        sockets = {
            link.readlink().name
            for link in Path(f"/proc/{running.pid}/fd").iterdir()
            if link.is_symlink() and link.readlink().name.startswith("socket:")
        }
        listening = {
            f"socket:[{line.split()[9]}]"
            for name in ("tcp", "tcp6")
            for line in Path(f"/proc/{running.pid}/net/{name}").read_text("ascii").splitlines()[1:]
            if line.split()[3] == "0A"
        }
        assert sockets
        assert not sockets & listening
