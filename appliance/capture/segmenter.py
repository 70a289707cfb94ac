"""Frames to utterances to windows of at most the model's length.

While idle, the segmenter keeps the newest PRE_ROLL_MS. From the frame that opens an utterance it
keeps everything until `hang_over_ms` without speech (see also `Endpoint`), or until speech is
longer than `window_s`: then the utterance is cut, and continues in the next window.
"""

from dataclasses import replace

from appliance.capture.endpoint import Endpoint, NoiseFloor, loudest
from appliance.capture.loudness import power_of
from appliance.capture.utterance import (
    PRE_ROLL_MS,
    TAIL_MS,
    Due,
    FrameBuffer,
    JudgedFrame,
    Lengths,
    Utterance,
    samples_of,
)
from appliance.capture.voice import ASLEEP, NOISE_SCORE, OVER_S, Judgement, VoiceDetector
from appliance.config import SegmenterSettings
from appliance.records import SAMPLE_RATE, Discarded, Frame, Window, new_id

RESUMED_WITHIN_S = 0.8
"""Speech that starts within this after an utterance that was closed early continues it."""
GAP_ENDS_S = 0.5
"""A longer gap in the sound ends the utterance; a shorter one is flagged."""


class ReferenceFilter:
    """Leaves out speech that the reference explains, and reports it once it is over. One thread."""

    def __init__(self, hang_over_s: float) -> None:
        self._hang_over_s = hang_over_s
        self._explained_s = self._ago_s = 0.0
        """Speech of the loudspeakers since the last report, and the time since its end."""

    def push(self, frame: Frame, judgement: Judgement) -> Judgement:
        """Return the judgement, as no speech for a frame that the reference explains."""
        if frame.explained:
            if judgement.opens or judgement.speech:
                self._explained_s += len(frame.samples) / SAMPLE_RATE
                self._ago_s = 0.0
            judgement = replace(judgement, opens=False, speech=False, voiced_s=0.0, missed_s=0.0)
        self._ago_s += len(frame.samples) / SAMPLE_RATE
        return judgement

    def report(self, *, speaking: bool) -> list[Discarded]:
        """Return the loudspeakers' speech that is over, unless it is in an open utterance."""
        over = self._ago_s >= self._hang_over_s and not speaking
        explained_s = self._explained_s
        if over or speaking:
            self._explained_s = 0.0
        return [Discarded("reference", new_id(), explained_s)] if over and explained_s else []


