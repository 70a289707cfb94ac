"""What it costs that another room's machine transcribes, and how many rooms one server carries.

    scripts/measure fleet [trip] [latency] [throughput] [return] [idle] [load]
    scripts/measure fleet --simulate ROOMS [--service-ms MS] [--per-hour N] | --check

trip        the same windows by the model in this process and by a worker on loopback, in turn: how
            much longer the worker takes, window by window
latency     the same sentences in real time in a room of its own and at a satellite on loopback: how
            much later the same text is complete, sentence by sentence
throughput  three satellites, one worker and two, which take at least 200 ms for a window: they wait
            rather than compute, so that two cores are enough for all of them
return      no worker at all, then one: from its first word on the bus to the next transcript
idle        bytes that pass between an idle satellite and its server
load        200 simulated satellites, one real server: with two real workers, then with two that
            answer at once and the server held to 1/20 of a core (as root), to find where it ends
--simulate  what one appliance, a house and a site of ROOMS rooms need, by fleet_simulation.py;
--check     compares that simulation with the measured points
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import multiprocessing
import random
import statistics
import tempfile
import time
import wave
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import nats
import numpy as np
from figures import fleet_simulation
from nats.js import errors
from resilience.rooms import House, Speaking, all_told
from rigs.daemon import daemon, write_config
from rigs.fleet import Bus
from rigs.link import Link
from rigs.nats import NatsServer
from rigs.recordings import sentences
from rigs.waiting import holds
from rigs.wyoming import sound_of

from appliance.config import Settings, StoreSettings
from appliance.fleet import open_satellite
from appliance.fleet.messages import ID_HEADER, WINDOW_HEADER, Job, pack_window
from appliance.infer import open_transcriber as open_model
from appliance.records import SAMPLE_RATE, Window, new_id
from appliance.store.store import Store

SATELLITES = 200
CHILDREN = 2
"""Processes that simulate the satellites."""


@dataclass
class Load:
    """What simulated satellites met."""

    round_trips_s: list[float] = field(default_factory=list)
    refused: int = 0
    """Windows that the stream had no room for."""
    unanswered: int = 0


async def _satellite(url: str, node: str, pause_s: float, until_s: float, load: Load) -> None:
    """Sends a window every `pause_s`, one at a time, and waits for its answer."""
    client = await nats.connect(url, inbox_prefix=f"_INBOX.{node}".encode())
    stream, waiting = client.jetstream(), dict[str, asyncio.Future[float]]()

    async def answered(message: Any) -> None:
        found = waiting.pop(str(json.loads(message.data).get("id")), None)
        if found and not found.done():
            found.set_result(time.monotonic())

    await client.subscribe(f"roomscribe.answer.{node}", cb=answered)
    chance = random.Random(node)
    await asyncio.sleep(chance.uniform(0, pause_s))
    while time.monotonic() < until_s:
        begun_s = time.monotonic()
        name, headers, payload = window_of()
        waiting[name] = answer = asyncio.get_running_loop().create_future()
        try:
            await stream.publish(
                f"roomscribe.window.any.{node}", payload, timeout=5, headers=headers
            )
            load.round_trips_s.append(await asyncio.wait_for(answer, 5) - begun_s)
        except errors.APIError:
            load.refused += 1
        except (TimeoutError, nats.errors.Error):
            load.unanswered += 1
        await asyncio.sleep(max(0.0, begun_s + pause_s - time.monotonic()))
    await client.close()


@functools.cache
def packed() -> tuple[dict[str, object], bytes]:
    """Header and FLAC of a sentence of about 3 s."""
    sound = min((sound_of(one.file) for one in sentences()), key=lambda one: abs(len(one) - 48000))
    window = Window("u", 1, True, sound, 0.0, 1.0, 1.0)
    headers, payload = pack_window(Job(window, "sim", 1))
    return json.loads(headers[WINDOW_HEADER]), payload


def window_of() -> tuple[str, dict[str, str], bytes]:
    """Id, headers and payload of a window as a satellite sends it."""
    told, payload = packed()
    name = new_id()
    headers = {ID_HEADER: f"{name}.1", WINDOW_HEADER: json.dumps({**told, "id": name})}
    return name, headers, payload


def satellites_child(
    url: str, numbers: range, pause_s: float, until_s: float, found: multiprocessing.Queue[Load]
) -> None:
    """A process of simulated satellites; puts what they met into `found`."""

    async def all_of_them() -> Load:
        load = Load()
        await asyncio.gather(
            *(_satellite(url, f"sim{one}", pause_s, until_s, load) for one in numbers)
        )
        return load

    found.put(asyncio.run(all_of_them()))


def worker_child(url: str, at_once: int, over: Event) -> None:
    """A worker that answers at once with nothing."""

    async def work() -> None:
        client = await nats.connect(url)
        taken = await client.jetstream().pull_subscribe_bind("workers-any", stream="ROOMSCRIBE")
        while not over.is_set():
            with suppress(TimeoutError, asyncio.TimeoutError, nats.errors.Error):
                for message in await taken.fetch(1, timeout=1):
                    about = json.loads((message.headers or {})["Roomscribe-Window"])
                    node = message.subject.rpartition(".")[2]
                    answer = json.dumps({"v": 1, "id": about["id"]}).encode()
                    await client.publish(f"roomscribe.answer.{node}", answer)
                    await message.ack()
        await client.close()

    async def all_of_them() -> None:
        await asyncio.gather(*(work() for _ in range(at_once)))

    asyncio.run(all_of_them())


@contextmanager
def held(pid: int, share: float) -> Iterator[str]:
    """Holds a process to a share of one core by a control group; says why, where that fails."""
    first, second = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
    old = (first / "cpu.cfs_quota_us").exists()
    group = (first if old else second) / f"roomscribe-figures-{pid}"
    quota = int(share * 100_000)
    try:
        group.mkdir()
        if old:
            (group / "cpu.cfs_period_us").write_text("100000")
            (group / "cpu.cfs_quota_us").write_text(str(quota))
        else:
            (group / "cpu.max").write_text(f"{quota} 100000")
        (group / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        yield f"not held: {error}"
        return
    try:
        yield ""
    finally:
        ((first if old else second) / "cgroup.procs").write_text(str(pid))
        group.rmdir()


def main() -> None:
    """Prints the figures that were asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("figures", nargs="*", metavar="FIGURES", help="which; default: all")
    parser.add_argument("--sentences", type=int, default=20, help="latency: how many")
    parser.add_argument("--simulate", type=int, metavar="ROOMS", help="rooms of a site, 1 to 20000")
    parser.add_argument("--service-ms", type=float, default=60.0, help="a worker's time per window")
    parser.add_argument("--per-hour", type=float, default=60.0, help="sentences of a room per hour")
    parser.add_argument("--check", action="store_true", help="the simulation and what was measured")
    given = parser.parse_args()
    if given.simulate is not None or given.check:
        print_simulation(parser, given)
        return
    unknown = set(given.figures) - set(FIGURES)
    if unknown:
        parser.error(f"no {', '.join(sorted(unknown))}; there are {', '.join(FIGURES)}")
    for name in given.figures or FIGURES:
        for line in FIGURES[name](given):
            print(f"{name}: {line}", flush=True)


