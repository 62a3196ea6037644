"""What these modules read of Vidur's, private fields among it, in the version that is pinned."""

import inspect
import tomllib
from pathlib import Path

import pytest
from vidur.config import CacheConfig, ReplicaConfig, SarathiSchedulerConfig, SyntheticRequestGeneratorConfig
from vidur.entities import Batch, BatchStage, ExecutionTime, Request
from vidur.entities import Replica as VidurReplica
from vidur.events import BaseEvent
from vidur.events.batch_end_event import BatchEndEvent
from vidur.events.global_schedule_event import GlobalScheduleEvent
from vidur.events.replica_schedule_event import ReplicaScheduleEvent
from vidur.scheduler.global_scheduler.base_global_scheduler import BaseGlobalScheduler
from vidur.scheduler.replica_scheduler.sarathi_replica_scheduler import SarathiReplicaScheduler
from vidur.simulator import Simulator
from vidur.types import EventType, GlobalSchedulerType

from bidroute.errors import ConfigError
from bidroute.integrations.vidur import installed
from bidroute.integrations.vidur.installed import VIDUR_VERSION, require_vidur
from bidroute.integrations.vidur.latency import execution_time
from bidroute.integrations.vidur.policies import FIRST_VALUE
from bidroute.integrations.vidur.requests import RoutedRequest

pytestmark = pytest.mark.vidur

ROOT = Path(__file__).parents[2]


def test_the_version_is_the_pinned_one_everywhere() -> None:
    require_vidur()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["optional-dependencies"]["vidur"] == [f"vidur=={VIDUR_VERSION}"]
    pinned = (ROOT / "tests" / "vidur" / "requirements.txt").read_text(encoding="utf-8").splitlines()
    assert f"vidur=={VIDUR_VERSION}" in pinned


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "VIDUR_VERSION", "9.9")
    with pytest.raises(ConfigError, match=r"vidur 0\.0\.26 is installed; expected 9\.9"):
        require_vidur()


def test_fields_of_a_request() -> None:
    request = Request(0.0, 10, 5)
    for name in (
        *("_id", "_num_processed_tokens", "_num_stage_processed_tokens"),
        *("_is_prefill_complete", "_is_prefill_stage_complete", "_prefill_completed_at"),
    ):
        assert hasattr(request, name), name
    assert (request.num_restarts, request.num_processed_tokens, request.num_prefill_tokens) == (0, 0, 10)
    assert request.size == (10, 5)


def test_vidurs_own_restart_forgets_the_pipeline_stage_and_ours_does_not() -> None:
    """Should Vidur mend it, ours can go."""
    theirs, ours = Request(0.0, 10, 5), RoutedRequest(0, 0.0, 10, 5, decode_only=False)
    for request in (theirs, ours):
        request.on_batch_stage_end(1.0, 0, 1.0, 1.0, 10)
        request.on_batch_end(1.0, 10)
        request.restart()
    assert theirs._num_stage_processed_tokens == 11
    assert theirs.is_prefill_stage_complete
    assert ours._num_stage_processed_tokens == 0
    assert not ours.is_prefill_stage_complete


def test_fields_of_schedulers() -> None:
    source = inspect.getsource(BaseGlobalScheduler.__init__)
    for name in ("_replica_schedulers", "_request_queue", "_replicas"):
        assert f"self.{name} =" in source, name
    scheduler = _sarathi()
    for name in ("_cache_config", "_config", "_watermark_blocks", "_execution_time_predictor"):
        assert hasattr(scheduler, name), name
    assert scheduler._watermark_blocks == 1
    assert (scheduler._config.chunk_size, scheduler._config.batch_size_cap) == (512, 8)
    assert scheduler._cache_config.num_blocks == 100
    assert scheduler.num_pending_requests == 0


def test_fields_and_methods_of_the_simulator() -> None:
    source = inspect.getsource(Simulator)
    for text in (
        "self._init_event_queue()",
        "self._set_time(event._time)",
        "new_events = event.handle_event(self._scheduler, self._metric_store)",
        "self._add_events(new_events)",
        "_, event = heapq.heappop(self._event_queue)",
        "self._request_generator =",
    ):
        assert text in source, text
    assert source.index("self._scheduler =") < source.index("self._init_event_queue()")
    assert VidurReplica.generate_id.__func__ is not None
    assert hasattr(VidurReplica, "_id")


def test_events_ask_the_methods_that_are_overridden() -> None:
    assert "scheduler.schedule()" in inspect.getsource(GlobalScheduleEvent.handle_event)
    assert "get_replica_scheduler(replica_id).add_request(request)" in inspect.getsource(GlobalScheduleEvent)
    assert "replica_scheduler.on_batch_end(self._batch)" in inspect.getsource(BatchEndEvent.handle_event)
    assert "replica_scheduler.on_schedule(self._time)" in inspect.getsource(ReplicaScheduleEvent.handle_event)
    assert "self._batch.on_batch_end(self.time)" in inspect.getsource(BatchEndEvent.handle_event)


def test_types_of_events_put_ends_before_schedules() -> None:
    event = BaseEvent.__dict__["__init__"]
    assert "self._event_type = event_type" in inspect.getsource(event)
    order = [EventType.REQUEST_ARRIVAL, EventType.BATCH_END, EventType.GLOBAL_SCHEDULE, EventType.REPLICA_SCHEDULE]
    assert order == sorted(order)


def test_our_types_do_not_meet_vidurs() -> None:
    assert max(GlobalSchedulerType) < FIRST_VALUE


def test_a_stage_needs_no_more_than_the_times() -> None:
    time = execution_time(12.0, 3.0)
    assert time.total_time == pytest.approx(0.015)
    stage = BatchStage(0, VidurReplica(ReplicaConfig(num_pipeline_stages=1)).id, 0, time, [], [], [])
    assert (stage.execution_time, stage.model_execution_time) == (time.total_time, time.model_time)
    assert isinstance(time, ExecutionTime)


def test_a_batch_counts_the_token_it_makes() -> None:
    request = RoutedRequest(0, 0.0, 10, 5, decode_only=True)
    batch = Batch(VidurReplica(ReplicaConfig(num_pipeline_stages=1)).id, [request], [1], [11])
    assert (batch.num_kv_tokens, batch.num_q_tokens, batch.requests) == ([11], [1], [request])


def _sarathi() -> SarathiReplicaScheduler:
    config = ReplicaConfig(num_pipeline_stages=1, tensor_parallel_size=1)
    return SarathiReplicaScheduler(
        replica_config=config,
        replica_scheduler_config=SarathiSchedulerConfig(batch_size_cap=8),
        cache_config=CacheConfig(num_blocks=100),
        request_generator_config=SyntheticRequestGeneratorConfig(),
        replica=VidurReplica(config),
        num_stages=1,
        execution_time_predictor=None,
    )
