import csv
import json

import pytest

from bidroute.errors import ConfigError
from bidroute.experiments.results import Comparison, Result
from bidroute.report.data_files import comparison_data, write_json, write_per_request_csv
from tests.report.fakes import fake_comparison


def test_the_json_document_has_one_row_per_policy_and_seed(tmp_path):
    write_json(comparison_data(fake_comparison()), tmp_path / "out.json")
    data = json.loads((tmp_path / "out.json").read_text())
    assert set(data) == {"scenario", "results", "notes"}
    assert [(row["policy"], row["seed"]) for row in data["results"]][-1] == ("bid_price", 1)
    assert set(data["results"][0]) == {
        *("policy", "seed", "e2e_s", "ttft_s", "tpot_s", "output_tokens_per_s", "requests_per_s", "goodput"),
        *("preemptions", "wasted_tokens", "refused", "unfinished", "decision_us", "wall_s", "cpu_s"),
    }


def test_the_csv_has_one_row_per_request_and_leaves_missing_times_empty(tmp_path):
    write_per_request_csv(fake_comparison(), tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6 * 200
    assert rows[199]["e2e_s"] == ""
    assert float(rows[0]["e2e_s"]) - float(rows[0]["ttft_s"]) == pytest.approx(3.0, abs=2e-6)
    assert rows[0]["prompt_tokens"] == "100"


def test_a_comparison_without_requests_cannot_be_written_per_request(tmp_path):
    whole = fake_comparison().results[0]
    lean = Result(whole.policy, whole.seed, whole.row, whole.e2e_quantiles_s, whole.ttft_quantiles_s)
    with pytest.raises(ConfigError, match="keep_requests"):
        write_per_request_csv(Comparison({}, [lean]), tmp_path / "out.csv")
    assert list(tmp_path.iterdir()) == []
