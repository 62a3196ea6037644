"""Prefill on one engine, decode on another, the KV handed over by NIXL."""

import asyncio
import time

import pytest

from tests.vllm.client import completion, engine, post, prompt_tokens_by_source, state, stream, until, worker_state
from tests.vllm.processes import CONSUMER, KV_LEASE_S, PRODUCER

pytestmark = pytest.mark.vllm

FETCHED, COMPUTED = "external_kv_transfer", "local_compute"
EXPIRED, TOO_LATE = "nixl_num_kv_expired_reqs_total", "nixl_num_notifications_after_expiry_total"


async def sources(session, worker):
    found = await prompt_tokens_by_source(session, worker.url)
    return found[FETCHED], found[COMPUTED]


async def again(session, router):
    """How many prompts the router had processed once more."""
    async with session.get(f"{router.admin_url}/metrics") as answer:
        rows = [
            line for line in (await answer.text()).splitlines() if line.startswith("bidroute_prefilled_again_total{")
        ]
    return sum(float(row.rsplit(" ", 1)[1]) for row in rows)


async def occupy(session, router, output_tokens):
    """Requests that take every slot of the consumer."""
    asked = [
        asyncio.create_task(post(session, router.url, completion(30, output_tokens))) for _ in range(CONSUMER.slots)
    ]

    async def is_full():
        return (await worker_state(session, router.admin_url, CONSUMER.name))["leases"] == CONSUMER.slots

    await until(is_full, "every slot is taken")
    return asked


async def test_roles_and_capacity_are_known(session, pair_router):
    for spec, role in ((PRODUCER, "prefill"), (CONSUMER, "decode")):
        known = await worker_state(session, pair_router.admin_url, spec.name)
        assert (known["role"], known["models"]) == (role, ["tiny"])
        assert (known["slots_total"], known["kv_total"]) == (spec.slots, spec.kv_tokens)


async def test_kv_is_handed_over(session, pair_router, pair, report):
    producer, consumer = pair
    fetched, computed = await sources(session, consumer)
    before, times_before = await engine(session, producer.url), await again(session, pair_router)
    lengths = [40, 90, 150, 220, 301, 410, 64, 96]
    began_s = time.monotonic()
    usage = {"stream_options": {"include_usage": True}}
    streams = asyncio.gather(*(stream(session, pair_router.url, completion(n, 12, **usage)) for n in lengths))
    wholes = asyncio.gather(*(post(session, pair_router.url, completion(n, 9)) for n in lengths))
    for seen, prompt_tokens in zip(await streams, lengths, strict=True):
        assert (seen.status, seen.worker, seen.done, seen.error) == (200, CONSUMER.name, True, None)
        assert [(one["prompt_tokens"], one["completion_tokens"]) for one in seen.usages] == [(prompt_tokens, 12)]
    for (status, answer), prompt_tokens in zip(await wholes, lengths, strict=True):
        assert status == 200
        assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (prompt_tokens, 9)
    took_s = time.monotonic() - began_s
    after = await sources(session, consumer)
    assert after == (fetched + 2 * sum(lengths), computed)  # all of it, and nothing computed there
    engines = [await engine(session, worker.url) for worker in pair]
    assert engines[1]["nixl_bytes_transferred_sum"] > 0
    assert engines[1]["nixl_num_failed_transfers_total"] == 0
    report.append(
        f"16 prompts of {2 * sum(lengths)} tokens handed over in {took_s:.1f} s, none computed by the consumer"
    )

    async def nothing_is_held():
        known = await worker_state(session, pair_router.admin_url, PRODUCER.name)
        return known["kv_used"] == 0 and (await engine(session, producer.url))["kv_cache_usage_perc"] == 0

    await until(nothing_is_held, "the producer's KV is free, by its own account and the router's")
    expired = (await engine(session, producer.url))[EXPIRED] - before[EXPIRED]
    assert expired == await again(session, pair_router) - times_before  # all other KV is free because it was fetched


async def test_the_answer_is_that_of_one_engine_alone(session, pair_router, pair):
    body = completion(200, 16, temperature=0, seed=1)
    _, split = await post(session, pair_router.url, body)
    _, alone = await post(session, pair[0].url, body)
    assert split["choices"][0]["text"] == alone["choices"][0]["text"]


async def test_the_producers_lease_is_respected(session, pair_router, pair, report):
    """Every place is taken for longer than KV is kept: who waits is prefilled again, and computed nowhere else."""
    producer, consumer = pair
    fetched, computed = await sources(session, consumer)
    before, times_before = await engine(session, producer.url), await again(session, pair_router)
    occupied = await occupy(session, pair_router, 900)
    began_s = time.monotonic()
    status, answer = await post(session, pair_router.url, completion(300, 8))
    waited_s = time.monotonic() - began_s
    assert waited_s > KV_LEASE_S
    assert (status, answer["usage"]["completion_tokens"]) == (200, 8)
    assert [status for status, _ in await asyncio.gather(*occupied)] == [200] * CONSUMER.slots
    assert await sources(session, consumer) == (fetched + 300 + 30 * CONSUMER.slots, computed)
    after, times = await engine(session, producer.url), await again(session, pair_router) - times_before
    assert times >= 1
    assert after[EXPIRED] > before[EXPIRED]
    assert after[TOO_LATE] == before[TOO_LATE]
    report.append(f"waited {waited_s:.1f} s with a lease of {KV_LEASE_S} s: prefilled {times:g} times more")


async def test_a_client_that_leaves_while_it_waits_leaves_nothing(session, pair_router, pair):
    occupied = await occupy(session, pair_router, 200)

    async def waits():
        return (await state(session, pair_router.admin_url))["queue"]["prefilled"] == 1

    leaving = asyncio.create_task(stream(session, pair_router.url, completion(100, 8)))
    await until(waits, "it is prefilled, and waits")
    leaving.cancel()
    assert [status for status, _ in await asyncio.gather(*occupied)] == [200] * CONSUMER.slots

    async def nothing_is_held():
        known = await worker_state(session, pair_router.admin_url, PRODUCER.name)
        return known["kv_used"] == 0 and (await engine(session, pair[0].url))["kv_cache_usage_perc"] == 0

    await until(nothing_is_held, "its KV is gone after the lease")
