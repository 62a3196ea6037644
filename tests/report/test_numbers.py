import math

import pytest

from bidroute.experiments.results import Spread
from bidroute.report.numbers import figure, percent, with_spread


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0123, "0.012"),
        (0.5, "0.50"),
        (6.789, "6.79"),
        (16.55, "16.6"),
        (99.97, "100"),
        (14000.4, "14000"),
        (0.0, "0"),
    ],
)
def test_about_three_digits(value, text):
    assert figure(value) == text


def test_a_missing_figure_is_a_dash():
    assert figure(math.nan) == "–"
    assert with_spread(Spread(math.nan, math.nan)) == "–"


def test_the_spread_has_the_precision_of_its_figure():
    assert with_spread(Spread(6.15, 0.1501)) == "6.15 ±0.15"
    assert with_spread(Spread(6.15, 0.0)) == "6.15"
    assert with_spread(Spread(6.15, 0.15), show_spread=False) == "6.15"


@pytest.mark.parametrize(("value", "text"), [(-0.142, "−14 %"), (0.0139, "+1.4 %"), (8.0, "×9"), (0.2, "+20 %")])
def test_percent(value, text):
    assert percent(value).replace("\N{NO-BREAK SPACE}", " ") == text
