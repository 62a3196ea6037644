import json

from bidroute.cli import main


def test_it_prints_and_writes_a_row_per_policy_and_size(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("bidroute.experiments.benchmarks.SIZES", ((2, 10), (3, 20)))
    monkeypatch.setattr("bidroute.experiments.benchmarks.AT_ONCE_SIZES", ((2, 10),))
    file = tmp_path / "bench.json"
    command = ["bench", "--quick", "--policies", "fifo,join_shortest_queue", "--epochs", "20", "--json", str(file)]
    assert main(command) == 0
    output = capsys.readouterr().out
    assert "requests per CPU-second" in output
    assert "peak memory" in output
    data = json.loads(file.read_text())
    assert data["simulator"]["requests_per_cpu_s"] > 0
    assert set(data["machine"]) == {"processor", "cores", "system", "python", "numpy", "numba"}
    assert [[row[name] for name in ("policy", "devices", "waiting", "offered")] for row in data["decisions"]] == [
        ["fifo", 2, 10, 1],
        ["fifo", 3, 20, 1],
        ["fifo", 2, 10, 2],
        ["join_shortest_queue", 2, 1, 2],
        ["join_shortest_queue", 3, 1, 3],
    ]
    assert all(row["decision_us"]["p50"] <= row["decision_us"]["p99"] for row in data["decisions"])


def test_bad_settings_are_refused(capsys):
    for bad in (["--epochs", "0"], ["--policies", "nonesuch"], ["--policies", "power_of_d:k=1"]):
        assert main(["bench", "--quick", *bad]) == 2
        assert capsys.readouterr().err.startswith("error: ")
