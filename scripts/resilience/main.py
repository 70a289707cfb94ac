"""Try to break Roomscribe's promises; print a line for each, status 1 if one is broken.

    scripts/torture [--short] [kill] [disk] [broker] [power] [fuzz] [latency] [fleet] [house]
        [soak] [model]

kill      kill -9 at random moments of a stream of sentences, while the broker restarts at random
disk      full, read-only, locked, deleted, damaged under the running daemon (as root)
broker    restarts of the broker: lost, doubled, and how soon the first event follows
power     the store's files as a power cut leaves them
fuzz      damaged configurations, recordings, messages and model bundles
latency   from the last sample of speech to the subscriber, and where the time goes
fleet     several rooms: workers and the server die, links are bad; --scene names one of its scenes
house     several rooms hear each sentence: who acts, with kills, broker restarts and partitions
soak      hours of sound as fast as they are digested; with --hours and --out, to be resumed
model     every state of a model of the protocol, for a guarantee that can fail, random steps of
          the real parts, compared with the model, and traces of the model replayed by the whole
          daemon with a real Mosquitto and nats-server (docs/promises.md)

With no name all of them; the soak is short unless it is named. $ROOMSCRIBE_SHARED names a folder
with recordings of real speech and noise for the soak. With --record, what each run counted goes
into docs/promises.json and the table of docs/promises.md; --table only writes that table.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from resilience import evidence
from rigs.checkout import ROOT
from rigs.nats import missing as missing_nats

BACK_WITHIN_S = 5.0
"""From the broker's return to the first event."""


