"""What docs/results.md shows, section by section: the commands that make it. This list is the place to add to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

AZURE_CONV = "{azure_conv}"  # stands for the user's copy of the trace
_FAST_SLOW = """\
devices:
  - {name: fast, batch_slots: 24, kv_tokens: 24000, latency: "affine:0.006,5e-05,5.086e-08"}
  - {name: slow, batch_slots: 128, kv_tokens: 120000, latency: "affine:0.0171429,0.000142857,1.45314e-07"}
"""
_THREE_PACES = """\
devices:
  - {name: a, batch_slots: 128, kv_tokens: 100000, latency: "affine:0.006,5e-05,5.086e-08"}
  - {name: b, batch_slots: 96, kv_tokens: 60000, latency: "affine:0.01,8.33333e-05,8.47667e-08"}
  - {name: c, batch_slots: 64, kv_tokens: 40000, latency: "affine:0.0171429,0.000142857,1.45314e-07"}
"""
FLEETS = {"fast-slow.yaml": _FAST_SLOW, "three-paces.yaml": _THREE_PACES}


@dataclass(frozen=True, slots=True)
class Command:
    """One command of bidroute, as typed after its name. `name` is that of its files; `charts`: it has --html, and the
    upper `picture_px` of that page are shown as a picture."""

    name: str
    typed: str
    charts: bool = False
    picture_px: int = 0

    @property
    def needs_trace(self) -> bool:
        """Whether it runs on a trace that does not ship with bidroute."""
        return AZURE_CONV in self.typed


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, and the commands whose output stands below it."""

    title: str
    commands: tuple[Command, ...]


_AZURE = f"--trace {AZURE_CONV} --requests 6000 --devices 4 --latency affine:0.006,5e-5,5.086e-8 --recompute 4e-5"
_SCENARIOS = (
    ("kv-noisy", "--speedup 13 --batch-slots 128 --kv-tokens 50000 --lengths noisy:0.6"),
    ("kv-none", "--speedup 13 --batch-slots 128 --kv-tokens 50000 --lengths none"),
    ("slots", "--speedup 17 --batch-slots 64 --kv-tokens 100000 --lengths oracle"),
)
_BOUND = f"--trace {AZURE_CONV} --requests 6000 --devices 4"
_BOUND_BY = (
    ("kv", "--speedup 13 --batch-slots 128 --kv-tokens 50000"),
    ("slots", "--speedup 17 --batch-slots 64 --kv-tokens 100000"),
)
_BASIC = "--policies join_shortest_queue,fifo+safety,bid_price"
_MAIN = "join_shortest_queue,weighted_least_connections,fifo+safety,least_footprint+safety+ageing,bid_price"
_UNLIKE = _MAIN.replace("fifo+safety", "least_predicted_work")
_AGGREGATED = "join_shortest_queue,power_of_d,least_predicted_work,fifo+safety,least_footprint+safety+ageing"
_MIXED = f'robustness --cases "no lengths,noise 0.6,mix" --requests 600 --seeds 3 --policies {_AGGREGATED}'
_MIXED_CODE = f"compare --trace builtin:azure-code-like --requests 600 --seeds 3 --policies {_AGGREGATED},bid_price"
_BUILTIN = f"--requests 1500 --seeds 3 --policies {_MAIN}"

_FRONT_PX, _LADDER_PX = 840, 1250

SECTIONS: tuple[Section, ...] = (
    Section("The defaults", (Command("defaults", "compare", charts=True),)),
    Section(
        "A real trace: Azure conversations, 2023",
        tuple(Command(f"azure-{name}", f"compare {_AZURE} --seeds 3 {_BASIC} {how}") for name, how in _SCENARIOS),
    ),
    Section(
        "The frontier of the presets",
        tuple(
            Command(
                f"frontier-azure-{name}",
                f"sweep {_AZURE} --seeds 1 --points 48 --slo ttft=5,e2e=15,tpot=1 {how}",
                charts=True,
                picture_px=_FRONT_PX,
            )
            for name, how in _SCENARIOS
        ),
    ),
    Section(
        "The frontier on built-in workloads",
        (
            Command("frontier-conv", "sweep --requests 1500 --seeds 2 --points 32", charts=True, picture_px=_FRONT_PX),
            Command(
                "frontier-code",
                "sweep --trace builtin:azure-code-like --requests 1500 --seeds 2 --points 32",
                charts=True,
                picture_px=_FRONT_PX,
            ),
            Command(
                "frontier-long-context",
                "sweep --trace builtin:long-context-like --requests 1000 --seeds 2 --points 24",
                charts=True,
                picture_px=_FRONT_PX,
            ),
            Command(
                "frontier-reasoning",
                "sweep --trace builtin:reasoning-like --requests 500 --seeds 1 --points 24",
                charts=True,
                picture_px=_FRONT_PX,
            ),
        ),
    ),
    Section("A recommendation", (Command("recommend", "recommend --goal 'ttft_p99<4, min e2e_mean' --requests 1500"),)),
    Section(
        "What each idea is worth",
        (Command("ladder", "ladder --seeds 3", charts=True, picture_px=_LADDER_PX),),
    ),
    Section("Robustness", (Command("robustness", "robustness --seeds 2"),)),
    Section(
        "Bounds",
        (
            Command("bound-conv", "bound --requests 600 --devices 2 --batch-slots 64 --kv-tokens 100000"),
            *(Command(f"bound-azure-{name}", f"bound {_BOUND} {how}") for name, how in _BOUND_BY),
        ),
    ),
    Section(
        "Built-in workloads",
        (
            Command("azure-code-like", f"compare --trace builtin:azure-code-like {_BUILTIN}"),
            Command("long-context-like", f"compare --trace builtin:long-context-like {_BUILTIN}"),
            Command(
                "reasoning-like", f"compare --trace builtin:reasoning-like --requests 800 --seeds 3 --policies {_MAIN}"
            ),
            Command("aggregated", f"compare --trace builtin:azure-conv-like --mode aggregated {_BUILTIN}"),
        ),
    ),
    Section(
        "Workers that prefill, too: the token budget",
        tuple(
            Command(f"{name}-{budget}", f"{command} --mode aggregated --engine max_batched_tokens=1024,budget={budget}")
            for name, command in (("mixed", _MIXED), ("mixed-code", _MIXED_CODE))
            for budget in ("told", "hidden")
        ),
    ),
    Section(
        "Unlike workers",
        tuple(
            Command(name, f"compare --trace builtin:azure-conv-like --requests 800 --policies {_UNLIKE} {how}")
            for name, how in (
                ("fast-slow", "--fleet fast-slow.yaml"),
                ("fast-slow-idle", "--fleet fast-slow.yaml --speedup 1"),
                ("three-paces", "--fleet three-paces.yaml"),
                ("three-paces-idle", "--fleet three-paces.yaml --speedup 2.2"),
            )
        ),
    ),
)


def chosen(sections: Sequence[Section], names: str) -> list[Section]:
    """The sections with only the commands of these names, with commas; all of them for an empty text.

    Raises ValueError for a name that no command has.
    """
    wanted = {name.strip() for name in names.split(",") if name.strip()}
    known = [command.name for section in sections for command in section.commands]
    unknown = sorted(wanted - set(known))
    if unknown:
        raise ValueError(f"no command is called {unknown[0]!r}; choose from: {', '.join(known)}")
    kept = [(one.title, tuple(c for c in one.commands if not wanted or c.name in wanted)) for one in sections]
    return [Section(title, commands) for title, commands in kept if commands]
