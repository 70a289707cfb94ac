"""The control socket's commands without a pipeline: a log, a mute, and a model that is told what to
say."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from rigs.publishing import transcript
from rigs.transcriber import HEARD, FakeTranscriber

from appliance import config
from appliance.config import Settings, node_name
from appliance.daemon.broker_trial import BrokerCommands
from appliance.daemon.controls import Controls, MuteCommands
from appliance.daemon.correction_commands import CorrectionCommands
from appliance.daemon.log_commands import LogCommands
from appliance.daemon.microphone_commands import MicrophoneCommands
from appliance.daemon.model_install import ModelCommands, ModelInstaller
from appliance.daemon.mute import Mute
from appliance.daemon.report import Reporter
from appliance.daemon.setting_commands import SettingCommands
from appliance.infer import Deliver, Pending, Request
from appliance.records import ApplianceState, ApplianceStats, Correction, Transcription
from appliance.store.store import Store


@dataclass
class Appliance:
    """What the commands are about."""

    folder: Path
    settings: Settings
    store: Store
    mute: Mute
    said: Transcription | Exception | None = HEARD
    """The model's answer; None: it is too busy to be asked."""
    microphone: str = "USB microphone"
    reloads: int = 0
    readings: int = 0
    asked: list[Request] = field(default_factory=list)
    corrections: list[Correction] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.server = SimpleNamespace(wanted=(), publish=lambda *_: None, wake=lambda: None)
        node = node_name(self.settings)
        setting_commands = SettingCommands(self.settings, self.read, self.reload)
        self.microphone_commands = MicrophoneCommands(self.state, self.ask, FakeTranscriber())
        self.controls = Controls(
            self.store,
            cast("Reporter", self),
            None,
            server=self.server,  # type: ignore[arg-type]
            microphone=self.microphone_commands,
            names=(node, node),
            groups=(
                LogCommands(self.store, node),
                CorrectionCommands(
                    self.store,
                    node,
                    setting_commands,
                    self.corrections.append,
                    {"nursery", "seller"}.__contains__,
                ),
                MuteCommands(self.mute),
                setting_commands,
                BrokerCommands(setting_commands),
                ModelCommands(ModelInstaller(self.folder / "models")),
            ),
        )

    def read(self, chosen: Mapping[str, Mapping[str, Any]] | None) -> config.Reading:
        self.readings += 1
        return config.read(self.folder / "roomscribe.toml", chosen)

    def state(self) -> ApplianceState:
        return ApplianceState(
            status="muted" if self.mute.on else "running",
            reasons=() if self.microphone else ("no microphone is plugged in",),
            encoder="cpu",
            model="fake",
            model_title="Fake",
            microphone=self.microphone or "none",
            microphone_online=bool(self.microphone) and not self.mute.on,
            queue_depth=0,
            uptime_s=5.0,
            version="0",
            muted=self.mute.on,
            muted_until=self.mute.until,
        )

    def stats(self) -> ApplianceStats:
        return ApplianceStats({"transcripts": 1}, 5.0)

    def ask(self, request: Request, deliver: Deliver) -> Pending | None:
        self.asked.append(request)
        if self.said is None:
            return None
        deliver(request, self.said)
        return Pending()

    def reload(self) -> None:
        self.reloads += 1


@contextmanager
def appliance(folder: Path, texts: tuple[str, ...] = ("turn on the light",)) -> Iterator[Appliance]:
    """One whose log has `texts`, and whose configuration is `folder`/roomscribe.toml."""
    state = folder / "state"
    written = f'[store]\npath = "{state}"\n\n[mqtt]\nenabled = false\n'
    (folder / "roomscribe.toml").write_text(written, encoding="utf-8")
    settings = config.load(folder / "roomscribe.toml")
    with Store.open(settings.store) as store:
        for text in texts:
            store.append(transcript(text))
        found = Appliance(folder, settings, store, Mute(state))
        try:
            yield found
        finally:
            found.controls.close()
