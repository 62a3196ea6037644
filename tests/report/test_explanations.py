import json
import math

from rich.console import Console

from bidroute.experiments import ExplainedRequest
from bidroute.policies import Explanation, Hold
from bidroute.report.explanations import (
    MAX_ROWS,
    explanation_data,
    explanation_sentence,
    explanation_table,
    like_decisions,
)


def epoch(now_s, held_by=Hold.PRICE, instead=(), value=-0.5, device=1):
    return Explanation(
        7, device, now_s, now_s - 1.0, {"tail": now_s, "ttft": 0.0}, {"kv": 2.0}, value, 3, 9, held_by, list(instead)
    )


def explained(epochs, start_s=5.0):
    return ExplainedRequest(
        policy="bid_price",
        seed=0,
        request_id=7,
        chosen="asked for",
        arrival_s=1.0,
        held_s=None if start_s is None else start_s - 1.0,
        start_s=start_s,
        end_s=8.0 if start_s else None,
        device=1,
        prompt_tokens=100,
        output_tokens=20,
        predicted_tokens=25.0,
        preemptions=0,
        outcome="finished" if start_s else "refused",
        epochs=epochs,
        scenario={"trace": "t"},
    )


def rendered(request):
    console = Console(width=140, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(explanation_table(request))
    return capture.get()


def test_like_decisions_share_a_row():
    epochs = [epoch(2.0, instead=[1]), epoch(3.0, instead=[2, 3]), epoch(4.0, Hold.SLOTS), epoch(5.0, None)]
    text = rendered(explained(epochs))
    assert "held: price" in text
    assert "1.000 to 2.000" in text
    assert "1, 2, 3" in text
    assert "tail 2.00 → 3.00" in text
    assert "ttft" not in text  # a term of nothing is not worth a line
    assert "released to 1" in text
    assert len(like_decisions(epochs)) == 3


def test_a_policy_without_reward_or_price_has_dashes():
    plain = Explanation(7, 1, 2.0, 1.0, {}, {"score": 0.0}, 0.0, 0, 1, None, [])
    row = rendered(explained([plain])).splitlines()[1]
    assert row.split("of 1")[1].split()[:3] == ["–", "–", "–"]


def test_flapping_decisions_are_joined_and_counted():
    flips = [epoch(2.0 + i / 100, Hold.PRICE if i % 2 else Hold.KV_NOW) for i in range(200)]
    runs = like_decisions([*flips, epoch(5.0, None)])
    assert len(runs) <= MAX_ROWS
    assert sum(map(len, runs)) == 201
    assert [one.held_by for one in runs[-1]] == [None]
    assert "100×" in rendered(explained([*flips, epoch(5.0, None)]))


def test_devices_compared_in_one_decision_keep_their_own_rows():
    assert len(like_decisions([epoch(2.0, None, device=1), epoch(2.0, Hold.ORDER, device=2)])) == 2


def test_the_sentence_tells_what_became_of_it():
    sentence = explanation_sentence(explained([]))
    assert "request 7 (asked for) under bid_price" in sentence
    assert "(predicted 25)" in sentence
    assert "held 4.000 s, started on device 1, finished 7.000 s after arrival" in sentence
    assert explanation_sentence(explained([], start_s=None)).endswith("arrived at 1.000 s, refused.")


def test_the_data_is_strict_json():
    data = explanation_data(explained([epoch(2.0, value=math.inf), epoch(3.0, None)]))
    again = json.loads(json.dumps(data, allow_nan=False))
    assert set(again) == {"scenario", "request", "epochs"}
    assert [one["held_by"] for one in again["epochs"]] == ["price", None]
    assert again["epochs"][0]["value"] is None
    assert again["request"]["request_id"] == 7
