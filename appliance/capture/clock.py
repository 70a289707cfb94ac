"""When samples were recorded, and which were lost: by counting them."""

LOST_S = 0.2
"""When the clock is further ahead of the samples than this, samples were lost or are late."""
BURST_WITHIN_S = 0.5
"""Late samples come within this; what has not come by then is lost."""
DRIFT_SHARE = 0.01
"""Share of a difference from the clock that is made good per block: smooths jitter, follows the
sound card's own clock."""


class SampleClock:
    """Dates samples on time.monotonic()'s clock by counting them. One thread."""

    def __init__(self) -> None:
        self.began_s = 0.0
        """When the stream's first sample was recorded, as it looks from the newest one."""
        self._begun = False
        self._late_since_s = 0.0
        self._late_s: float | None = None
        """The least that samples have been behind the clock since they fell behind."""

    def follow(self, now_s: float, received_s: float, *, lost: bool = False) -> bool | None:
        """True when samples were lost; `received_s` of sound had come when it was `now_s`.

        None while it is not known: sound that is behind the clock may be lost, or only late, and
        then what is missing comes in one burst.
        """
        ahead_s = now_s - received_s - self.began_s
        if not self._begun:
            self._begun, self.began_s = True, now_s - received_s
            return False
        if lost:
            self._late_s = None
            self.began_s += max(ahead_s, 0.0)
            return True
        if ahead_s > LOST_S:
            return self._wait_and_see(now_s, ahead_s)
        self._late_s = None
        self.began_s += ahead_s if ahead_s < -LOST_S else DRIFT_SHARE * ahead_s
        return False

    def _wait_and_see(self, now_s: float, ahead_s: float) -> bool | None:
        if self._late_s is None:
            self._late_s, self._late_since_s = ahead_s, now_s
        self._late_s = min(self._late_s, ahead_s)
        if now_s < self._late_since_s + BURST_WITHIN_S:
            return None
        self.began_s += self._late_s
        self._late_s = None
        return True
