"""Searches the states of the model for a violated guarantee, and tells the shortest story of one.

PYTHONPATH=tests python -m protocol.search          the whole search (some minutes, up to 3 GB)
PYTHONPATH=tests python -m protocol.search --short  a smaller one, in less than a minute

Workers are alike, so states that differ only in their order are one. The two halves of the way
share only the store, so each is searched alone, which allows more windows and faults.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import NamedTuple

from protocol.model import Model
from protocol.state import DEATHS, Half, State, ViolationError

GUARANTEES = {
    "owner": "every window ends as a text, as a discard with a reason, or is in the spool",
    "once": "a subscriber gets every id once, and again only with the same id and marked late",
    "order": "a subscriber first gets transcripts in the order of their numbers",
    "stored first": "nothing is published before it is stored",
    "retention": "retention deletes no transcript by age that may still be published",
    "deletion": "a deletion leaves nothing to publish, and nothing brings the transcript back",
    "own text": "a window gets its own text and no other window's",
    "mute": "while it is muted, it hears nothing and sends no sound, also after a restart",
    "delivery": "when faults end, everything is delivered and nothing is left over",
}
"""The wording of each guarantee, as in docs/promises.md."""

SHORT = (
    Model(windows=2, workers=2, faults=2, half=Half.TO_STORE),
    Model(windows=3, workers=0, faults=2, half=Half.TO_STORE),
    Model(windows=2, workers=0, faults=2, half=Half.FROM_STORE),
    Model(windows=2, workers=1, faults=1),
    Model(windows=2, workers=0, faults=1, deadly=1),
)
"""Models that are searched in CI."""
LONG = (
    Model(windows=3, workers=2, faults=3, half=Half.TO_STORE),
    Model(windows=3, workers=0, faults=3, half=Half.TO_STORE),
    Model(windows=3, workers=0, faults=3, half=Half.FROM_STORE),
    Model(windows=3, workers=0, faults=1),
    Model(windows=2, workers=2, faults=1),
    Model(windows=2, workers=0, faults=2, deadly=1),
)
"""Models of `scripts/measure torture model`: millions of states, within ten minutes of a core."""


def check(model: Model, s: State, *, ended: bool) -> None:
    """Raise ViolationError if a guarantee does not hold; `ended`: only faults could happen now."""
    for window in range(1, s.heard + 1):
        if window not in (*s.rows, *s.discarded, *s.spool, *s.cut):
            raise ViolationError("owner", f"nothing has window {window} any more")
    if max(s.deaths) > DEATHS + 1:
        raise ViolationError("owner", "a window kills the appliance again and again")
    if len(set(s.rows)) < len(s.rows):
        raise ViolationError("once", "the store has a window twice")
    ordered = [one for one in s.rows if one not in s.unordered]
    if ordered != sorted(ordered):
        raise ViolationError("order", "the store has a later window before an earlier one")
    if not ended:
        return
    if model.half is Half.TO_STORE:
        s = s._replace(received=s.rows, cursor=len(s.rows))
    missing = [one for one in s.rows if one not in (*s.received, *s.early, *s.deleted)]
    if missing and missing[0] in s.expired:
        raise ViolationError("retention", f"transcript {missing[0]} was deleted unpublished")
    if missing:
        raise ViolationError("once", f"the subscriber never gets {missing[0]}")
    left = {*s.spool} - {*s.doubtful}
    if s.heard < model.windows or left or s.waiting or s.lease or s.texts:
        raise ViolationError("delivery", f"window {(*left, *s.waiting, s.lease)[0]} stays behind")
    if not set(s.rows[s.cursor :]) <= {*s.deleted, *s.expired}:
        raise ViolationError("delivery", "the cursor stays behind")


class Found(NamedTuple):
    """What a search found."""

    states: int
    guarantee: str = ""
    """The name of the violated guarantee; empty if all of them hold."""
    how: str = ""
    story: tuple[str, ...] = ()
    """The shortest sequence of actions that leads there."""


def explore(model: Model) -> Found:
    """Visit all states, breadth-first, until a guarantee is violated."""
    first = model.first()
    parents = {hash(first): 0}
    level = [first]
    while level:
        following: list[State] = []
        for state in level:
            key = hash(state)
            try:
                after = list(model.actions(state))
                check(model, state, ended=not after)
                after.extend(model.faults_of(state))
            except ViolationError as found:
                name, how = found.args
                return Found(len(parents), name, how, _story(model, parents, key))
            for _, reached in after:
                if (known := hash(reached)) not in parents:
                    parents[known] = key
                    following.append(reached)
        level = following
    return Found(len(parents))


def _story(model: Model, parents: dict[int, int], key: int) -> tuple[str, ...]:
    """Return the names of the actions that lead to the state with that hash."""
    keys = [key]
    while parents[keys[-1]]:
        keys.append(parents[keys[-1]])
    state, steps = model.first(), list[str]()
    for wanted in reversed(keys[:-1]):
        name, state = next(
            (name, after)
            for name, after in (*model.actions(state), *model.faults_of(state))
            if hash(after) == wanted
        )
        steps.append(name)
    return tuple(steps)


def main() -> int:
    """Search all models; print a line for each, and the story of a violation. 1: there is one."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--short", action="store_true", help="smaller models")
    given = parser.parse_args()
    begun_s, states = time.process_time(), list[int]()
    for model in SHORT if given.short else LONG:
        workers = "" if model.half is Half.FROM_STORE else f"{model.workers} workers, "
        named = f"{model.half.value}: {model.windows} windows, {workers}up to {model.faults} faults"
        if not _search(model, named, states):
            return 1
    took_s = time.process_time() - begun_s
    print(f"no guarantee can fail in {sum(states):,} states: {took_s:.0f} s of one core")
    return 0


def _search(model: Model, named: str, states: list[int]) -> bool:
    """Search a model, add the number of its states and print what was found; False: a violation."""
    begun_s = time.process_time()
    found = explore(model)
    states.append(found.states)
    print(f"{named}: {found.states:,} states in {time.process_time() - begun_s:.0f} s", flush=True)
    if found.guarantee:
        print(f"violated: {GUARANTEES[found.guarantee]}: {found.how}. The shortest way there:")
        print("\n".join(f"  {at}. {step}" for at, step in enumerate(found.story, 1)))
    return not found.guarantee


if __name__ == "__main__":
    sys.exit(main())
