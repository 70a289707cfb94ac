"""What all parts of the appliance share."""

from dataclasses import dataclass

from appliance.capture import PlayedSound, Segmenter
from appliance.config import Settings
from appliance.daemon.backlog import Backlog, Work
from appliance.daemon.bus import Bus
from appliance.daemon.health import Health
from appliance.daemon.mute import Mute
from appliance.daemon.stages import StageQueue
from appliance.daemon.transcripts import Transcripts
from appliance.homeassistant import MediaPlayers
from appliance.infer import AnyTranscriber
from appliance.records import Frame
from appliance.speaker import Spoken
from appliance.store import Store


@dataclass(frozen=True, slots=True, eq=False)
class Core:
    """Made before the other parts, in this order."""

    settings: Settings
    node: str
    idle_s: float
    """A stage that waits for its queue reports progress this often."""
    bus: Bus
    health: Health
    mute: Mute
    media: MediaPlayers
    spoken: Spoken
    played: PlayedSound | None
    store: Store
    transcriber: AnyTranscriber
    transcripts: Transcripts
    segmenter: Segmenter
    backlog: Backlog
    frames: StageQueue[Frame]
    states: StageQueue[Work]
