from bidroute.experiments.benchmarks import decision_times, machine, peak_memory_mb, simulator_speed


def test_the_simulator_is_timed():
    speed = simulator_speed(requests=300, workers=2)
    assert speed.requests_per_cpu_s > 0


def test_decisions_are_timed_on_a_busy_fleet():
    times = decision_times("fifo+safety", devices=3, waiting=20, epochs=12)
    assert len(times.decide_us) == len(times.update_us) == 12
    assert (times.decide_us > 0).all()


def test_all_devices_can_start_at_once():
    times = decision_times("bid_price", devices=3, waiting=20, epochs=5, at_once=True)
    assert (times.offered, times.waiting, len(times.decide_us)) == (3, 20, 5)


def test_a_dispatching_policy_is_asked_about_one_request_and_all_devices():
    times = decision_times("round_robin", devices=3, waiting=20, epochs=5)
    assert (times.offered, times.waiting) == (3, 1)


def test_the_machine_is_named():
    assert all(machine().values())


def test_memory_is_measured():
    assert peak_memory_mb() > 10
