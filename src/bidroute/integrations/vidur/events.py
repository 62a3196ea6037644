"""Events that our schedulers add to Vidur's."""

from __future__ import annotations

from typing import Any

from vidur.events import BaseEvent
from vidur.events.global_schedule_event import GlobalScheduleEvent
from vidur.types import EventType

NS_PER_S = 1e9


class Refresh(BaseEvent):
    """The estimates of a policy are to be refreshed at `due`, in whole nanoseconds."""

    def __init__(self, due: int) -> None:
        super().__init__(due / NS_PER_S, EventType.GLOBAL_SCHEDULE)
        self._due = due

    def handle_event(self, scheduler: Any, metrics_store: Any) -> list[BaseEvent]:
        """Let the scheduler do so."""
        scheduler.refresh(self._due)
        return []


def release(time_s: float) -> BaseEvent:
    """Ask the global scheduler who may go now; Vidur itself asks at arrivals alone."""
    return GlobalScheduleEvent(time_s)