def print_simulation(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    """Prints what the simulation found."""
    for name, value, most in (
        ("--simulate", given.simulate, 20_000),
        ("--service-ms", given.service_ms, 10_000),
        ("--per-hour", given.per_hour, 1200),
    ):
        if value is not None and not 1 <= value <= most:
            parser.error(f"{name}: expected 1 to {most}, found {value:g}")
    if given.check:
        for line in fleet_simulation.compare():
            print(line, flush=True)
    if given.simulate is not None:
        for line in fleet_simulation.simulate(given.simulate, given.service_ms, given.per_hour):
            print(line, flush=True)


def trip(_given: argparse.Namespace) -> Iterator[str]:
    """How much longer a worker takes than the model in the same process."""
    windows = [
        Window(f"u{number}", 1, True, sound_of(one.file, 0.3, 0.6), 0.0, 1.0, 1.0)
        for number, one in enumerate(sentences())
    ]
    plain = replace(Settings(), model=replace(Settings().model, bundle="tiny.en"))
    with House(0, 12) as house, NatsServer() as server, Bus(server.url) as bus:
        if not house.serving(bus, house.worker("worker", [server.url])):
            raise RuntimeError("the worker does not serve")
        fleet = replace(Settings().fleet, role="satellite", server=(server.url,))
        with (
            open_model(plain) as local,
            open_satellite(replace(Settings(), fleet=fleet)) as satellite,
        ):
            local.warm_up()
            satellite.warm_up()
            taken_ms: dict[str, list[float]] = {"here": [], "there": []}
            for turn, window in enumerate((*windows[:5], *windows, *windows)):
                for name, by in (("here", local), ("there", satellite)):
                    begun_s = time.monotonic()
                    by.transcribe(replace(window, id=new_id()))
                    if turn >= WARM:
                        taken_ms[name].append(1000 * (time.monotonic() - begun_s))
    extra = [b - a for a, b in zip(taken_ms["here"], taken_ms["there"], strict=True)]
    length_s = statistics.mean(one.duration_s for one in windows)
    yield (
        f"windows of {length_s:.1f} s: here {of(taken_ms['here'])}, by a worker "
        f"{of(taken_ms['there'])}; window by window {of(extra)} longer"
    )


WARM = 5
"""The first windows are slower."""


def latency(given: argparse.Namespace) -> Iterator[str]:
    """How much later the same texts are complete at a satellite."""
    chosen = [sound_of(one.file, 0.3, 2.0) for one in sentences()[: given.sentences]]
    length_s = sum(len(one) for one in chosen) / SAMPLE_RATE
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name, NatsServer() as server:
        folder = Path(name)
        recording = folder / "room.wav"
        with wave.open(str(recording), "wb") as file:
            file.setparams((1, 2, SAMPLE_RATE, 0, "NONE", ""))
            file.writeframes(np.concatenate(chosen).tobytes())
        for speculate in (False, True):
            rows = {
                role: heard_in_real_time(folder / f"{role}{speculate}", role, server.url, recording,
                                         speculate=speculate)
                for role in ("alone", "satellite")
            }  # fmt: skip
            extra = [b - a for a, b in zip(rows["alone"], rows["satellite"], strict=True)]
            ahead = "transcribed ahead in the silence" if speculate else "nothing ahead"
            yield (
                f"{ahead}: in a room of its own {of(rows['alone'])}, at a satellite "
                f"{of(rows['satellite'])}; sentence by sentence {of(extra)} later "
                f"(of {length_s / len(chosen) - 2.3:.1f} s)"
            )


def heard_in_real_time(
    folder: Path, role: str, url: str, recording: Path, *, speculate: bool
) -> list[float]:
    """Latencies, ms, of what a room says, alone or as a satellite with one worker."""
    folder.mkdir()
    common: dict[str, Any] = {
        "fleet": {"role": role, "server": url},
        "segmenter": {"speculate": speculate},
        "spool": {"path": folder / "spool"},
        "model": {"bundle": "tiny.en" if role == "alone" else ""},
    }
    config = write_config(folder, **common)
    with tempfile.TemporaryDirectory() as name, Bus(url) as bus:
        served = write_config(
            Path(name),
            appliance={"node": "worker"},
            capture={"device": "none"},
            fleet={"role": "worker", "server": url},
            model={"bundle": "tiny.en"},
            store={"path": Path(name) / "state"},
        )
        with daemon(served) as worker:
            if role == "alone":
                worker.kill()
            elif not holds(bus.workers, 30):
                raise RuntimeError((Path(name) / "log").read_text(encoding="utf-8"))
            with daemon(config, "--recording", recording) as running:
                running.wait(600)
    with Store.open(StoreSettings(path=str(folder / "state")), read_only=True) as store:
        return [row.transcript.latency_ms for row in reversed(store.query(limit=10_000))]


def throughput(_given: argparse.Namespace) -> Iterator[str]:
    """Windows a second of three satellites with one worker and with two."""
    rates = []
    for number in (1, 2):
        with House(0, 12) as house, NatsServer() as server, Bus(server.url) as bus:
            workers = [
                house.worker(f"worker{one}", [server.url], least_ms=LEAST_MS)
                for one in range(number)
            ]
            satellites = house.satellites(3, [server.url])
            if not house.serving(bus, *workers):
                raise RuntimeError("the workers do not serve")
            with Speaking(satellites, 4) as speaking:  # the first ones are slower
                speaking.wait(60)
            all_told(satellites)
            with Speaking(satellites, 30) as speaking:
                speaking.wait(120)
            all_told(satellites)
            each_s = [sorted(one.heard_s())[4 + 5 : -5] for one in satellites]
            rates.append(sum((len(one) - 1) / (one[-1] - one[0]) for one in each_s))
    yield (
        f"3 satellites, {LEAST_MS} ms a window: one worker {rates[0]:.2f}, two {rates[1]:.2f} "
        f"windows/s: {rates[1] / rates[0]:.2f} times"
    )


LEAST_MS = 200


def back_to_work(_given: argparse.Namespace) -> Iterator[str]:
    """From a worker's return to the first transcript of what waited for it."""
    taken_ms = []
    with House(0, 12) as house, NatsServer() as server, Bus(server.url) as bus:
        worker, satellite = (
            house.worker("worker", [server.url]),
            house.satellite("satellite1", [server.url]),
        )
        if not house.serving(bus, worker):
            raise RuntimeError("the worker does not serve")
        satellite.speak(lambda: True, 2)
        all_told([satellite])
        for _ in range(10):
            worker.kill()
            satellite.speak(lambda: True, 1)
            time.sleep(8.0)
            told = len(satellite.heard_s())
            worker.start()
            holds(lambda: bus.workers(0.02), 30, 0.0)
            back_s = time.monotonic()
            all_told([satellite])
            taken_ms.append(1000 * (satellite.heard_s()[told] - back_s))
    yield f"from the worker's first answer on the bus to the text of what waited: {of(taken_ms)}"


def idle(_given: argparse.Namespace) -> Iterator[str]:
    """Bytes between a satellite in which nobody speaks and the server."""
    with (
        House(0, 12) as house,
        NatsServer() as server,
        Bus(server.url) as bus,
        Link(server.port) as link,
    ):
        worker, satellite = (
            house.worker("worker", [server.url]),
            house.satellite("satellite1", [link.url]),
        )
        if not house.serving(bus, worker):
            raise RuntimeError("the worker does not serve")
        satellite.speak(lambda: True, 1)
        all_told([satellite])
        time.sleep(5)
        before, begun_s = (len(link.sent), link.returned), time.monotonic()
        time.sleep(120)
        passed_s = time.monotonic() - begun_s
        sent, back = len(link.sent) - before[0], link.returned - before[1]
    yield (
        f"{sent / passed_s:.1f} bytes/s from the satellite and {back / passed_s:.1f} to it, over "
        f"{passed_s:.0f} s"
    )


def load(_given: argparse.Namespace) -> Iterator[str]:
    """Simulated satellites, one server."""
    size = len(packed()[1])
    with House(0, 12) as house, NatsServer() as server, Bus(server.url) as bus:
        workers = [house.worker(f"worker{one}", [server.url]) for one in (1, 2)]
        if not house.serving(bus, *workers):
            raise RuntimeError("the workers do not serve")
        for pause_s in (30.0, 15.0, 10.0):
            yield "two workers with tiny.en, " + loaded(server, pause_s, size)
    for share in (0.0, 0.05):
        with House(0, 12) as house, NatsServer() as server, Bus(server.url) as bus:
            worker = house.worker("worker1", [server.url])
            if not house.serving(bus, worker):  # it makes the stream
                raise RuntimeError("the worker does not serve")
            worker.kill()
            over = multiprocessing.Event()
            served = [
                multiprocessing.Process(target=worker_child, args=(server.url, 8, over))
                for _ in range(2)
            ]
            for one in served:
                one.start()
            with held(server.pid, share) if share else no_hold() as trouble:
                how = trouble or (f"held to {share:.0%} of a core" if share else "not held")
                for pause_s in (5.0, 1.0, 0.5) if not share else (5.0, 2.0, 1.0, 0.7, 0.5):
                    yield f"workers that answer at once, server {how}: " + loaded(
                        server, pause_s, size
                    )
            over.set()
            for one in served:
                one.join(10)
                one.kill()


@contextmanager
def no_hold() -> Iterator[str]:
    """In place of `held`."""
    yield ""


def loaded(server: NatsServer, pause_s: float, size: int) -> str:
    """What SATELLITES satellites, each with a window every `pause_s`, come to."""
    found: multiprocessing.Queue[Load] = multiprocessing.Queue()
    begun_s, each = time.monotonic(), SATELLITES // CHILDREN
    for_s = max(12.0, 2 * pause_s)
    children = [
        multiprocessing.Process(
            target=satellites_child,
            args=(server.url, range(one * each, (one + 1) * each), pause_s, begun_s + for_s, found),
        )
        for one in range(CHILDREN)
    ]
    for one in children:
        one.start()
    time.sleep(for_s / 3)
    (before_s, _), from_s = server.usage(), time.monotonic()
    time.sleep(for_s / 2)
    (after_s, memory_mb), to_s = server.usage(), time.monotonic()
    loads = [found.get(timeout=120) for _ in children]
    for one in children:
        one.join(10)
    trips_s = sorted(one for load in loads for one in load.round_trips_s)
    if not trips_s:
        return "not one window was answered"
    return (
        f"{SATELLITES} satellites, a window of {size / 1000:.0f} kB every {pause_s:g} s each: "
        f"{len(trips_s) / for_s:.0f} windows/s done, round trip "
        f"{of([1000 * one for one in trips_s])}, no room {sum(one.refused for one in loads)}, "
        f"unanswered in 5 s {sum(one.unanswered for one in loads)}; server "
        f"{100 * (after_s - before_s) / (to_s - from_s):.0f} % of a core, {memory_mb:.0f} MB"
    )


def of(taken_ms: Sequence[float]) -> str:
    """Median and 95th percentile."""
    ninety_fifth = sorted(taken_ms)[max(0, int(len(taken_ms) * 0.95 + 0.5) - 1)]
    return f"p50 {statistics.median(taken_ms):.1f} ms, p95 {ninety_fifth:.1f} ms of {len(taken_ms)}"


FIGURES: dict[str, Callable[[argparse.Namespace], Iterator[str]]] = {
    "trip": trip,
    "latency": latency,
    "throughput": throughput,
    "return": back_to_work,
    "idle": idle,
    "load": load,
}


if __name__ == "__main__":
    main()
