"""Vidur's own execution times, from profiling data: its way to them is untouched, and our policies run on them."""

import json
from itertools import product
from pathlib import Path

import pandas as pd
import pytest
from vidur.config.model_config import BaseModelConfig
from vidur.execution_time_predictor import sklearn_execution_time_predictor as sklearn_predictor

from tests.vidur.helpers import in_vidur, workload

pytestmark = pytest.mark.vidur

MODEL = "meta-llama/Llama-2-7b-hf"
COMPUTE = (
    *("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj", "mlp_act"),
    *("input_layernorm", "post_attention_layernorm", "attn_rope", "add"),
)
BLOCK_TOKENS = 16


def _write_profile(folder: Path) -> None:
    """A made-up GPU: operations take 10 µs and 0.1 µs per token, attention 1 µs per request and 1 ns per token."""
    model = BaseModelConfig.create_from_name(MODEL)
    shape = {"n_kv_head": model.num_kv_heads, "n_embd": model.embedding_dim, "num_tensor_parallel_workers": 1}
    tokens = pd.DataFrame({"num_tokens": [1, 8, 32, 128, 512, 2048]}).assign(
        n_head=model.num_q_heads,
        n_expanded_embd=model.mlp_hidden_dim,
        use_gated_mlp=model.use_gated_mlp,
        vocab_size=model.vocab_size,
        **shape,
    )
    for name in COMPUTE:
        tokens[f"time_stats.{name}.median"] = 0.01 + 1e-4 * tokens["num_tokens"]
    tokens.to_csv(folder / "mlp.csv.xz", index=False)
    decodes = [(batch, kv, 0) for batch, kv in product((1, 8, 32), (0, 256, 1024))]
    prefills = [(1, kv, chunk) for kv, chunk in product((0, 256, 1024), (32, 128, 512))]
    attention = pd.DataFrame(decodes + prefills, columns=["batch_size", "kv_cache_size", "prefill_chunk_size"]).assign(
        n_q_head=model.num_q_heads, block_size=BLOCK_TOKENS, max_model_len=4096, **shape
    )
    work = attention["batch_size"] * (1e-3 + 1e-6 * attention["kv_cache_size"])
    for name in ("attn_kv_cache_save", "attn_prefill", "attn_decode"):
        attention[f"time_stats.{name}.median"] = work + 1e-5 * attention["prefill_chunk_size"]
    attention.to_csv(folder / "attention.csv.xz", index=False)
    (folder / "config.json").write_text(
        json.dumps({"model": MODEL, "device_sku": "a100", "sku": "a100_dgx"}), encoding="utf-8"
    )


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Vidur leaves files open
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_policies_run_on_times_that_vidur_learned_from_a_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the download is replaced: Vidur reads the profile, trains on it, and predicts."""
    profile = tmp_path / "profile"
    profile.mkdir()
    _write_profile(profile)

    def downloaded(repo_id: str, **_: object) -> str:
        if "predictions" in repo_id:
            raise OSError("no predictions there, train")
        return str(profile)

    monkeypatch.setattr(sklearn_predictor, "snapshot_download", downloaded)
    prefix = "linear_regression_execution_time_predictor_config_"
    options = {
        "execution_time_predictor_config_type": "linear_regression",
        f"{prefix}polynomial_degree": [1],
        f"{prefix}polynomial_include_bias": ["True"],
        f"{prefix}polynomial_interaction_only": [""],
        f"{prefix}fit_intercept": ["True"],
        f"{prefix}k_fold_cv_splits": 2,
        f"{prefix}num_training_job_threads": 1,
        f"{prefix}prediction_max_tokens_per_request": 4096,
        f"{prefix}prediction_max_prefill_chunk_size": 512,
        f"{prefix}prediction_max_batch_size": 16,
        f"{prefix}cache_dir": tmp_path / "cache",
        "cache_config_block_size": BLOCK_TOKENS,
        "cache_config_num_blocks": 1200,
        "bidroute_speeds": [1.0, 0.5],
    }
    run = in_vidur("bid_price", tmp_path / "out", workload(60, 10.0), **options)
    assert run.finished.all()
    full, half = (device.period_s for device in run.devices)
    assert full > 9 * 32 * 1e-5  # nine operations of 10 µs in 32 layers
    assert half == pytest.approx(2 * full, rel=1e-6)
