"""What becomes of a window's transcription: what it says that is new, its marks, or why it goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from appliance.config import GateSettings
from appliance.infer.guards import judge, marks
from appliance.infer.joining import Seams
from appliance.records import Transcription, Window


class Verdicts:
    """Judges the transcriptions of windows, in the order of the windows. One thread."""

    def __init__(self, gates: GateSettings) -> None:
        self._gates, self._seams = gates, Seams()

    def on(
        self, window: Window, result: Transcription, recall: Callable[[], str] = str
    ) -> tuple[Transcription, str | None]:
        """The transcription with its marks and without what the window before says too; and why
        it is discarded, if it is (`guards.judge`).

        A window that says nothing new is a `repetition`: its words are told already, and an empty
        transcript would be a sentence that nobody said. `recall` tells the text of the window
        before where this process has not seen it.
        """
        if reason := judge(result, self._gates):
            return result, reason
        text = self._seams.fresh(window, result.text, recall)
        flags = (*result.flags, *marks(result, self._gates))
        return replace(result, text=text, flags=flags), None if text else "repetition"
