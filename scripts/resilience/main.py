"""Try to break Roomscribe's promises; print a line for each, status 1 if one is broken.

    scripts/measure torture [--short] [kill] [disk] [power] [steps]

kill      kill -9 at random moments of a stream of sentences, while the broker restarts at random
disk      full, read-only, locked, deleted, damaged under the running daemon (as root)
power     the store's files as a power cut leaves them
steps     random steps of the real parts, with a guarantee checked after each (docs/promises.md)

With no name all of them; a short run leaves the steps to the tests.
"""

import argparse
import os
import signal
import subprocess
import sys
import time

from rigs.checkout import ROOT


def main() -> int:
    """Run the attacks that were named; 1 when a promise was broken."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("attacks", nargs="*", metavar="ATTACK", help="which; default: all")
    parser.add_argument("--short", action="store_true", help="all within a minute or two")
    parser.add_argument("--kills", type=int, help="how many (default 200, short 6)")
    parser.add_argument("--seed", type=int, default=0, help="of all that is random")
    parser.add_argument("--without-spool", action="store_true", help="kill: losses must be found")
    given = parser.parse_args()
    unknown = set(given.attacks) - set(ATTACKS)
    if unknown:
        parser.error(f"no attack {', '.join(sorted(unknown))}; there are {', '.join(ATTACKS)}")
    # brokers and daemons are ended, whoever ends this program
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    chosen = given.attacks or [name for name in ATTACKS if name != "steps" or not given.short]
    broken = []
    for name in chosen:
        begun_s = time.monotonic()
        if not ATTACKS[name](given):
            broken.append(name)
        print(f"    ({name}: {time.monotonic() - begun_s:.0f} s)", file=sys.stderr, flush=True)
    if broken:
        print(f"BROKEN: {', '.join(broken)}")
    return 1 if broken else 0


def kill(given: argparse.Namespace) -> bool:
    """Kill the daemon."""
    from resilience import kill as attack

    outcome = attack.run(
        given.kills or (6 if given.short else 200),
        given.seed,
        spool=not given.without_spool,
        count=12 if given.short else 40,
    )
    print(outcome, flush=True)
    return not outcome.broken


def disk(given: argparse.Namespace) -> bool:
    """Disturb the disk; skipped where no disk can be mounted."""
    from resilience import disk as attack

    try:
        cases = attack.run(attack.SHORT if given.short else None)
    except OSError as error:
        print(f"disk: SKIPPED: mounting a small disk needs root and CAP_SYS_ADMIN ({error})")
        return True
    for case in cases:
        print(f"disk: {case}", flush=True)
    return not any(case.broken for case in cases)


def power(given: argparse.Namespace) -> bool:
    """Cut the power."""
    cuts = "30" if given.short else "300"
    return run_module("resilience.power", "--cuts", cuts)


def steps(given: argparse.Namespace) -> bool:
    """Let the real parts take random steps."""
    rounds = "1" if given.short else os.environ.get("ROOMSCRIBE_STEPS", "40")
    options = ("-q", "-p", "no:cacheprovider", "--timeout=3600")
    machine = "tests/protocol/test_machine.py"
    return run_module("pytest", *options, machine, ROOMSCRIBE_STEPS=rounds)


def run_module(name: str, *arguments: str, **variables: str) -> bool:
    """Run a module in another process, which prints what it finds; True if it succeeds."""
    command, variables = [sys.executable, "-m", name, *arguments], os.environ | variables
    return not subprocess.run(command, cwd=ROOT, env=variables, check=False).returncode


ATTACKS = {attack.__name__: attack for attack in (kill, disk, power, steps)}


if __name__ == "__main__":
    sys.exit(main())
