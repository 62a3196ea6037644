import pytest

from bidroute.errors import ConfigError
from bidroute.experiments.fleet_file import read_fleet


def written(tmp_path, text):
    path = tmp_path / "fleet.yaml"
    path.write_text(text)
    return path


def test_reads_groups_with_defaults(tmp_path):
    path = written(
        tmp_path,
        "devices:\n- {name: big, count: 2, batch_slots: 64, kv_tokens: 900, speed: 2}\n"
        "- {batch_slots: 8, latency: x}\n",
    )
    big, other = read_fleet(path)
    assert (big.name, big.count, big.batch_slots, big.kv_tokens, big.speed) == ("big", 2, 64, 900, 2.0)
    assert (other.name, other.count, other.kv_tokens, other.latency) == ("device", 1, None, "x")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("devices:\n- {batch_slots: 0, kv_tokens: 9}", r"devices\[0\].batch_slots: expected int >= 1, got 0"),
        ("devices:\n- {batch_slots: many}", r"devices\[0\].batch_slots: expected int, got 'many'"),
        (
            "devices:\n- {batch_slots: 1, kv: 9}",
            r"devices\[0\]: object contains unknown field kv; the fields are batch",
        ),
        ("devices:\n- {batch_slots: 99999999999999999999}", r"expected int <= 1000000, got 9+"),
        ("devices:\n- {batch_slots: 1, count: 60000}\n- {batch_slots: 1, count: 60000}", r"120000 devices; expected"),
        ("devices:\n- {kv_tokens: 9}", r"devices\[0\]: object missing required field batch_slots"),
        ("devices:\n- {batch_slots: 1, speed: .nan}", r"devices\[0\].speed: "),
        ("devices:\n- {batch_slots: 1, speed: .inf}", r"devices\[0\].speed: inf; expected a positive number"),
        ("devices:\n- {batch_slots: 1, count: -2}", r"devices\[0\].count: expected int >= 1"),
        ("devices: []", r"devices: expected array of length >= 1"),
        ("", r"expected object, got null; expected `devices:`"),
        ("devices: [", r"fleet.yaml, line 1: not valid YAML"),
    ],
)
def test_a_bad_file_is_refused_on_one_line_naming_the_field(tmp_path, text, says):
    path = written(tmp_path, text)
    with pytest.raises(ConfigError, match=says) as caught:
        read_fleet(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_an_unreadable_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read fleet file .*No such file"):
        read_fleet(tmp_path / "absent.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_fleet(tmp_path / "binary.yaml")