class Segmenter:
    """Cuts speech out of silence. One thread; a returned window is final."""

    def __init__(self, voice: VoiceDetector, settings: SegmenterSettings, window_s: float) -> None:
        self._voice = voice
        hang_over, overlap = samples_of(settings.hang_over_ms), samples_of(settings.overlap_ms)
        self._lengths = Lengths(hang_over, overlap, int(window_s * SAMPLE_RATE))
        self._reference = ReferenceFilter(settings.hang_over_ms / 1000)
        self._idle = FrameBuffer()
        self._utterance: Utterance | None = None
        self._early: Window | None = None
        """The window that ended the last utterance early, if no other was opened since."""
        self._heard_until_s = float("-inf")  # end of the last utterance's speech
        self._floor = NoiseFloor()
        self._endpoint = Endpoint(settings, self._floor)

    @property
    def speaking(self) -> bool:
        """True while an utterance is open."""
        return self._utterance is not None

    @property
    def alert(self) -> bool:
        """True while an utterance is open, or may be opened by what has been heard."""
        last = self._idle.judged[-1].judgement if self._idle.judged else ASLEEP
        return self.speaking or last.score >= NOISE_SCORE

    @property
    def utterance_id(self) -> str:
        """Id of the open utterance; empty while nobody speaks."""
        return self._utterance.id if self._utterance else ""

    @property
    def closed_early(self) -> bool:
        """True if the last utterance was closed before the hang-over and no other was opened
        since."""
        return self._early is not None

    @property
    def speculative_window(self) -> Window | None:
        """The window that ends the utterance if nobody says more; there from TAIL_MS of silence
        until speech resumes or the utterance ends. A final window with the same samples has its
        id."""
        return self._utterance.speculative if self._utterance else None

    def end_after(self, window_id: str, silence_ms: float) -> None:
        """End the utterance after `silence_ms` in place of `hang_over_ms`, if the speculative
        window has this id. This holds until speech resumes.

        An utterance that was closed early stays closed: what would have kept it open opens the next
        one, which `continues` it. Where somebody talks without end (a television), nothing ends
        early.
        """
        utterance = self._utterance
        if utterance and utterance.speculative and utterance.speculative.id == window_id:
            stands_out = self._endpoint.stands_out()
            least = samples_of(TAIL_MS) if stands_out else self._lengths.hang_over
            utterance.ending_silence = max(samples_of(silence_ms), least)

    def close_if_due(self) -> list[Window | Discarded]:
        """Close the utterance if the silence that `end_after` asked for is over, before the next
        frame."""
        if self._utterance and self._utterance.is_over:
            return [self._close_after_silence(self._utterance)]
        return []

    def push(self, frame: Frame) -> list[Window | Discarded]:
        """Take in the next frame; return what it completes: a window, a discarded utterance, or
        nothing."""
        frames = (self._utterance.buffer if self._utterance else self._idle).judged
        is_after_gap = frames and abs(frame.start_s - frames[-1].frame.end_s) >= GAP_ENDS_S
        results = self.flush(interrupted=True) if is_after_gap else []
        judged = self._judge(frame)
        results += self._reference.report(speaking=self.speaking)
        if self._utterance:
            return results + self._follow(self._utterance, judged)
        return results + self._wait_for_speech(judged)

    def so_far(self) -> Window | None:
        """Return the window that a cut now would give, with an id of its own; None while nobody
        speaks, and while it is too short to be speech."""
        return self._utterance.so_far(self._endpoint) if self._utterance else None

    def flush(self, *, interrupted: bool = False) -> list[Window | Discarded]:
        """Close the open utterance, if any: the source ended or (`interrupted`) was lost."""
        flags = ("interrupted",) if interrupted else ()
        results = [self._close(self._utterance, *flags)] if self._utterance else []
        self._idle, self._early = FrameBuffer(), None
        self._voice.reset()
        self._floor.reset()
        return results

    def _judge(self, frame: Frame) -> JudgedFrame:
        """Return the frame with the judgement of detector, reference and level."""
        detected, power = self._voice.push(frame), power_of(frame.samples)
        length_s = len(frame.samples) / SAMPLE_RATE
        judgement = self._reference.push(frame, detected)
        self._floor.push(power, len(frame.samples))
        # the level may overrule the detector, but only once somebody has spoken
        if self.speaking or self.closed_early:
            judgement = self._endpoint.refine(judgement, power, length_s)
        return JudgedFrame(frame, judgement, power)

    def _wait_for_speech(self, judged: JudgedFrame) -> list[Window | Discarded]:
        """Keep a frame, and open an utterance if speech has begun with it. Return a sound that is
        too unlike speech to open one, and too like it to leave no trace."""
        self._idle.keep_newest(samples_of(PRE_ROLL_MS))
        self._idle.append(judged)
        if judged.judgement.opens or self._would_have_stayed_open(judged):
            self._open()
        elif 0 < judged.judgement.missed_s <= judged.frame.end_s - OVER_S - self._heard_until_s:
            return [Discarded("no_speech", new_id(), judged.judgement.missed_s)]
        return []

    def _follow(self, utterance: Utterance, judged: JudgedFrame) -> list[Window | Discarded]:
        """Add a frame to the open utterance and do what is due."""
        utterance.append(judged)
        self._endpoint.follow(judged.judgement, len(judged.frame.samples) / SAMPLE_RATE)
        match utterance.due(self._endpoint):
            case Due.CUT:
                return [utterance.cut(self._floor.power)]
            case Due.CLOSE:
                return [self._close_after_silence(utterance)]
            case Due.STEADY:
                return [self._close(utterance)]
            case Due.LOUDER:
                utterance.end_before_voice(self._endpoint.frames_since_louder())
                softer = self._close(utterance)
                self._open()
                return [softer]
            case Due.SPECULATE:
                utterance.speculate(self._endpoint)
        return []

    def _open(self) -> None:
        """Open an utterance with the pre-roll."""
        frames, continues = self._idle.judged, ""
        if self._early:
            spoken = [judged.frame.start_s for judged in frames if judged.judgement.speech]
            begin_s = min(spoken, default=frames[-1].frame.start_s)
            if begin_s - self._early.speech_end_s <= RESUMED_WITHIN_S:
                continues = self._early.utterance_id
        self._utterance = Utterance(self._idle, self._lengths, continues)
        self._idle, self._early = FrameBuffer(), None
        powers = [judged.power for judged in frames]
        self._endpoint.open(loudest(powers, len(frames[0].frame.samples)))

    def _would_have_stayed_open(self, judged: JudgedFrame) -> bool:
        """True for a frame that would have kept the last utterance open if it had not been closed
        early: speech within the hang-over."""
        if self._early is None or not judged.judgement.speech:
            return False
        silence_s = judged.frame.start_s - self._early.speech_end_s
        return silence_s < self._lengths.hang_over / SAMPLE_RATE

    def _close(self, utterance: Utterance, *flags: str) -> Window | Discarded:
        """Close the utterance; the silence after it is the next pre-roll."""
        window, self._idle = utterance.close(*flags)
        self._utterance, self._heard_until_s = None, window.speech_end_s
        if reason := utterance.rejection(window, self._endpoint):
            return Discarded(reason, window.utterance_id, window.duration_s)
        return window

    def _close_after_silence(self, utterance: Utterance) -> Window | Discarded:
        """Close the utterance, perhaps before the hang-over is over."""
        result = self._close(utterance)
        if isinstance(result, Window) and utterance.silence < self._lengths.hang_over:
            self._early = result
        return result
