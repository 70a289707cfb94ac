"""The loudspeaker: answers, announcements, a ring; and what the house says, so that nothing of it
acts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance import lazily

if TYPE_CHECKING:
    from appliance.speaker.loudspeaker import Ending, Kind, Loudspeaker, SpokenSound, play_once
    from appliance.speaker.own_voice import Spoken
    from appliance.speaker.ring_sound import ring

__getattr__ = lazily(__name__, __file__)
