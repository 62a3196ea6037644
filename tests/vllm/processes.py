"""The processes of the suite: unlike vLLM workers, and the router in front of them. All on loopback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bidroute.replay.processes import free_port

HERE = Path(__file__).parent
MODEL_TOKENS, BLOCK = 1024, 32
LONE_QUEUE = 4  # requests that may wait in the router of the small engine
STALL_S = 5.0  # and how long an engine may be silent there in the middle of an answer
START_S = 900.0  # three engines on two idle cores need 40
END_S = 20.0


@dataclass(frozen=True)
class Spec:
    """A worker: its pace (see plugin/paced.py), batch slots, and KV blocks that requests can use."""

    name: str
    pace_ms: str
    slots: int
    blocks: int
    tells_slots: bool  # vLLM does so in its developer mode only
    kv_role: str = ""  # kv_producer or kv_consumer: it hands KV over, over NIXL

    @property
    def kv_tokens(self) -> int:
        return self.blocks * BLOCK


FAST = Spec("fast", "15,0.3,0.02,0.001", 16, 256, True)
MIDDLE = Spec("middle", "25,0.5,0.04,0.002", 8, 64, True)
SMALL = Spec("small", "40,1.0,0.08,0.004", 4, 32, False)
SPECS = (FAST, MIDDLE, SMALL)
KV_LEASE_S = 20  # a producer's; 30 by default
PRODUCER = Spec("producer", "15,0.3,0.02,0.001", 8, 256, True, "kv_producer")
CONSUMER = Spec("consumer", "30,0.3,0.02,0.001", 4, 200, True, "kv_consumer")


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2.0) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


@dataclass
class Process:
    """A child process in a session of its own, with its log."""

    command: list[str]
    environment: dict[str, str]
    log: Path
    child: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.child = subprocess.Popen(
                self.command,
                env=self.environment,
                cwd=self.log.parent,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def signal(self, number: int) -> None:
        if self.child is not None and self.child.poll() is None:
            os.killpg(self.child.pid, number)

    def ended(self, timeout_s: float) -> int:
        """Its exit code. Raises TimeoutExpired."""
        assert self.child is not None
        return self.child.wait(timeout_s)

    def stop(self) -> None:
        for number in (signal.SIGCONT, signal.SIGTERM, signal.SIGKILL):
            self.signal(number)
            if number != signal.SIGCONT:
                try:
                    self.ended(END_S)
                except (subprocess.TimeoutExpired, AssertionError):
                    continue
                return

    def await_start(self, url: str, ready: Callable[[str], bool] = answers) -> None:
        """Raises AssertionError with the end of its log where it does not come up."""
        end_s = time.monotonic() + START_S
        while not ready(url):
            assert self.child is not None
            tail = self.log.read_text(errors="replace")[-3000:]
            assert self.child.poll() is None, f"{self.log} ended:\n{tail}"
            assert time.monotonic() < end_s, f"{self.log}: not up after {START_S:g} s:\n{tail}"
            time.sleep(0.2)


class VllmWorker(Process):
    """`vllm` on a port of its own, which it keeps when it is started anew."""

    def __init__(self, spec: Spec, python: str, model: Path, folder: Path) -> None:
        self.spec, self.port = spec, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        flags = {
            "--model": str(model),
            "--served-model-name": "tiny",
            "--load-format": "dummy",
            "--dtype": "bfloat16",
            "--distributed-executor-backend": "uni",
            "--host": "127.0.0.1",
            "--port": str(self.port),
            "--max-model-len": str(MODEL_TOKENS),
            "--max-num-seqs": str(spec.slots),
            "--block-size": str(BLOCK),
            "--num-gpu-blocks-override": str(spec.blocks + 1),  # one block is vLLM's own
            "--kv-cache-memory-bytes": "32M",
            "--scheduler-cls": "paced.PacedScheduler",
        }
        switches = ["--enforce-eager", "--no-enable-prefix-caching", "--no-async-scheduling"]
        if spec.kv_role:
            flags["--kv-transfer-config"] = json.dumps(
                {
                    "kv_connector": "NixlConnector",
                    "kv_role": spec.kv_role,
                    "kv_buffer_device": "cpu",
                    "kv_connector_extra_config": {"kv_lease_duration": KV_LEASE_S},
                }
            )
        pairs = [text for pair in flags.items() for text in pair]
        command = [python, "-m", "vllm.entrypoints.openai.api_server", *pairs, *switches]
        command.append("--disable-uvicorn-access-log")
        super().__init__(command, _worker_environment(spec, folder), folder / f"{spec.name}.log")

    def complete(self, output_tokens: int, **more: Any) -> dict[str, Any]:
        """Its answer to a small request. Raises urllib.error.HTTPError."""
        body = {"model": "tiny", "prompt": "p" * BLOCK, "max_tokens": output_tokens, "ignore_eos": True} | more
        request = urllib.request.Request(
            f"{self.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=START_S) as answer:
            whole: dict[str, Any] = json.load(answer)
            return whole

    def warm_up(self) -> None:
        """Let it do for the first time what takes it long then, on a busy machine longer than a router would wait: the
        first request imports what later ones use, and before vLLM tells its slots it looks over the whole machine."""
        self.complete(2)
        if self.spec.tells_slots:
            with urllib.request.urlopen(f"{self.url}/server_info?config_format=json", timeout=START_S):
                pass


def warm_up_pair(producer: VllmWorker, consumer: VllmWorker) -> None:
    """Let the consumer make itself known to the producer, which fails, and its request with it, where that takes 5 s.

    Returns when the producer holds nothing any more.
    """
    asked = {"do_remote_decode": True, "do_remote_prefill": False}
    end_s = time.monotonic() + START_S
    while True:
        params = producer.complete(1, kv_transfer_params=asked)["kv_transfer_params"]
        try:
            consumer.complete(2, kv_transfer_params=params)
            break
        except urllib.error.HTTPError:
            assert time.monotonic() < end_s, f"no KV was handed over; see {consumer.log}"
            time.sleep(KV_LEASE_S + 1.0)


def _worker_environment(spec: Spec, folder: Path) -> dict[str, str]:
    return os.environ | {
        "PACE_MS": spec.pace_ms,
        "PYTHONPATH": str(HERE / "plugin"),
        "VLLM_SERVER_DEV_MODE": "1" if spec.tells_slots else "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_CI_ENV": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port()),
        "VLLM_CACHE_ROOT": str(folder / "cache"),
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }


class Router(Process):
    """`bidroute serve` with these settings, on free ports."""

    def __init__(self, folder: Path, name: str, **settings: Any) -> None:
        port, admin_port = free_port(), free_port()
        self.url, self.admin_url = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}"
        settings["http"] = {"port": port} | settings.get("http", {})
        config = folder / f"{name}.yaml"
        config.write_text(json.dumps(settings | {"admin_port": admin_port}))  # JSON is YAML
        command = [sys.executable, "-m", "bidroute", "serve", "--config", str(config), "--log-level", "info"]
        super().__init__(command, dict(os.environ), folder / f"{name}.log")

    def await_ready(self, workers: int) -> None:
        """Wait until so many workers have joined."""
        self.await_start(f"{self.admin_url}/admin/state", lambda url: _joined(url) == workers)


def _joined(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=2.0) as answer:
            state = json.load(answer)
    except (OSError, urllib.error.URLError):
        return -1
    return sum(worker["status"] == "ready" for worker in state["workers"])
