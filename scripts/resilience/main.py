"""Try to break Roomscribe's promises; print a line for each, status 1 if one is broken.

    scripts/torture [--short] [kill] [disk] [broker] [power] [fuzz] [fleet] [house] [model]

kill      kill -9 at random moments of a stream of sentences, while the broker restarts at random
disk      full, read-only, locked, deleted, damaged under the running daemon (as root)
broker    restarts of the broker: lost, doubled, and how soon the first event follows
power     the store's files as a power cut leaves them
fuzz      damaged configurations, recordings, messages and model bundles
fleet     several rooms: workers and the server die, links are bad; --scene names one of its scenes
house     several rooms hear each sentence: who acts, with kills, broker restarts and partitions
model     every state of a model of the protocol, for a guarantee that can fail, and random steps of
          the real parts, compared with the model (docs/promises.md)

With no name all of them; a short run leaves fuzz and model to the tests.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rigs.checkout import ROOT
from rigs.nats import missing as missing_nats

BACK_WITHIN_S = 5.0
"""From the broker's return to the first event."""


def main() -> int:
    """Run the tests that were named; 1 when a promise was broken."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tests", nargs="*", metavar="TEST", help="which; default: all")
    parser.add_argument("--short", action="store_true", help="all within a minute or two")
    parser.add_argument("--kills", type=int, help="how many (default 200, short 6)")
    parser.add_argument("--seed", type=int, default=0, help="of all that is random")
    parser.add_argument("--without-spool", action="store_true", help="kill: losses must be found")
    parser.add_argument("--scene", action="append", default=[], help="fleet: which; see fleet.py")
    given = parser.parse_args()
    unknown = set(given.tests) - set(TESTS)
    if unknown:
        parser.error(f"no test {', '.join(sorted(unknown))}; there are {', '.join(TESTS)}")
    # brokers and daemons are ended, whoever ends this program
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    broken = []
    for name in given.tests or TESTS:
        begun_s = time.monotonic()
        if not TESTS[name](given):
            broken.append(name)
        print(f"    ({name}: {time.monotonic() - begun_s:.0f} s)", file=sys.stderr, flush=True)
    if broken:
        print(f"BROKEN: {', '.join(broken)}")
    return 1 if broken else 0


def kill(given: argparse.Namespace) -> bool:
    """Kill of the daemon."""
    from resilience import kill as test

    outcome = test.run(
        given.kills or (6 if given.short else 200),
        given.seed,
        spool=not given.without_spool,
        count=12 if given.short else 40,
    )
    print(outcome, flush=True)
    return not outcome.broken


def disk(given: argparse.Namespace) -> bool:
    """Troubles of the disk; skipped where no disk can be mounted."""
    from resilience import disk as test

    try:
        cases = test.run(test.SHORT if given.short else None)
    except OSError as error:
        print(f"disk: SKIPPED: mounting a small disk needs root and CAP_SYS_ADMIN ({error})")
        return True
    for case in cases:
        print(f"disk: {case}", flush=True)
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
    slow = not given.short and after_s[-1] > BACK_WITHIN_S
    return not (outcome.lost or outcome.doubled_for_nothing() or slow) and outcome.in_order


def power(given: argparse.Namespace) -> bool:
    """Power cuts: a program of its own."""
    cuts = 30 if given.short else 300
    command = [sys.executable, "-m", "resilience.power", "--cuts", str(cuts)]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    print(done.stdout.rstrip(), flush=True)
    return done.returncode == 0


def fuzz(given: argparse.Namespace) -> bool:
    """The fuzzing tests, with more examples, and those that compare with exact results, with all
    inputs; a short run leaves them to the tests, unless named."""
    if given.short and "fuzz" not in given.tests:
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


def fleet(given: argparse.Namespace) -> bool:
    """Several rooms, of which some transcribe for all; skipped where there is no server."""
    from resilience import fleet as test

    if missing_nats():
        print(f"fleet: SKIPPED: {missing_nats()}")
        return True
    if unknown := set(given.scene) - set(test.SCENES):
        print(f"fleet: no scene {', '.join(unknown)}; there are {', '.join(test.SCENES)}")
        return False
    whole = True
    for outcome in test.run(given.scene, test.Plan(given.seed, given.short, given.kills)):
        print(outcome, flush=True)
        whole = whole and not outcome.faults
    return whole


def house(given: argparse.Namespace) -> bool:
    """Several rooms hear each sentence, and one acts."""
    from resilience import house as test

    if given.short:
        outcome = test.run(10, given.seed, kills=1, restarts=1)
    else:
        outcome = test.run(500, given.seed, kills=50, restarts=20, partitions=20)
    print(outcome, flush=True)
    return not outcome.broken


def model(given: argparse.Namespace) -> bool:
    """Search the protocol's model, and compare the real parts with it in random steps; a short run
    leaves that to the tests, unless it is named."""
    if given.short and "model" not in given.tests:
        return True
    short = ["--short"] if given.short else []
    search = [sys.executable, "-m", "protocol.search", *short]
    kept = subprocess.run(search, cwd=ROOT, check=False).returncode == 0
    machine = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    rounds = "1" if given.short else os.environ.get("ROOMSCRIBE_MODEL", "40")
    done = subprocess.run(
        [*machine, "tests/protocol/test_machine.py", "--timeout=3600"],
        cwd=ROOT, env=os.environ | {"ROOMSCRIBE_MODEL": rounds},
        stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    print(f"the real code: {(done.stdout.strip().splitlines() or ['no tests'])[-1]}", flush=True)
    if done.returncode:
        print(done.stdout)
    return kept and done.returncode == 0


TESTS: dict[str, Callable[[argparse.Namespace], bool]] = {
    "kill": kill,
    "disk": disk,
    "broker": broker,
    "power": power,
    "fuzz": fuzz,
    "fleet": fleet,
    "house": house,
    "model": model,
}


if __name__ == "__main__":
    sys.exit(main())
