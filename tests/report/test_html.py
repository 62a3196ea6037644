import json
import re

import numpy as np
import pytest

from bidroute.experiments.results import Comparison, Result
from bidroute.report.figures import MAX_POINTS, decimated, inside_figure
from bidroute.report.html import report_page, write_html
from tests.report.fakes import SCENARIO, fake_comparison, result


@pytest.fixture(scope="module")
def page():
    return report_page(fake_comparison())


def page_data(page):
    return json.loads(re.search(r'id="report-data">(.*?)</script>', page, re.S).group(1).replace("<\\/", "</"))


def test_the_page_is_one_offline_file_below_six_megabytes(page, tmp_path):
    assert len(page) < 6_000_000
    assert not re.search(r'<(?:script|link|img)[^>]*(?:src|href)="http', page)
    write_html(fake_comparison(), tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == page


def test_it_opens_with_who_wins_and_ends_with_how_to_reproduce(page):
    text = page.replace("\N{NO-BREAK SPACE}", " ")
    assert "bid_price against fifo+safety, the strongest other policy here: better on E2E mean −25 %" in text
    assert "bidroute compare --trace builtin:azure-conv-like" in text
    assert "1 request fits no device and was refused" in text


def test_every_figure_has_a_place_and_axis_titles(page):
    data = page_data(page)
    assert set(data["figures"]) == {"e2e-cdf", "ttft-cdf", "e2e-tradeoff", "ttft-tradeoff", "queue"}
    for name, figure in data["figures"].items():
        assert f'id="{name}"' in page
        assert figure["layout"]["xaxis"]["title"]["text"]
        assert figure["layout"]["yaxis"]["title"]["text"]
        assert {line["meta"] for line in figure["data"]} == {"bid_price", "fifo+safety", "join_shortest_queue"}
    assert set(data["inside"]) == {"bid_price", "fifo+safety", "join_shortest_queue"}


def test_only_policies_with_prices_have_price_curves():
    priced, plain = (fake_comparison().of(name)[0].timeline for name in ("bid_price", "fifo+safety"))
    assert {line["name"] for line in inside_figure(priced)["data"]} >= {
        "price of slots",
        "price of KV",
        "price of iterations' tokens",
        "held: price",
    }
    assert not {line["name"] for line in inside_figure(plain)["data"]} & {"price of slots", "price of KV"}


def test_curves_are_thinned_and_keep_their_mean():
    time_s, values = decimated(np.arange(4000.0), np.arange(4000.0))
    assert len(time_s) == MAX_POINTS
    assert values.mean() == pytest.approx(np.arange(4000.0).mean())


def test_names_cannot_break_out_of_the_page():
    evil = result("</script><b>x", 0, (1.0, 2.0), 1.0, 10.0, 0)
    page = report_page(Comparison({**SCENARIO, "command": "<img>"}, [evil]))
    assert "<b>x" not in page.split('id="report-data"')[0].split("</style>")[1].split("<body>")[1]
    assert page_data(page)["shown"] == ["</script><b>x"]
    assert "<img>" not in page.split("<body>")[1]


def test_a_run_without_timeline_or_finished_request_still_makes_a_page():
    empty = np.full(109, np.nan)
    whole = fake_comparison().results[0]
    none = {**whole.row, "e2e_s": dict.fromkeys(whole.row["e2e_s"]), "ttft_s": dict.fromkeys(whole.row["ttft_s"])}
    runs = [Result("a", 0, none, empty, empty), whole]
    assert "strongest" in report_page(Comparison(dict(SCENARIO), runs))
