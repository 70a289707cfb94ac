"""A broker that comes and goes at random."""

from __future__ import annotations

import random
import threading

from rigs.broker import Broker


class Weather:
    """A broker that comes and goes."""

    def __init__(self, broker: Broker, chance: random.Random) -> None:
        self.restarts = 0
        self._broker, self._chance = broker, chance
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._blow)

    def _blow(self) -> None:
        while not self._over.wait(self._chance.uniform(1.0, 8.0)):
            self._broker.stop()
            self._over.wait(self._chance.uniform(0.0, 4.0))
            self._start()
            self.restarts += 1

    def _start(self) -> None:
        """Starts it, with patience: a busy machine may not have it listen in time."""
        for left in reversed(range(5)):
            try:
                self._broker.start()
                return
            except RuntimeError:
                if not left:
                    raise

    def __enter__(self) -> Weather:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
