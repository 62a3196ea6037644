"""Turn a client's request into a job: its body, and those of its hints that are trusted."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from bidroute.router.http_settings import DEADLINE, FAIRNESS_ID, PRIORITY, TPOT_SLO, TTFT_SLO
from bidroute.router.request_body import BadBodyError, BodyFacts
from bidroute.router.tickets import Job

_LONGEST_TENANT = 128  # characters; a tenant is a key in tables, so its size is bounded


def job_for(
    facts: BodyFacts,
    headers: Mapping[str, str],
    trusted: Collection[str],
    request_id: str = "",
    can_split: bool = False,
) -> Job:
    """The job of this request; hints that are not trusted count as not sent. Raises BadBodyError for bad hints."""
    if not trusted:
        return Job(
            facts.model,
            facts.prompt_bytes,
            facts.prompt_tokens,
            facts.max_tokens,
            facts.choices,
            facts.batch,
            exact_tokens=facts.exact_tokens,
            request_id=request_id,
            can_split=can_split,
        )
    ttft_s = _seconds(headers, TTFT_SLO, trusted)
    tpot_s = _seconds(headers, TPOT_SLO, trusted)
    return Job(
        model=facts.model,
        prompt_bytes=facts.prompt_bytes,
        prompt_tokens=facts.prompt_tokens,
        max_tokens=facts.max_tokens,
        choices=facts.choices,
        exact_tokens=facts.exact_tokens,
        prompts=facts.batch,
        # The body's priority is lower for the more urgent, as in vLLM; a job's is higher.
        priority=-facts.priority if PRIORITY in trusted else 0.0,
        ttft_slo_s=ttft_s,
        e2e_slo_s=math.inf if facts.max_tokens is None else ttft_s + tpot_s * facts.max_tokens,
        tenant=headers.get(FAIRNESS_ID, "")[:_LONGEST_TENANT] if FAIRNESS_ID in trusted else "",
        deadline_s=_seconds(headers, DEADLINE, trusted),
        request_id=request_id,
        can_split=can_split,
    )


def _seconds(headers: Mapping[str, str], name: str, trusted: Collection[str]) -> float:
    """A header in milliseconds as seconds; infinite where it is not sent or not trusted."""
    text = headers.get(name) if name in trusted else None
    if text is None:
        return math.inf
    try:
        milliseconds = float(text)
    except ValueError:
        milliseconds = math.nan
    if not 0 < milliseconds < math.inf:
        raise BadBodyError(f"header {name} must be a positive number of milliseconds", name)
    return milliseconds / 1000.0
