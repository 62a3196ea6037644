import json
import math
import re
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from bidroute.router.metrics import RouterMetrics
from bidroute.router.state import QueueState, RouterState, TotalsState, WorkerState
from bidroute.router.tallies import HistogramTally
from bidroute.router.tickets import Failure
from tests.router.fleet_fakes import busy_state


def samples(metrics):
    """(name, labels) → value of everything on the page, as Prometheus would read it."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }


def value(metrics, name, **labels):
    return samples(metrics)[f"bidroute_{name}", tuple(sorted(labels.items()))]


def test_the_life_of_a_request():
    metrics = RouterMetrics()
    metrics.arrived()
    metrics.decided(0.0002, {"price": 3, "slots": 1})
    metrics.released("w", 0.3)
    metrics.started(0.5)
    metrics.finished(e2e_s=2.5, ttft_s=0.5, prompt_tokens=100, output_tokens=201)
    metrics.output_predicted(100.0, 201)
    metrics.prompt_estimated(80.0, 100)
    metrics.ended("finished", 200)
    assert value(metrics, "requests_total") == 1
    assert value(metrics, "held_total", reason="price") == 3
    assert value(metrics, "released_total", worker="w") == 1
    assert value(metrics, "wait_seconds_sum") == 0.3
    assert value(metrics, "tpot_seconds_sum") == pytest.approx(0.01)
    assert value(metrics, "ttft_seconds_count") == value(metrics, "e2e_seconds_count") == 1
    assert (value(metrics, "prompt_tokens_total"), value(metrics, "output_tokens_total")) == (100, 201)
    assert value(metrics, "output_tokens_true_per_predicted_sum") == pytest.approx(2.01)
    assert value(metrics, "prompt_tokens_true_per_estimated_sum") == pytest.approx(1.25)
    assert value(metrics, "requests_ended_total", outcome="finished", status="200") == 1


def test_the_troubles_of_a_request():
    metrics = RouterMetrics()
    metrics.failed("w", Failure.FAULT)
    metrics.retried(Failure.FAULT)
    metrics.preempted("w", 3)
    metrics.preempted("w", 0)
    metrics.scrape_failed("w")
    metrics.refused("queue_full")
    metrics.prices_updated(0.004)
    assert value(metrics, "failures_total", worker="w", failure="fault") == 1
    assert value(metrics, "retries_total", failure="fault") == 1
    assert value(metrics, "preemptions_total", worker="w") == 3
    assert value(metrics, "scrape_failures_total", worker="w") == 1
    assert value(metrics, "refused_total", reason="queue_full") == 1
    assert value(metrics, "price_update_seconds_count") == 1


def test_what_cannot_be_told_is_not_counted():
    metrics = RouterMetrics()
    metrics.finished(e2e_s=1.0, ttft_s=math.nan, prompt_tokens=5, output_tokens=9)
    metrics.finished(e2e_s=1.0, ttft_s=0.5, prompt_tokens=5, output_tokens=1)
    metrics.output_predicted(0.0, 10)
    metrics.prompt_estimated(0.0, 10)
    metrics.started(math.nan)
    for name in (
        "tpot_seconds",
        "output_tokens_true_per_predicted",
        "prompt_tokens_true_per_estimated",
        "ttft_seconds",
    ):
        assert value(metrics, f"{name}_count") == 0


async def test_the_page_made_in_steps_is_the_same():
    metrics = busy_metrics()
    assert await metrics.render_in_steps() == metrics.render() == generate_latest(metrics.registry)


def test_gauges_follow_the_state():
    metrics = RouterMetrics()
    metrics.observe_state(busy_state())
    assert value(metrics, "queue_length") == 87
    assert value(metrics, "queue_held", reason="kv future") == 30
    assert value(metrics, "slots_used", worker="h100-a") == 61
    assert value(metrics, "kv_tokens_total", worker="l40s") == 61_400
    assert value(metrics, "breaker_state", worker="10.0.0.7:8000") == 2
    assert value(metrics, "worker_status", worker="a10-old", status="draining") == 1
    assert value(metrics, "worker_status", worker="a10-old", status="ready") == 0
    prices = busy_state().workers[0].slot_price
    assert value(metrics, "price_now", worker="h100-a", resource="slot") == prices[0]
    assert value(metrics, "price_ahead", worker="h100-a", resource="slot") == pytest.approx(sum(prices) / len(prices))
    assert value(metrics, "policy_info", policy="bid_price") == 1
    assert value(metrics, "worker_role", worker="l40s", role="decode") == 1
    assert value(metrics, "worker_role", worker="p-l4", role="prefill") == 1
    assert value(metrics, "prefill_tokens", worker="p-l4") == 5_120
    assert value(metrics, "prefill_tokens_per_second", worker="p-l4") == 11_800
    assert (value(metrics, "prefill_queue_length"), value(metrics, "prefilled_waiting")) == (31, 56)


def test_workers_that_left_leave_the_gauges():
    metrics = RouterMetrics()
    metrics.observe_state(busy_state())
    small = RouterState(1.0, "fifo", {}, [WorkerState("only", "http://x")], QueueState(), [], TotalsState())
    metrics.observe_state(small)
    found = samples(metrics)
    assert {labels for name, labels in found if name == "bidroute_slots_used"} == {(("worker", "only"),)}
    assert not [name for name, _ in found if name in ("bidroute_price_now", "bidroute_queue_held")]
    assert [labels for name, labels in found if name == "bidroute_policy_info"] == [(("policy", "fifo"),)]


def test_labels_come_from_fixed_sets_and_worker_names():
    metrics = busy_metrics()
    labels = {label for _, pairs in samples(metrics) for label, _ in pairs}
    expected = {"worker", "role", "reason", "outcome", "status", "failure", "resource", "term", "policy", "le"}
    assert labels <= expected


def busy_metrics():
    """Metrics in which every family has a sample."""
    metrics = RouterMetrics()
    metrics.observe_state(busy_state())
    metrics.refused("deadline")
    metrics.ended("finished", 200)
    metrics.decided(0.1, {"price": 1})
    metrics.released("w", 0.1)
    metrics.failed("w", Failure.STALLED)
    metrics.retried(Failure.BACK_PRESSURE)
    metrics.preempted("w", 1)
    metrics.scrape_failed("w")
    metrics.prefill_sent(0.1)
    metrics.prefilled("p", 0.2)
    metrics.handed_over(0.3)
    metrics.prefilled_again("lease")
    return metrics


def dashboard_expressions():
    text = files("bidroute.router").joinpath("grafana.json").read_text(encoding="utf-8")
    dashboard = json.loads(text)
    panels = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    return panels + [item["query"]["query"] for item in dashboard["templating"]["list"] if item["type"] == "query"]


def test_every_metric_of_the_dashboard_exists_and_every_metric_is_on_it():
    existing = {name for name, _ in samples(busy_metrics())}
    shown = set(re.findall(r"\bbidroute_\w+", " ".join(dashboard_expressions())))
    assert shown <= existing
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in existing}
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown} == families


def test_labels_in_the_dashboard_exist():
    known = {label for _, pairs in samples(busy_metrics()) for label, _ in pairs} | {"job"}
    used = set()
    for expression in dashboard_expressions():
        used |= set(re.findall(r"(\w+)=~?\"", expression))
        used |= {name for group in re.findall(r"by \(([^)]*)\)", expression) for name in re.split(r",\s*", group)}
    assert used <= known


def test_panels_do_not_overlap():
    text = files("bidroute.router").joinpath("grafana.json").read_text(encoding="utf-8")
    taken = set()
    for panel in json.loads(text)["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + i, place["y"] + j) for i in range(place["w"]) for j in range(place["h"])}
        assert not cells & taken
        assert place["x"] + place["w"] <= 24
        taken |= cells


@given(st.lists(st.floats(0, 1e6) | st.just(math.nan) | st.just(math.inf), max_size=40))
def test_histograms_count_up_to_each_edge(values):
    registry = CollectorRegistry()
    tally = HistogramTally(registry, "h", "text", (0.0, 1.0, 5.0))
    for one in values:
        tally.observe(one)
    finite = [one for one in values if math.isfinite(one)]
    for edge, name in ((0.0, "0.0"), (1.0, "1.0"), (5.0, "5.0"), (math.inf, "+Inf")):
        assert registry.get_sample_value("h_bucket", {"le": name}) == sum(one <= edge for one in finite)
    assert registry.get_sample_value("h_count") == len(finite)


def test_the_documentation_names_every_metric():
    page = (Path(__file__).parents[2] / "docs" / "operating.md").read_text(encoding="utf-8")
    told = set(re.findall(r"`(\w+)(?:\{[\w,]+\})?`", page.partition("## Metrics")[2]))
    families = {re.sub(r"^bidroute_|_(bucket|sum|count)$", "", name) for name, _ in samples(busy_metrics())}
    assert families <= told
