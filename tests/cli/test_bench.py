from bidroute.cli import main


def test_it_prints_a_row_per_size(monkeypatch, capsys):
    monkeypatch.setattr("bidroute.cli.bench.SIZES", ((2, 10), (3, 20)))
    assert main(["bench", "--policy", "join_shortest_queue", "--epochs", "5"]) == 0
    output = capsys.readouterr().out
    assert "requests per CPU-second" in output
    assert "peak memory" in output
    assert [line.split()[:2] for line in output.splitlines() if line.strip().startswith(("2 ", "3 "))] == [
        ["2", "10"],
        ["3", "20"],
    ]


def test_bad_settings_are_refused(capsys):
    assert main(["bench", "--epochs", "0"]) == 2
    assert capsys.readouterr().err.startswith("error: ")
