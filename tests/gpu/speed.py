"""How fast a GPU is at what the project does: reported, never a reason to fail, but for memory beyond the plan's.

The teacher has BERT-base's shape and random weights. Rates are of a warm process, the median of a few rounds.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from transformers import AutoConfig, BertConfig

from distill.apps.timing import interleaved
from pipeline.arrays import Ragged
from student.predict.predictor import Predictor
from teacher.dump.estimate import memory_bytes
from teacher.models.batches import tokens_per_batch
from tests.benchmarks import dump, mlm_dump, training_step
from tests.benchmarks.random_student import made_up_tokenizer, write_random_student
from tests.benchmarks.readers import new_transformer, student_reader, transformer_reader, wait_for
from tests.gpu.checks import Check, Dumps, Measured

ROUNDS = 2
PRODUCT, PRODUCTS = 8192, 10  # the width of the matrix product that stands for what the GPU can reach, and how many


class Speeds:
    """Measurements on a device.

    Args:
        folder: an empty folder.
        device: ``cuda`` or ``cpu``.
        is_short: whether a small teacher and few rows are enough, as in the test suite.
    """

    def __init__(self, folder: Path, device: str, is_short: bool) -> None:
        self.folder, self.device = folder, torch.device(device)
        folder.mkdir(exist_ok=True)
        self.rows, self.masked_rows, self.width = (64, 8, 256) if is_short else (65_536, 4096, PRODUCT)
        small = BertConfig(hidden_size=48, num_hidden_layers=2, intermediate_size=96)
        self.shape = small if is_short else BertConfig()
        self.measured: dict[str, dict[str, float]] = {}

    def seconds(self, name: str, make: Callable[[], dict[str, Callable[[], object]]]) -> dict[str, float]:
        """Seconds by alternative, measured once."""
        if name not in self.measured:
            self.measured[name] = {}  # of a measurement that fails, which is not tried again
            self.measured[name] = interleaved({key: partial(self.waited, run) for key, run in make().items()}, ROUNDS)
        if not self.measured[name]:
            raise RuntimeError(f"the measurement of {name} failed above")
        return self.measured[name]

    def waited(self, run: Callable[[], object]) -> None:
        """Runs something to its end, also on a GPU."""
        run()
        wait_for(self.device)

    def dumps(self) -> dict[str, float]:
        """Seconds of a dump, of its forward passes, and of those over rows padded as they come."""

        def make() -> dict[str, Callable[[], object]]:
            return dump.alternatives(self.folder, self.rows, "bf16", self.shape, self.device)

        return self.seconds("dump", make)

    def rate(self, name: str) -> Measured:
        """Rows per second of a way to run the teacher over all rows."""
        return Measured(self.rows / self.dumps()[name], None, "rows/s")

    def share(self, name: str) -> Measured:
        """The arithmetic of all real tokens per second, as a share of what a large product reaches on this device."""
        return Measured(100 * self.operations() / self.dumps()[name] / self.product_rate(), None, "% of a product's")

    def operations(self) -> float:
        """Multiplications and additions of the encoder for all rows, without padding."""
        lengths_N = np.array([min(len(text.split()) + 2, dump.LENGTH) for text in dump.sentences(self.rows)])
        hidden, inner = self.shape.hidden_size, self.shape.intermediate_size
        per_token = 2 * (4 * hidden * hidden + 2 * hidden * inner)
        # Each of two products of attention, queries by keys and weights by values, takes 2 LLH operations per layer.
        return float(self.shape.num_hidden_layers * (per_token * lengths_N + 4 * hidden * lengths_N**2).sum())

    def product_rate(self) -> float:
        """Operations per second of a large matrix product in bf16."""
        left, right = (torch.randn(self.width, self.width, device=self.device).bfloat16() for _ in range(2))

        def make() -> dict[str, Callable[[], object]]:
            return {"product": lambda: [left @ right for _ in range(PRODUCTS)]}

        return PRODUCTS * 2 * self.width**3 / self.seconds("product", make)["product"]

    def masked_words(self, codec: str) -> Measured:
        """Masked positions per second: forward, decoder and codec, to an Arrow table in memory."""
        seconds = self.seconds("masked words", lambda: mlm_dump.alternatives(self.device, self.shape, self.masked_rows))
        name = next(key for key in seconds if codec in key)
        return Measured(mlm_dump.num_positions(self.masked_rows) / seconds[name], None, "positions/s")

    def disk(self) -> Measured:
        """Bytes per second of dense distributions from memory to a Parquet file."""
        table = mlm_dump.dense_table(self.device, self.shape, self.masked_rows)
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            path = Path(folder, "dense.parquet")
            start = time.perf_counter()
            pq.write_table(table, path, compression="zstd", use_dictionary=False)
            return Measured(path.stat().st_size / 1e6 / (time.perf_counter() - start), None, "MB/s")

    def encoding(self, model: str) -> Measured:
        """Sentences per second, from ids to vectors, both on the device."""

        def make() -> dict[str, Callable[[], object]]:
            lengths_N = training_step.lengths(self.rows)
            flat = np.random.default_rng(0).integers(1, 30_000, lengths_N.sum())
            ids = Ragged(flat, np.concatenate([[0], np.cumsum(lengths_N)]))
            tokenizer = made_up_tokenizer(BertConfig().vocab_size)
            write_random_student(self.folder / "student", tokenizer)
            bert = new_transformer(self.shape, "bf16", self.device)
            readers = {
                "student": student_reader(Predictor(self.folder / "student"), self.device),
                "bert": transformer_reader(bert, tokenizer, 128),
            }
            with torch.inference_mode():
                runs = {name: reader.encoding(ids) for name, reader in readers.items() if reader.encoding}
            return {name: torch.inference_mode()(run) for name, run in runs.items()}

        return Measured(self.rows / self.seconds("encoding", make)[model], None, "sentences/s")

    def training(self, batch_size: int, name: str) -> Measured:
        """Rows per second of a training step of the default student with a linear head."""
        seconds = self.seconds(f"training {batch_size}", lambda: training_step.alternatives(batch_size, self.device))
        return Measured(batch_size / seconds[name], None, "rows/s")

    def memory(self) -> Measured:
        """The most memory that a dump reserved, as a share of what ``--plan`` says."""
        self.dumps()
        config = AutoConfig.from_pretrained(self.folder / "teacher")
        planned = memory_bytes(config, tokens_per_batch(self.device))
        return Measured(torch.cuda.max_memory_reserved() / planned, 1.0, "of --plan's")


def speed_checks(folder: Path, device: str, is_short: bool) -> Iterator[tuple[str, Check]]:
    """Yields the measurements by name. See `tests.gpu.checks.checks` for the arguments."""
    speeds = Speeds(folder / "speeds", device, is_short)
    if not is_short:
        yield "pairs: throughput with start-up", partial(Dumps(folder, device, ()).rate, "pairs")
    for name in dump.NAMES:
        yield f"BERT-base, bf16: {name}", partial(speeds.rate, name)
    if device == "cuda":
        yield "BERT-base, bf16: memory of a dump", speeds.memory
    yield "a large product in bf16", lambda: Measured(speeds.product_rate() / 1e12, None, "TFLOP/s")
    for name in dump.NAMES[:2]:
        yield f"BERT-base, bf16: arithmetic of {name}", partial(speeds.share, name)
    for codec in ("sampled", "topk", "hidden", "dense"):
        yield f"masked words, bf16, {codec}", partial(speeds.masked_words, codec)
    yield "dense distributions to a file", speeds.disk
    for model in ("student", "bert"):
        yield f"{model}: sentences to vectors", partial(speeds.encoding, model)
    for batch_size in (32, 256):
        for name in ("torch loop over unbound matrices, fused Adam", "distill"):
            yield f"training step of {batch_size}, {name}", partial(speeds.training, batch_size, name)
