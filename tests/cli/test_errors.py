"""Bad input gives one line on stderr, exit code 2 and no traceback."""

import pytest

from bidroute.cli import main

VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n"

BAD_OPTIONS = [
    (["--requests", "0"], "requests: 0"),
    (["--requests", "-5"], "requests: -5"),
    (["--requests", "many"], "--requests"),
    (["--devices", "0"], "devices: 0"),
    (["--batch-slots", "0"], "batch-slots: 0"),
    (["--kv-tokens", "0"], "kv-tokens: 0"),
    (["--kv-tokens", "3"], "KV tokens"),
    (["--speedup", "0"], "speedup: 0"),
    (["--speedup", "nan"], "speedup: nan"),
    (["--speedup", "inf"], "speedup: inf"),
    (["--speedup", "-1"], "speedup: -1"),
    (["--recompute", "nan"], "recompute: nan"),
    (["--recompute", "-1"], "recompute: -1"),
    (["--seeds", "0"], "seeds: 0"),
    (["--seeds", "-1"], "seeds: -1"),
    (["--jobs", "0"], "jobs: 0"),
    (["--policies", "nothing"], "policy 'nothing' is unknown"),
    (["--policies", ","], "policies: none given"),
    (["--lengths", "psychic"], "'psychic'"),
    (["--lengths", "noisy:nan"], "noisy:nan"),
    (["--lengths", "noisy:-1"], "noisy:-1"),
    (["--mode", "sideways"], "mode 'sideways'"),
    (["--mode", "disaggregated:0"], "disaggregated:0"),
    (["--engine", "block=1"], "engine 'block=1'"),
    (["--engine", "block_size=0"], "block_size=0"),
    (["--latency", "affine:nan,0,0"], "nan"),
    (["--latency", "affine:1,2"], "affine:1,2"),
    (["--latency", "affine:-1,0,0"], "-1"),
    (["--latency", "abacus"], "'abacus' is unknown"),
    (["--mode", "aggregated", "--prefill", "affine:inf,0"], "inf"),
    (["--prefill", "abacus"], "'abacus' is unknown"),
    (["--slo", "ttft=nan"], "nan"),
    (["--slo", "speed=1"], "slo 'speed=1'"),
    (["--trace", "builtin:nothing"], "nothing"),
    (["--trace", "absent.csv"], "absent.csv"),
    (["--fleet", "absent.yaml"], "absent.yaml"),
    (["--fleet", "absent.yaml", "--devices", "3"], "--devices and --fleet"),
    (["--json", "/absent/out.json"], "/absent/out.json"),
    (["--html", "/"], "it is a folder"),
    (["--nonsense"], "--nonsense"),
]


def refused(arguments, capsys):
    """The one line on stderr."""
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize(("options", "says"), BAD_OPTIONS, ids=lambda value: " ".join(value) if value else "")
def test_a_bad_option_is_refused(options, says, capsys):
    assert says in refused(["compare", "--jobs", "1", *options], capsys)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (VIDUR + "0,10,5\n1,ten,5\n", "trace.csv, line 3"),
        (VIDUR + "0,10,5\n1,10\n", "trace.csv, line 3"),
        (VIDUR + "5,10,5\n1,10,5\n", "trace.csv, line 3"),
        (VIDUR + "nan,10,5\n", "trace.csv, line 2"),
        (VIDUR + "0,-10,5\n", "trace.csv, line 2"),
        (VIDUR, "trace.csv"),
        ("", "trace.csv"),
        ("what,is,this\n1,2,3\n", "trace.csv"),
    ],
)
def test_a_bad_trace_is_refused_with_its_place(tmp_path, text, says, capsys):
    (tmp_path / "trace.csv").write_text(text)
    assert says in refused(["compare", "--trace", str(tmp_path / "trace.csv")], capsys)


def test_bad_rows_can_be_skipped_and_are_counted(tmp_path, capsys):
    (tmp_path / "trace.csv").write_text(VIDUR + "0,10,5\n1,ten,5\n2,10,5\n")
    trace = ["--trace", str(tmp_path / "trace.csv"), "--skip-bad-rows"]
    assert main(["compare", *trace, "--policies", "round_robin", "--jobs", "1", "--seeds", "1"]) == 0
    assert "1 bad rows of the trace were skipped" in capsys.readouterr().out


@pytest.mark.parametrize("objective", ["best", "tail=nan", "tail=-1", "speed=1", "tail="])
def test_a_bad_objective_is_refused(objective, capsys):
    assert "objective" in refused(["compare", "--policies", "bid_price", "--objective", objective], capsys)


def test_a_bad_command_is_refused(capsys):
    assert "nonsense" in refused(["nonsense"], capsys)
    assert "--request" in refused(["explain", "--request", "first"], capsys)


def test_nothing_is_written_when_the_run_fails(tmp_path, capsys):
    refused(["compare", "--policies", "nothing", "--json", str(tmp_path / "out.json")], capsys)
    assert list(tmp_path.iterdir()) == []


def test_help_and_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("bidroute ")
    for command in (["--help"], ["compare", "--help"], ["explain", "--help"]):
        assert main(command) == 0
        assert "bidroute" in capsys.readouterr().out
