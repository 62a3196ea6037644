import math

import pytest

from bidroute.experiments.results import Spread
from bidroute.report.numbers import figure, percent, spread_figure


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
        (-0.0, "0"),
        (-0.0004, "0.000"),
        (-0.5, "-0.50"),
    ],
)
def test_about_three_digits(value, text):
    assert figure(value) == text


def test_a_missing_figure_is_a_dash():
    assert figure(math.nan) == "–"
    assert figure(math.nan) == "–"
    assert spread_figure(Spread(math.nan, math.nan)) == ""


def test_the_spread_has_the_precision_of_its_figure():
    assert spread_figure(Spread(6.15, 0.1501)) == "±.15"
    assert spread_figure(Spread(16.5, 1.26)) == "±1.3"
    assert spread_figure(Spread(6.15, 0.0)) == ""


@pytest.mark.parametrize(("value", "text"), [(-0.142, "−14 %"), (0.0139, "+1.4 %"), (8.0, "×9"), (0.2, "+20 %")])
def test_percent(value, text):
    assert percent(value).replace("\N{NO-BREAK SPACE}", " ") == text
