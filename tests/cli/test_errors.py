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
    (["--load", "0"], "load: 0"),
    (["--load", "0.9", "--speedup", "2"], "give one"),
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
    (["--policies", "power_of_d:d"], "'d' is not option=value"),
    (["--policies", "fifo,round_robin:d=3"], "policy round_robin has no option 'd'; it takes none"),
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
    (["--trace", ""], "trace: empty; expected a trace file or builtin:NAME"),
    (["--trace", "vidur:"], "trace 'vidur:': no file after the format; expected vidur:FILE"),
    (["--fleet", "absent.yaml"], "absent.yaml"),
    (["--fleet", "absent.yaml", "--devices", "3"], "--devices and --fleet"),
    (["--json", "/absent/out.json"], "/absent/out.json"),
    (["--html", "/"], "it is a folder"),
    (["--nonsense"], "--nonsense"),
    (["--requests", "many"], "given: 'many' (see bidroute compare --help)"),
    (["--speedup=fast"], "given: 'fast'"),
    (["--speedup", "1e-308"], "raise --speedup"),
    (["--requests", "99999999999"], "at most"),
    (["--devices", "1000000000"], "devices: 1000000000; expected 100000 at most"),
    (["--batch-slots", "1000000000"], "at most"),
    (["--kv-tokens", "99999999999999999999"], "at most"),
    (["--engine", "block_size=99999999999999999999"], "block_size=99999999999999999999; expected 1 to"),
    (["--engine", "max_batched_tokens=0"], "max_batched_tokens=0; expected 1 to"),
    (["--mode", "disaggregated:999999999999"], "1 to 100000"),
    (["--latency", "affine:0,0,0"], "takes no time"),
    (["--latency", "affine:1000,1000,1000"], "takes more than 1000 s"),
    (["--latency", "affine:1e300,0,0"], "1e+300; expected seconds"),
    (["--recompute", "1e300"], "recompute: 1e+300"),
    (["--lengths", "noisy:1e9"], "SIGMA 0 to 10"),
    (["--objective", "tail=1e308"], "1e+308"),
    (["--objective", "tail=1,tail=2"], "given twice"),
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
        (VIDUR + "0,10,5\n1,99999999999,5\n", "expected 1000000000 tokens at most"),
        (VIDUR + "0,10,5\n1,ten,5\n", "--skip-bad-rows"),
        (VIDUR + "0,10,5\n1e300,10,5\n", "check the unit of its times"),
        (VIDUR + "0,10,999999\n", "every request of trace needs 1000009 KV tokens"),
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


def test_outputs_must_not_replace_the_trace_or_one_another(tmp_path, capsys):
    (tmp_path / "trace.csv").write_text(VIDUR + "0,10,5\n")
    trace, out = str(tmp_path / "trace.csv"), str(tmp_path / "out")
    assert "--trace and --json are both" in refused(["compare", "--trace", trace, "--json", trace], capsys)
    assert "--json and --html are both" in refused(["compare", "--json", out, "--html", out], capsys)


def test_running_out_of_memory_is_one_line(capsys, monkeypatch):
    def starved(*_):
        raise MemoryError

    monkeypatch.setattr("bidroute.experiments.comparison.prepare", starved)
    assert "out of memory" in refused(["compare"], capsys)


@pytest.mark.parametrize("rows", ["0,10,5\n", "3,10,5\n3,20,6\n"])
def test_requests_that_all_arrive_at_once_are_run(rows, tmp_path, capsys):
    (tmp_path / "trace.csv").write_text(VIDUR + rows)
    trace = ["--trace", str(tmp_path / "trace.csv")]
    assert main(["compare", *trace, "--policies", "round_robin", "--jobs", "1", "--seeds", "1"]) == 0
    assert "(all at once)" in " ".join(capsys.readouterr().out.split())


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
