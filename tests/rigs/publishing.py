"""A transcript and a state to publish, and a publisher that runs."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from rigs.waiting import in_thread

from appliance.config import AssistSettings, MqttSettings, Settings
from appliance.mqtt.publisher import Publisher
from appliance.records import ApplianceState, ApplianceStats, Transcript, new_id
from appliance.store.store import Store

STATE = ApplianceState(
    status="running",
    reasons=(),
    encoder="cpu",
    model="tiny.en",
    model_title="Whisper tiny.en",
    microphone="Null Output",
    microphone_online=True,
    queue_depth=0,
    uptime_s=12.3,
    version="0.1.0",
)
OTHERS = Settings(assist=AssistSettings("computer"))


def transcript(text: str = "turn on the light", **changes: Any) -> Transcript:
    plain = Transcript(
        id=new_id(),
        utterance_id=new_id(),
        window=1,
        windows=1,
        start=datetime(2026, 11, 21, 8, 14, 3, 120000, UTC),
        end=datetime(2026, 11, 21, 8, 14, 6, 480000, UTC),
        text=text,
        language="en",
        avg_logprob=-0.21,
        no_speech_prob=0.03,
        compression_ratio=1.1,
        duration_s=3.36,
        model="tiny",
        encoder="hailo8",
        encode_ms=95.2,
        decode_ms=310.0,
        queue_ms=20.4,
        latency_ms=540.3,
        confidence=math.exp(-0.21),
        flags=("clipped",),
    )
    return replace(plain, **changes)


def add(store: Store, publisher: Publisher, *texts: str) -> None:
    """Store a transcript of each text, and tell the publisher."""
    for text in texts:
        store.append(transcript(text))
        publisher.on_change()


@contextmanager
def running(
    settings: MqttSettings,
    store: Store,
    state: Callable[[], ApplianceState] = lambda: STATE,
    node: str = "kitchen",
    *,
    stats: Callable[[], ApplianceStats] | None = None,
    others: Settings = OTHERS,
    flush_s: float = 1.0,
    **more: Any,
) -> Iterator[Publisher]:
    """A publisher in its thread, stopped in the end."""
    publisher = Publisher(replace(others, mqtt=settings), node, store, state, stats, **more)
    with in_thread(publisher.run, lambda: publisher.stop(flush_s)):
        yield publisher
