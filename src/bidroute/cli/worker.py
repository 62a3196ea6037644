"""`bidroute worker`: an OpenAI-compatible stand-in for a vLLM server."""

from __future__ import annotations

from typing import Annotated

import typer

from bidroute.cli.extras import require_serve
from bidroute.worker.settings import DEFAULT_LATENCY, DEFAULT_PREFILL, WorkerSettings

_ENGINE = "Engine"
_LENGTHS = "Lengths"
_SERVER = "Server"


def worker_command(
    host: Annotated[str, typer.Option(metavar="ADDRESS", rich_help_panel=_SERVER, help="Address to listen on.")] = (
        "127.0.0.1"
    ),
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65535, rich_help_panel=_SERVER, help="Port; 0 takes a free one.")
    ] = 8101,
    model: Annotated[
        str, typer.Option(metavar="NAME", rich_help_panel=_SERVER, help="The model's name.")
    ] = "bidroute-worker",
    max_num_queued_reqs: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            show_default=False,
            rich_help_panel=_SERVER,
            help="Answer 503 when so many wait in the engine's own queue. Not given: no limit.",
        ),
    ] = None,
    allow_faults: Annotated[
        bool,
        typer.Option(
            "--allow-faults", rich_help_panel=_SERVER, help="Take orders to fail at POST /fault; for tests only."
        ),
    ] = False,
    batch_slots: Annotated[
        int, typer.Option(metavar="B", rich_help_panel=_ENGINE, help="Requests that run at once.")
    ] = 64,
    kv_tokens: Annotated[int, typer.Option(metavar="C", rich_help_panel=_ENGINE, help="KV-cache tokens.")] = 50_000,
    block_size: Annotated[int, typer.Option(metavar="N", rich_help_panel=_ENGINE, help="Tokens per KV block.")] = 16,
    max_batched_tokens: Annotated[
        int, typer.Option(metavar="N", rich_help_panel=_ENGINE, help="Token budget of one iteration.")
    ] = 2048,
    max_model_len: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            show_default=False,
            rich_help_panel=_ENGINE,
            help="Most tokens of one request, prompt and output. Not given: the whole KV cache.",
        ),
    ] = None,
    kv_lease: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            rich_help_panel=_ENGINE,
            help="How long the KV of a prompt is kept for another worker to fetch it (vLLM's kv_transfer_params).",
        ),
    ] = 30.0,
    latency: Annotated[
        str,
        typer.Option(
            metavar="MODEL",
            rich_help_panel=_ENGINE,
            help="Seconds per decode iteration, as for compare: affine:A,B,C or the name of a packaged table.",
        ),
    ] = DEFAULT_LATENCY,
    prefill: Annotated[
        str,
        typer.Option(
            metavar="MODEL",
            rich_help_panel=_ENGINE,
            help="Seconds per prefill, as for compare: affine:P0,P1 or the name of a packaged table.",
        ),
    ] = DEFAULT_PREFILL,
    time_scale: Annotated[
        float, typer.Option(metavar="X", rich_help_panel=_ENGINE, help="Run the engine X times faster than real.")
    ] = 1.0,
    bytes_per_token: Annotated[
        float,
        typer.Option(metavar="X", rich_help_panel=_LENGTHS, help="Bytes of prompt text that count as one token."),
    ] = 4.0,
    output_tokens: Annotated[
        float,
        typer.Option(
            metavar="N",
            rich_help_panel=_LENGTHS,
            help="Mean of the drawn output lengths (log-normal); a request with ignore_eos has max_tokens instead.",
        ),
    ] = 200.0,
    seed: Annotated[int, typer.Option(metavar="N", rich_help_panel=_LENGTHS, help="Seed of these draws.")] = 0,
) -> None:
    """Serve the OpenAI API from a simulated engine that runs in real time, with vLLM's metric names.

    For demos, load tests and CI where a real server is too heavy: continuous batching, chunked prefill, KV blocks,
    preemption and recompute are as in the simulator; the text is made up.

    Examples:

      bidroute worker --port 8101

      bidroute worker --port 8102 --batch-slots 16 --kv-tokens 8192 --latency affine:0.025,0.0005,0.000002

      bidroute worker --port 8103 --latency llama-3.1-8b-a100 --kv-tokens 432992 --batch-slots 256
    """
    settings = WorkerSettings(
        model=model,
        batch_slots=batch_slots,
        kv_tokens=kv_tokens,
        block_size=block_size,
        max_batched_tokens=max_batched_tokens,
        max_model_len=max_model_len,
        latency=latency,
        prefill=prefill,
        time_scale=time_scale,
        bytes_per_token=bytes_per_token,
        output_tokens=output_tokens,
        seed=seed,
        max_queued=max_num_queued_reqs,
        allow_faults=allow_faults,
        kv_lease_s=kv_lease,
    )
    require_serve("bidroute worker")
    from bidroute.worker.serve import serve

    serve(settings, host, port)
