"""The circuit breaker of one worker; it has no clock, times are passed in."""

from __future__ import annotations

from enum import Enum

FAULTS_TO_OPEN = 3  # in a row, of those that may be the request's own bad luck
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0


class BreakerState(Enum):
    """What a worker may be sent."""

    CLOSED = "closed"  # everything
    OPEN = "open"  # nothing
    HALF_OPEN = "half-open"  # one request at a time, to find out


class Breaker:
    """Opens after faults in a row, or at once for a certain one; every failed probe doubles the pause before the next.

    A probe is whatever the router sends while half open: one request, whose success closes the breaker.
    """

    def __init__(self) -> None:
        self.state = BreakerState.CLOSED
        self.retry_at_s = 0.0
        self._faults = 0
        self._pause_s = FIRST_PAUSE_S

    def fault(self, now_s: float, *, certain: bool = False) -> bool:
        """Something went wrong; `certain`: the worker cannot be reached, or hangs. Whether the breaker opened now."""
        self._faults += 1
        if self.state is BreakerState.OPEN:
            return False
        if self.state is BreakerState.HALF_OPEN:
            self._pause_s = min(2.0 * self._pause_s, LONGEST_PAUSE_S)
        elif not certain and self._faults < FAULTS_TO_OPEN:
            return False
        self.state = BreakerState.OPEN
        self.retry_at_s = now_s + self._pause_s
        return True

    def alive(self, now_s: float) -> bool:
        """The worker answers (its metrics were read). Whether that made an open breaker half open, its pause over."""
        if self.state is not BreakerState.OPEN or now_s < self.retry_at_s:
            return False
        self.state = BreakerState.HALF_OPEN
        return True

    def success(self) -> bool:
        """A request ended well. Whether that closed the breaker; an open one is closed by a probe alone."""
        self._faults = 0
        if self.state is not BreakerState.HALF_OPEN:
            return False
        self.state, self._pause_s = BreakerState.CLOSED, FIRST_PAUSE_S
        return True
