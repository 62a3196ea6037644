from rich.console import Console

from bidroute.experiments.verdict import judge
from bidroute.report.sentences import losses_sentence, scenario_sentence, verdict_sentence
from bidroute.report.tables import best_policies, comparison_table
from tests.experiments.test_verdict import E2E_P99, GOODPUT, PREEMPTIONS
from tests.report.fakes import fake_comparison


def rendered(width):
    console = Console(width=width, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(comparison_table(fake_comparison(), width))
    return capture.get().splitlines()


def test_the_table_fits_100_columns_sorted_by_latency():
    lines = rendered(100)
    assert max(map(len, lines)) <= 100
    assert [line.split()[0] for line in lines[2:]] == ["bid_price", "fifo+safety", "join_shortest_queue"]
    assert "6.15±.15" in lines[2]


def test_a_narrow_terminal_sees_medians_only():
    assert not any("±" in line for line in rendered(80))


def test_best_of_a_column():
    comparison = fake_comparison()
    assert best_policies(comparison, E2E_P99) == {"fifo+safety"}
    assert best_policies(comparison, PREEMPTIONS) == {"bid_price", "fifo+safety"}
    assert best_policies(comparison, GOODPUT) == set()


def test_sentences_say_what_was_run_who_wins_and_where_it_loses():
    comparison = fake_comparison()
    scenario = scenario_sentence(comparison)
    assert "builtin:azure-conv-like" in scenario
    assert "load 0.95" in scenario
    assert "2 seeds" in scenario
    sentence = verdict_sentence(judge(comparison)).replace("\N{NO-BREAK SPACE}", " ")
    assert sentence.startswith(
        "bid_price against fifo+safety, the strongest other policy here: better on E2E mean −25 %"
    )
    assert sentence.endswith("worse on E2E p99 +8.9 %.")
    assert losses_sentence(judge(comparison)) == ""
