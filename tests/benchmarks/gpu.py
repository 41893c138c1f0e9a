"""``python -m tests.benchmarks.gpu``: what the kernels of the GPU reach of what the GPU could, and against others.

The floors come first: the time that a token's bytes and operations take at the rates measured on this GPU. Times are
medians between CUDA events, after a warm-up; each alternative is timed in turn.
"""

import json
import statistics
from collections.abc import Callable
from pathlib import Path

import torch

from pipeline import console

VOCABULARY, SIDE, SIZE = 30522, 20, 400
TOKEN_BYTES = 4 * (SIZE + 2 * SIDE**2)
TOKEN_FLOPS = 2 * 2 * SIDE**3
ROUNDS, WARM_UPS = 30, 5
GIGABYTE = 1 << 28  # float32 numbers

Call = Callable[[], object]


def milliseconds(alternatives: dict[str, Call]) -> dict[str, float]:
    """Median of each alternative; in turn, so that all see the same clock rates."""
    events: dict[str, list[float]] = {name: [] for name in alternatives}
    for number in range(WARM_UPS + ROUNDS):
        for name, call in alternatives.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start.record()
            call()
            end.record()
            end.synchronize()
            if number >= WARM_UPS:
                events[name].append(start.elapsed_time(end))
    return {name: statistics.median(values) for name, values in events.items()}


def captured(call: Call) -> Call:
    """The same as a CUDA graph."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def rates() -> dict[str, float]:
    """Bytes per second of a copy (read and written), operations per second of matrix products."""
    source, target = (torch.rand(GIGABYTE, device="cuda") for _ in range(2))
    square = torch.randn(8192, 8192, device="cuda")
    times = milliseconds({"copy": lambda: target.copy_(source), "fp32": lambda: square @ square})
    work = {"copy": 8.0 * GIGABYTE, "fp32": 2.0 * 8192**3}
    return {name: work[name] / (value / 1000) for name, value in times.items()}


def tables(device: str = "cuda") -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of the default student, as they are at the start."""
    identity_F = torch.eye(SIDE, device=device).flatten()
    vectors, forward, backward = (
        neutral + 0.01 * torch.randn(VOCABULARY, width, device=device)
        for neutral, width in ((0, SIZE), (identity_F, SIDE**2), (identity_F, SIDE**2))
    )
    return vectors, forward, backward


def bmm_loop(tables: tuple[torch.Tensor, ...], ids_BL: torch.Tensor) -> torch.Tensor:
    """The representation in plain torch, one position after the other."""
    vectors, forward, backward = tables
    parts = [vectors[ids_BL].sum(1)]
    for table, ordered_BL in ((forward, ids_BL), (backward, ids_BL.flip(1))):
        first, *others = table[ordered_BL].view(*ids_BL.shape, SIDE, SIDE).unbind(1)
        for factor in others:
            first = torch.bmm(first, factor)
        parts.append(first.flatten(1))
    return torch.cat(parts, dim=1)


def encode(batch_size: int, length: int) -> dict[str, Call]:
    """The protocol of the paper: random tokens, ids on the GPU."""
    from student.kernels import gpu

    given, ids_BL = tables(), torch.randint(VOCABULARY, (batch_size, length), device="cuda")
    starts_S = torch.arange(0, batch_size * length + 1, length, device="cuda")
    alternatives: dict[str, Call] = {
        "fused kernel, CUDA graph": captured(lambda: gpu.reduce(given, ids_BL.flatten(), starts_S)),
        "fused kernel": lambda: gpu.reduce(given, ids_BL.flatten(), starts_S),
        "loop of bmm": lambda: bmm_loop(given, ids_BL),
        "loop of bmm, CUDA graph": captured(lambda: bmm_loop(given, ids_BL)),
    }
    try:
        from transformers import BertConfig, BertModel
    except ImportError:
        console.note("BERT-base is left out: transformers is not installed")
        return alternatives
    bert = BertModel(BertConfig(), add_pooling_layer=False).to("cuda", torch.bfloat16).eval()
    inference = torch.inference_mode()(lambda: [bert(input_ids=part) for part in torch.split(ids_BL, 256)])
    return alternatives | {"BERT-base, bf16": inference}


def passes(batch_size: int, length: int) -> dict[str, Call]:
    """Forward and backward pass of the encoder, with a given gradient of the features: by rows, and by whole tables."""
    from student.kernels import gpu

    by_rows, whole = tables(), [table.requires_grad_() for table in tables()]
    ids_BL = torch.randint(VOCABULARY, (batch_size, length), device="cuda")
    starts_S = torch.arange(0, batch_size * length + 1, length, device="cuda")
    grad_BF = torch.randn(batch_size, SIZE + 2 * SIDE**2, device="cuda") / batch_size

    def rows() -> None:
        ids_T = ids_BL.flatten()
        gpu.reduce(by_rows, ids_T, starts_S)
        gpu.reduce_backward(by_rows, ids_T, starts_S, grad_BF)

    def tables_in_full() -> None:
        torch.autograd.grad(bmm_loop(tuple(whole), ids_BL), whole, grad_BF)

    return {"kernels, CUDA graph": captured(rows), "kernels": rows, "loop of bmm": tables_in_full}


def main() -> None:
    """Prints a table per comparison, and writes all of them to ``bench-results/gpu.json``."""
    if not torch.cuda.is_available():
        console.note("no CUDA here: nothing to measure")
        return
    torch.backends.cuda.matmul.allow_tf32 = False
    rate = rates()
    console.print_table(["rate", "per second"], [[name, f"{value:.3g}"] for name, value in rate.items()], title="GPU")
    results: dict[str, object] = {"gpu": torch.cuda.get_device_name(), "rates": rate}
    for batch_size, length in ((256, 64), (4096, 64)):
        tokens = batch_size * length
        # both passes read the rows, and the second writes their gradients
        for title, make, rows, products in (("encode", encode, 1, 1), ("forward and backward", passes, 3, 4)):
            name = f"{title}, {batch_size} x {length}"
            times = milliseconds(make(batch_size, length))
            seconds = max(rows * TOKEN_BYTES / rate["copy"], products * TOKEN_FLOPS / rate["fp32"])
            results[name] = _report(name, times, 1000 * tokens * seconds, batch_size)
    folder = Path("bench-results")
    folder.mkdir(exist_ok=True)
    (folder / "gpu.json").write_text(json.dumps(results, indent=2) + "\n")


def _report(title: str, times: dict[str, float], floor: float, items: int) -> list[dict[str, object]]:
    """A row per alternative: milliseconds, items per second, times slower than the first, fraction of the floor."""
    columns = ["variant", "median ms", "per second", "x first", "floor reached"]
    first = next(iter(times.values()))
    rows: list[list[object]] = [
        [name, value, round(1000 * items / value), value / first, floor / value] for name, value in times.items()
    ]
    console.print_table(columns, rows, title=f"{title}; floor {floor:.3f} ms")
    return [dict(zip(columns, row, strict=True)) for row in rows]


if __name__ == "__main__":
    main()
