"""What is added to Vidur's own options, which Vidur makes of these fields: `--bidroute_objective` and so on.

It reads their types, so annotations in this module are types and not text.
"""

from dataclasses import dataclass, field

from vidur.config import SimulationConfig


@dataclass
class Bidroute:
    """How policies of bidroute choose, and what the replicas are."""

    objective: str = field(
        default="balanced",
        metadata={"help": "What bid_price pursues: a preset (latency, ttft, tail, …) or TERM=WEIGHT pairs."},
    )
    lengths: str = field(
        default="none",
        metadata={"help": "What policies know of output lengths: none, prompt, oracle, noisy:SIGMA, uniform:SHARE."},
    )
    policy_options: str = field(
        default="",
        metadata={"help": "Options of the policy, such as risk_z=2:max_skips=4 (safety), or d=3 for power_of_d."},
    )
    ttft_slo_s: float = field(
        default=2.0,
        metadata={"help": "Seconds to the first token that requests ask for: the goodput objective heeds it."},
    )
    e2e_slo_s: float = field(
        default=30.0,
        metadata={"help": "Seconds to the end that requests ask for."},
    )
    decode_only: bool = field(
        default=False,
        metadata={"help": "Requests arrive with their prompt in the KV cache, as after a disaggregated prefill."},
    )
    batch_caps: list[int] = field(
        default_factory=list,
        metadata={"help": "Batch cap of each replica, where they are unlike."},
    )
    kv_tokens: list[int] = field(
        default_factory=list,
        metadata={"help": "KV tokens of each replica, in whole blocks, where they are unlike."},
    )
    speeds: list[float] = field(
        default_factory=list,
        metadata={"help": "Speed of each replica: its execution times are divided by it."},
    )


@dataclass
class BidrouteSimulationConfig(SimulationConfig):
    """Vidur's configuration and ours."""

    bidroute: Bidroute = field(default_factory=Bidroute)
