"""Running the cases inside Vidur, and remembering what was run."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import bidroute
from bidroute.core.figures import Slo
from bidroute.experiments.finished_runs import code_fingerprint, read_journal
from bidroute.experiments.workers import local_crew
from tools.results_vidur.experiments import BLOCK_TOKENS, DECODE, PREFILL, REPLICAS, Case
from tools.results_vidur.workloads import workload_of

Row = dict[str, Any]
SLO = Slo(ttft_s=2.0, e2e_s=15.0, tpot_s=0.1)


def run_all(cases: Sequence[Case], journal: Path, jobs: int) -> dict[Case, Row]:
    """The figures of every case, by `jobs` processes; what the journal has from the same code is not run again."""
    journal.parent.mkdir(parents=True, exist_ok=True)
    known = read_journal(journal)
    missing = [case for case in cases if digest_of(case) not in known]
    with local_crew(min(jobs, len(missing))) as crew, journal.open("a", encoding="utf-8") as stream:
        for number, (place, row) in enumerate(crew.each(run_case, missing), start=1):
            case = missing[place]
            stream.write(json.dumps({"run": digest_of(case), "row": row}) + "\n")
            stream.flush()
            what = f"{case.experiment.name}, {case.policy}, {case.objective}, seed {case.seed}"
            print(f"[{number}/{len(missing)}] {what}", flush=True)
    return finished(cases, journal)


def finished(cases: Sequence[Case], journal: Path) -> dict[Case, Row]:
    """The figures of those cases that the journal has; nothing is run."""
    known = read_journal(journal)
    rows = {case: known.get(digest_of(case)) for case in cases}
    return {case: row for case, row in rows.items() if row is not None}


def run_case(case: Case) -> Row:
    """One run to its end."""
    from bidroute.integrations.vidur.run import run  # needs vidur, which the tables alone do not

    logging.disable(logging.INFO)  # Vidur says much at every run
    with TemporaryDirectory() as folder:
        result = run(configuration(case, folder), workload_of(case.experiment, case.requests, case.seed))
    figures: Row = result.summary(SLO)
    met = float(figures["goodput"] / figures["requests_per_s"] * result.finished.mean())
    return {**figures, "slo_violations": 1.0 - met}


def configuration(case: Case, folder: str) -> Any:
    """Vidur's configuration of the case."""
    from bidroute.integrations.vidur.setup import parse_options

    experiment = case.experiment
    words = [
        *("--log_level", "error", "--seed", str(case.seed), "--no-metrics_config_write_metrics"),
        *("--metrics_config_output_dir", folder, "--no-metrics_config_store_plots"),
        "--no-metrics_config_enable_chrome_trace",
        *("--cluster_config_num_replicas", str(REPLICAS)),
        *("--replica_config_model_name", "meta-llama/Llama-2-7b-hf"),
        *("--replica_config_device", "a100", "--replica_config_network_device", "a100_dgx"),
        *("--replica_config_num_pipeline_stages", "1", "--replica_config_tensor_parallel_size", "1"),
        *("--replica_scheduler_config_type", "sarathi"),
        *("--sarathi_scheduler_config_batch_size_cap", str(experiment.batch_cap)),
        *("--cache_config_block_size", str(BLOCK_TOKENS)),
        *("--execution_time_predictor_config_type", "bidroute_latency"),
        *("--latency_predictor_config_decode", DECODE, "--latency_predictor_config_prefill", PREFILL),
        *("--global_scheduler_config_type", case.policy, "--bidroute_objective", case.objective),
        *("--bidroute_lengths", experiment.known),
        *("--bidroute_ttft_slo_s", str(SLO.ttft_s), "--bidroute_e2e_slo_s", str(SLO.e2e_s)),
    ]
    if experiment.kv_tokens is not None:
        words += ["--cache_config_num_blocks", str(experiment.kv_tokens // BLOCK_TOKENS)]
    if experiment.decode_only:
        words.append("--bidroute_decode_only")
    if experiment.batch_caps:
        words += ["--bidroute_batch_caps", *map(str, experiment.batch_caps)]
    if experiment.speeds:
        words += ["--bidroute_speeds", *map(str, experiment.speeds)]
    return parse_options(words)


def digest_of(case: Case) -> str:
    """What the figures of a case depend on: the policies, the plug-in, and the case."""
    digest = hashlib.sha256(code_fingerprint().encode())
    for folder in (Path(bidroute.__file__).parent / "integrations" / "vidur", Path(__file__).parent):
        for file in sorted(folder.glob("*.py")):
            if file.name not in ("page.py", "__main__.py"):
                digest.update(file.read_bytes())
    digest.update(repr(case).encode())
    return digest.hexdigest()[:24]
