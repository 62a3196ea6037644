import numpy as np
import pytest

from bidroute.core.lengths import LengthModel
from bidroute.policies.expected_lengths import ExpectedLengths, ResidualLengths


def test_moments_are_sums_over_survival_and_follow_the_model() -> None:
    model, lengths = LengthModel(classes=2), ExpectedLengths()
    for _ in range(2):
        lengths.refresh(model)
        assert lengths.mean_tokens[1] == pytest.approx(model.mean_tokens(1))
        assert lengths.first_moment[1] == pytest.approx(sum(k * s for k, s in enumerate(model.survival[1])))
        model.observe(1, 5)
        model.learn(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))


def test_footprint_of_a_known_length_is_the_plain_sum() -> None:
    lengths = ExpectedLengths()
    lengths.refresh(LengthModel())
    one = np.array([1])
    footprint = lengths.footprint(20 * one, 0 * one, 7 * one, batch_slots=4.0, kv_tokens=100.0)
    assert footprint[0] == pytest.approx(sum(1 / 4 + (20 + k + 1) / 100 for k in range(7)))


def test_footprint_of_a_class_is_the_expectation() -> None:
    model, lengths = LengthModel(horizon_tokens=300), ExpectedLengths()
    lengths.refresh(model)
    one = np.array([1])
    footprint = lengths.footprint(20 * one, 0 * one, 0 * one, batch_slots=4.0, kv_tokens=100.0)
    expected = sum(s * (1 / 4 + (20 + k + 1) / 100) for k, s in enumerate(model.survival[0]))
    assert footprint[0] == pytest.approx(expected)


@pytest.mark.parametrize("kind", [ExpectedLengths, ResidualLengths])
def test_tables_brought_up_to_date_are_those_made_anew(kind: type[ExpectedLengths]) -> None:
    model, updated, anew = LengthModel(3, 80), kind(), kind()
    updated.refresh(model)
    for _ in range(3):
        model.observe(1, 2)
    model.learn(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    for lengths in (updated, anew):
        lengths.refresh(model)
    for name in ("mean_tokens", "mean_residual" if kind is ResidualLengths else "first_moment"):
        np.testing.assert_array_equal(getattr(updated, name), getattr(anew, name))


def test_mean_residual_life_is_the_expected_rest() -> None:
    model, lengths = LengthModel(horizon_tokens=200), ResidualLengths()
    lengths.refresh(model)
    survival = model.survival[0]
    for age in (0, 1, 50, 199):
        assert lengths.mean_residual[0, age] == pytest.approx(max(survival[age:].sum() / survival[age], 1.0))
    assert lengths.mean_residual[0, 200] == 1.0
    assert lengths.mean_tokens[0] == pytest.approx(model.mean_tokens(0))
