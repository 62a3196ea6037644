from bidroute.experiments.benchmarks import decision_times, peak_memory_mb, simulator_speed


def test_the_simulator_is_timed():
    speed = simulator_speed(requests=300, workers=2)
    assert speed.requests_per_cpu_s > 0


def test_decisions_are_timed_on_a_busy_fleet():
    times = decision_times("fifo+safety", devices=3, waiting=20, epochs=12)
    assert len(times.decide_us) == len(times.update_us) == 12
    assert (times.decide_us > 0).all()


def test_memory_is_measured():
    assert peak_memory_mb() > 10
