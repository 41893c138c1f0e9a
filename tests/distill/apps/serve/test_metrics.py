import os

from distill.apps.serve.prometheus import Metrics


def samples(metrics: Metrics) -> dict[str, float]:
    lines = [line for line in metrics.text().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_a_histogram_counts_what_is_not_above_each_bound() -> None:
    metrics = Metrics(1)
    for size in (1, 2, 3, 100_000):
        metrics.observe("te_batch_next_size", size)
    told = samples(metrics)
    bounds = {name: told[f'te_batch_next_size_bucket{{le="{name}"}}'] for name in ("1", "2", "4", "8192", "+Inf")}
    assert bounds == {"1": 1, "2": 2, "4": 3, "8192": 3, "+Inf": 4}
    assert (told["te_batch_next_size_sum"], told["te_batch_next_size_count"]) == (100_006, 4)


def test_each_name_has_its_type_once() -> None:
    lines = Metrics(1).text().splitlines()
    types = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(types) == len(set(types))
    assert all(line.startswith((f"{types[0]} ", *types[1:])) for line in lines if not line.startswith("#"))


def test_any_worker_tells_of_all() -> None:
    metrics = Metrics(2)
    process = os.fork()
    if not process:
        metrics.of_worker(1)
        metrics.add('te_request_count{method="batch"}', 3)
        os._exit(0)
    assert os.waitpid(process, 0)[1] == 0
    metrics.of_worker(0)
    metrics.add('te_request_count{method="batch"}')
    assert samples(metrics)['te_request_count{method="batch"}'] == 4


def test_what_a_worker_has_counted_outlives_it_but_not_its_queue() -> None:
    metrics = Metrics(1)
    metrics.add("te_queue_size", 5)
    metrics.add('te_request_success{method="single"}')
    metrics.of_worker(0)
    told = samples(metrics)
    assert (told["te_queue_size"], told['te_request_success{method="single"}']) == (0, 1)
