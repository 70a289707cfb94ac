"""What the parts of an appliance share, without threads: for tests of single parts."""

from typing import Any

from appliance.config import Settings, store_folder
from appliance.daemon.backlog import Backlog
from appliance.daemon.bus import Bus
from appliance.daemon.core import Core
from appliance.daemon.health import Health
from appliance.daemon.monitors import ActingMonitor, LevelMonitor
from appliance.daemon.mute import Mute
from appliance.daemon.partials import Partials
from appliance.daemon.phrase_commands import Expectations
from appliance.daemon.stages import StageQueue
from appliance.daemon.transcription import WorkTranscriber
from appliance.daemon.transcripts import Transcripts
from appliance.homeassistant import MediaPlayers
from appliance.records import Listener
from appliance.speaker import Spoken
from appliance.store.store import Store


def make_core(
    settings: Settings,
    transcriber: Any,
    store: Store,
    *listeners: Listener,
    segmenter: Any = None,
    joins: bool = False,
) -> Core:
    """A core whose news `listeners` get, too; `joins`: it joins sentences in two parts."""
    bus = Bus()
    health = Health(bus.on_change)
    media, spoken = MediaPlayers(), Spoken()
    backlog = Backlog(settings, health, bus, in_process=True, is_stored=store.has)
    transcripts = Transcripts(
        settings, transcriber, store, health, bus, media=media, spoken=spoken,
        submit=backlog.submit if joins else lambda *_: None,
    )  # fmt: skip
    bus.add(transcripts, backlog, LevelMonitor(health), ActingMonitor(settings, health))
    bus.add(*listeners)
    return Core(
        settings, "kitchen", 0.05, bus, health, Mute(store_folder(settings.store)), media,
        spoken, None, store, transcriber, transcripts, segmenter, backlog, StageQueue(1000),
        StageQueue(1),
    )  # fmt: skip


def make_works(core: Core, expectations: Expectations | None = None) -> WorkTranscriber:
    """What transcribes a core's windows."""
    partials = Partials(core.backlog.submit, core.transcripts.preview, core.bus)
    return WorkTranscriber(core, partials, expectations or Expectations())
