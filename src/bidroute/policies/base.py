"""The policy contract: all that a routing policy must do, in one file.

A host (simulator, live router, Vidur, a gateway) drives a policy through `bidroute.policies.controller`. A
policy is pure: it has no clock, does no I/O and starts no threads; it may keep state of its own (prices, a
counter, a random generator from the seed it was given), so the same calls always give the same answers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import ClassVar

from bidroute.core.queue import IntArray
from bidroute.core.requests import Request
from bidroute.core.state import RoutingState
from bidroute.pricing.prices import PriceSnapshot


class Timing(Enum):
    """When a policy lets go of a request."""

    ON_ARRIVAL = "on arrival"  # dispatch at once; engines keep queues of their own
    WHEN_STARTABLE = "when startable"  # one central queue; release only what can start in this very period


class Hold(StrEnum):
    """Why a request that waits was not released."""

    PRICE = "price"  # what it would occupy is worth more to somebody else
    SLOTS = "slots"  # no free batch slot
    TOKENS = "token budget"  # the next iteration has all the tokens it may process
    KV_NOW = "kv now"  # its prompt does not fit the free KV
    KV_FUTURE = "kv future"  # it would fit now but the batch could outgrow the KV later
    ORDER = "order"  # the policy's order: one before it must go first
    FASTER = "faster device"  # a faster device with room for it starts its next period in a moment


@dataclass(frozen=True, slots=True)
class Assignment:
    """Release this request to this device."""

    request_id: int
    device: int


@dataclass(frozen=True, slots=True)
class Decision:
    """What a policy decided, and how many requests it held for which reason."""

    assignments: list[Assignment] = field(default_factory=list)
    held: dict[Hold, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why one waiting request was or was not released to one device at one decision epoch.

    `reward` by objective term and `price` by resource are in reward units; `value` = Σ reward − Σ price.
    `rank` is its place (0 is best) among all that waited; `instead` the requests released in its place.
    """

    request_id: int
    device: int
    now_s: float
    wait_s: float
    reward: dict[str, float]
    price: dict[str, float]
    value: float
    rank: int
    waiting: int
    held_by: Hold | None
    instead: list[int]


class Policy(ABC):
    """A routing policy.

    Hosts call, in this order: `request_arrived` once per request that entered the queue; `update` and then
    `decide` at every decision epoch, and `update` alone now and then while there is nothing to decide;
    `request_finished` when its true length is known.
    """

    name: str
    timing: ClassVar[Timing]

    @abstractmethod
    def decide(self, now_s: float, state: RoutingState, devices: Sequence[int]) -> Decision:
        """Choose what to release now.

        `devices` are the indexes of the devices that may take a request now, all of them accepting: for
        ON_ARRIVAL policies all that accept, and every request in the queue must be assigned; for WHEN_STARTABLE
        policies those that are about to start a period, and each assignment must be able to start in it
        (a free batch slot, and prompt + 1 free KV tokens, counting the assignments of this same decision).
        The controller opens the leases afterwards: `decide` changes nothing in `state` (but may count `skips`).
        """

    def update(self, now_s: float, state: RoutingState) -> None:  # noqa: B027 - optional
        """Bring slow internal estimates (prices) up to date; hosts may run it away from the decision's path."""

    def request_arrived(self, now_s: float, request: Request, length_class: int) -> None:  # noqa: B027 - optional
        """A request entered the queue."""

    def request_finished(self, now_s: float, request_id: int, output_tokens: int) -> None:  # noqa: B027 - optional
        """A request ended with this true length."""

    def explain(
        self, now_s: float, state: RoutingState, devices: Sequence[int], request_ids: Sequence[int]
    ) -> list[Explanation]:
        """Say for each of these waiting requests what `decide` would do with it now and why; changes nothing."""
        return []

    def prices(self) -> PriceSnapshot | None:
        """The prices it holds now; None for policies without prices."""
        return None

    def choose_blindly(self, count: int, state: RoutingState) -> IntArray | None:
        """For policies that ignore the state: the devices of the next `count` arrivals, int64[count].

        Equivalent to `count` calls of `decide` with one arrival each. None (the default) means that this
        policy must see the state at every arrival.
        """
        return None