def main() -> int:
    """Run the ordeals that were named; 1 when a promise was broken."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("ordeals", nargs="*", metavar="ORDEAL", help="which; default: all")
    parser.add_argument("--short", action="store_true", help="all within a minute or two")
    parser.add_argument("--kills", type=int, help="how many (default 200, short 8)")
    parser.add_argument("--seed", type=int, default=0, help="of all that is random")
    parser.add_argument("--without-spool", action="store_true", help="kill: losses must be found")
    parser.add_argument("--hours", type=float, help="soak: hours of sound (default 1, short 0.04)")
    parser.add_argument(
        "--recordings", type=Path, help="latency: people's commands in a folder with MANIFEST.tsv"
    )
    parser.add_argument("--early-ms", type=int, help="latency: other than the default")
    parser.add_argument("--encoder-ms", type=float, default=0.0, help="latency: at least so long")
    parser.add_argument("--decoder-ms", type=float, default=0.0, help="latency: at least so long")
    parser.add_argument("--partials", action="store_true", help="latency: with partial texts")
    parser.add_argument("--scene", action="append", default=[], help="fleet: which; see fleet.py")
    parser.add_argument("--out", type=Path, help="soak: folder of its measures and picture")
    parser.add_argument("--record", action="store_true", help="keep the counts of docs/promises.md")
    parser.add_argument("--table", action="store_true", help="write the table of docs/promises.md")
    given = parser.parse_args()
    unknown = set(given.ordeals) - set(ORDEALS)
    if unknown:
        parser.error(f"no ordeal {', '.join(sorted(unknown))}; there are {', '.join(ORDEALS)}")
    # brokers and daemons are ended, whoever ends this program
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    broken = []
    for name in () if given.table else given.ordeals or ORDEALS:
        begun_s, given.counts = time.monotonic(), Counter()
        kept = ORDEALS[name](given)
        took_s = time.monotonic() - begun_s
        if not kept:
            broken.append(name)
        elif given.record and given.counts:
            evidence.record(name, given.counts, took_s)
        print(f"    ({name}: {took_s:.0f} s)", file=sys.stderr, flush=True)
    if given.record or given.table:
        evidence.write_page()
    if broken:
        print(f"BROKEN: {', '.join(broken)}")
    return 1 if broken else 0


def kill(given: argparse.Namespace) -> bool:
    """Kill of the daemon."""
    from resilience import kill as ordeal

    outcome = ordeal.run(
        given.kills or (8 if given.short else 200),
        given.seed,
        spool=not given.without_spool,
        count=12 if given.short else 40,
    )
    print(outcome, flush=True)
    given.counts.update(kills=outcome.kills, restarts=outcome.restarts)
    return not outcome.broken


def disk(given: argparse.Namespace) -> bool:
    """Troubles of the disk; skipped where no disk can be mounted."""
    from resilience import disk as ordeal

    try:
        cases = ordeal.run(ordeal.SHORT if given.short else None)
    except OSError as error:
        print(f"disk: SKIPPED: mounting a small disk needs root and CAP_SYS_ADMIN ({error})")
        return True
    for case in cases:
        print(f"disk: {case}", flush=True)
    given.counts.update(troubles=len(cases))
    return not any(case.broken for case in cases)


def broker(given: argparse.Namespace) -> bool:
    """Restart of the broker while sentences come."""
    from rigs.storm import storm

    logging.disable(logging.CRITICAL)  # each restart would have its lines

    restarts, utterances = (4, 60) if given.short else (40, 400)
    with tempfile.TemporaryDirectory() as folder:
        outcome = storm(
            Path(folder),
            restarts=restarts,
            utterances=utterances,
            house=False,
            seconds=1.0 if given.short else 4.0,
            seed=given.seed,
        )
    logging.disable(logging.NOTSET)
    after_s = sorted(outcome.back_after_s())
    print(
        f"broker: {restarts} restarts, {len(outcome.said)} said: lost {outcome.lost}, doubled for "
        f"nothing {outcome.doubled_for_nothing()}, in order: {outcome.in_order}; first event after "
        f"its return: median {after_s[len(after_s) // 2]:.2f} s, longest {after_s[-1]:.2f} s",
        flush=True,
    )
    given.counts.update(restarts=restarts)
    slow = not given.short and after_s[-1] > BACK_WITHIN_S
    return not (outcome.lost or outcome.doubled_for_nothing() or slow) and outcome.in_order


def power(given: argparse.Namespace) -> bool:
    """Power cuts: a program of its own."""
    cuts = 30 if given.short else 300
    command = [sys.executable, "-m", "resilience.power", "--cuts", str(cuts)]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    print(done.stdout.rstrip(), flush=True)
    given.counts.update(cuts=0 if "skipped" in done.stdout else cuts)
    return done.returncode == 0


def fuzz(given: argparse.Namespace) -> bool:
    """The fuzzing tests, with more examples, and those that compare with exact results, with all
    inputs; a short run leaves them to the tests, unless named."""
    if given.short and "fuzz" not in given.ordeals:
        return True
    examples = "50" if given.short else "1000"
    tests = ("tests/fuzz", "tests/infer/test_parity.py", "tests/infer/test_phrases.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"ROOMSCRIBE_FUZZ": examples},
        stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    lines = done.stdout.strip().splitlines() or ["no tests"]
    print(f"fuzz: {examples} examples each: {lines[-1].strip('= ')}", flush=True)
    if done.returncode:
        print(done.stdout)
    return done.returncode == 0


def latency(given: argparse.Namespace) -> bool:
    """Where the time goes between speech and subscriber."""
    from resilience import latency as ordeal

    count = 1 if given.recordings else 3 if given.short else 40
    sounds = ordeal.people(given.recordings) if given.recordings else ordeal.synthetic(count)
    least_ms = given.encoder_ms, given.decoder_ms
    outcome = ordeal.run(
        sounds, count, partials=given.partials, least_ms=least_ms, early_ms=given.early_ms
    )
    print(outcome, flush=True)
    return not outcome.broken


def fleet(given: argparse.Namespace) -> bool:
    """Several rooms, of which some transcribe for all; skipped where there is no server."""
    from resilience import fleet as ordeal

    if missing_nats():
        print(f"fleet: SKIPPED: {missing_nats()}")
        return True
    if unknown := set(given.scene) - set(ordeal.SCENES):
        print(f"fleet: no scene {', '.join(unknown)}; there are {', '.join(ordeal.SCENES)}")
        return False
    whole = True
    for outcome in ordeal.run(given.scene, ordeal.Plan(given.seed, given.short, given.kills)):
        print(outcome, flush=True)
        given.counts.update(kills=outcome.kills)
        whole = whole and not outcome.faults
    return whole


def house(given: argparse.Namespace) -> bool:
    """Several rooms hear each sentence, and one acts."""
    from resilience import house as ordeal

    if given.short:
        outcome = ordeal.run(10, given.seed, kills=1, restarts=1)
    else:
        outcome = ordeal.run(500, given.seed, kills=50, restarts=20, partitions=20)
    print(outcome, flush=True)
    given.counts.update({name: outcome.disturbances[name] for name in ("kills", "restarts")})
    return not outcome.broken


def soak(given: argparse.Namespace) -> bool:
    """Hours of sound through one daemon."""
    from resilience import soak as ordeal

    named = "soak" in given.ordeals and not given.short
    hours = given.hours or (1.0 if named else 0.04)
    with tempfile.TemporaryDirectory() as folder:
        outcome = ordeal.run(hours, given.out or Path(folder), given.seed)
    print(outcome, flush=True)
    given.counts.update(sound_hours=round(outcome.last.get("hours", 0.0)))
    return not outcome.broken


def model(given: argparse.Namespace) -> bool:
    """Search the protocol's model, compare the code with it, and replay traces of it with whole
    daemons; a short run leaves that to the tests, unless it is named."""
    if given.short and "model" not in given.ordeals:
        return True
    kept = True
    with tempfile.TemporaryDirectory() as folder:
        counts = Path(folder) / "counts"
        short = ["--short"] if given.short else []
        command = [sys.executable, "-m", "protocol.search", *short, "--counts", str(counts)]
        kept = subprocess.run(command, cwd=ROOT, check=False).returncode == 0
        given.counts.update(json.loads(counts.read_text()) if counts.exists() else {})
        kept = _machine(given, Path(folder) / "steps") and kept
    from resilience import replay

    logging.disable(logging.CRITICAL)
    traces = 2 if given.short else 12
    replays = [replay.run(traces, given.seed)]
    if not missing_nats():
        replays.append(replay.run_fleet(traces, given.seed))
    logging.disable(logging.NOTSET)
    for outcome in replays:
        print(outcome, flush=True)
        given.counts.update(traces=outcome.traces)
        kept = kept and not outcome.broken
    return kept


def _machine(given: argparse.Namespace, steps: Path) -> bool:
    """Let the real parts take random steps; count them in the file `steps`."""
    machine = ROOT / "tests/protocol/test_machine.py"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(machine)]
    environment = {
        "ROOMSCRIBE_MODEL": "1" if given.short else os.environ.get("ROOMSCRIBE_MODEL", "40"),
        "ROOMSCRIBE_MODEL_STEPS": str(steps),
    }
    done = subprocess.run(
        [*command, "--timeout=3600"], cwd=ROOT, env=os.environ | environment,
        stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    taken = sum(map(int, steps.read_text().split())) if steps.exists() else 0
    given.counts.update(steps=taken)
    last = (done.stdout.strip().splitlines() or ["no tests"])[-1]
    print(f"the real code: {taken:,} random steps; {last}", flush=True)
    if done.returncode:
        print(done.stdout)
    return done.returncode == 0


ORDEALS: dict[str, Callable[[argparse.Namespace], bool]] = {
    "kill": kill,
    "disk": disk,
    "broker": broker,
    "power": power,
    "fuzz": fuzz,
    "latency": latency,
    "fleet": fleet,
    "house": house,
    "soak": soak,
    "model": model,
}


if __name__ == "__main__":
    sys.exit(main())
