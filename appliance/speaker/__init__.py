"""The loudspeaker: answers, announcements, a ring; and what the house says, so that nothing of it
acts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance import lazily

if TYPE_CHECKING:
    from appliance.speaker.loudspeaker import Ending, Kind, Loudspeaker, SpokenSound, play_once
    from appliance.speaker.ringing import ring
    from appliance.speaker.spoken import Spoken

__getattr__ = lazily(__name__, __file__)
