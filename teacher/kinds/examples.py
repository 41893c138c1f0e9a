"""Stage one on a task's examples: a teacher's logits of every text or pair, and the outputs of its layers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from pipeline.arrays import Floats, Ints
from pipeline.devices import processes
from pipeline.errors import TeacherError
from pipeline.files import require_space
from pipeline.sets.kinds.examples import shard_table, text_hashes
from pipeline.sets.reader import ExampleSet
from pipeline.sets.record import Scores, SetRecord, staged
from pipeline.sets.record_parts import MAX_SEQ_LENGTH, Shard, UnlabelledRecord
from pipeline.sets.signals import LayerSignal, Logits, Signals
from pipeline.sets.signals.init import INIT_FILE
from pipeline.sources import load_source, sentences
from pipeline.tasks.metrics import score_logits
from pipeline.tasks.target import gold_arrays
from pipeline.tasks.task import load_task
from pipeline.text.tokenizer import Tokenized, require_known
from teacher.augment.augment import read_source, sides_for, variants_for
from teacher.augment.augment_settings import AugmentConfig
from teacher.augment.methods import METHODS
from teacher.config import DumpTask
from teacher.dump.additions import add_init_layers, check_same_init, init_bytes
from teacher.dump.answers import Inputs, Known, LogitsJob
from teacher.dump.driver import Executor
from teacher.dump.layers import add_layers, layer_bytes, planned_layers, sampled_lengths, wanted_layers
from teacher.dump.plan import Plan
from teacher.dump.records import LIBRARIES, of_task
from teacher.dump.rows import NO_VARIANTS, Amount, Rows, all_shards, amount, longest_row
from teacher.dump.shards import Advance
from teacher.dump.teacher_dump import TaskDump
from teacher.models.batches import naming_rows
from teacher.models.classifier import Teacher
from teacher.models.label_order import check_label_order
from teacher.models.logits import teacher_logits
from teacher.unlabelled.rows import add_unlabelled, count_truncated


class ExamplesDump(TaskDump):
    """Logits of a task's texts, with variants and unlabelled rows, layers and weights of layers.

    Attributes:
        unlabelled: what is recorded of the rows that were added without gold.
        wanted: which variants are added, if any.
    """

    set_type: ClassVar = ExampleSet

    def __init__(self, config: DumpTask, command: str) -> None:
        config.check()
        task = load_task(config.task, config.manifest)
        self.unlabelled: UnlabelledRecord | None = None
        self.wanted: AugmentConfig | None = config.augmentation()
        if self.wanted is None:
            source = load_source(task, config.data, config.split_names)
        else:
            source = read_source(self.wanted, task, config.split_names)
        if config.unlabelled is not None:
            place, pairs = config.unlabelled, config.unlabelled_pairs
            source, self.unlabelled = add_unlabelled(task, source, place, config.max_unlabelled, config.seed, pairs)
        super().__init__(config, command, task, source)

    @cached_property
    def most_variants(self) -> dict[str, int]:
        """How many variants of a row there may be, by split."""
        return {self.wanted.split_of(self.task): len(sides_for(self.wanted, self.task))} if self.wanted else {}

    @property
    def variants_in_all(self) -> dict[str, int]:
        """The same of all rows of a split."""
        return {split: count * self.source.own(split).num_rows for split, count in self.most_variants.items()}

    @cached_property
    def amount(self) -> Amount:
        """See `TaskDump`."""
        return amount(self.source, self.most_variants)

    def planned_shards(self) -> tuple[Shard, ...]:
        """See `TaskDump`."""
        return all_shards(self.source, self.config.rows_per_shard, self.variants_in_all)

    def plan_of_signals(self, plan: Plan, name: str, shape: Any, length_R: Ints) -> Plan:
        """See `TaskDump`."""
        signals = wanted_layers(self.config, name, shape)
        layers = layer_bytes(signals, self.source, length_R, sum(self.variants_in_all.values()))
        weights = init_bytes(self.config, name, shape)
        disk_bytes = plan.disk_bytes + sum(size for _, size in layers.values()) + weights
        # Layers are written in a second pass over the rows.
        tokens = plan.tokens * (2 if layers else 1)
        return replace(plan, tokens=tokens, disk_bytes=disk_bytes, layer_bytes=layers, init_bytes=weights)

    @cached_property
    def layers(self) -> tuple[LayerSignal, ...]:
        """The signals of layers that are wanted, and those that the set has already."""
        return planned_layers(self.config, self.model.name, self.model.model.config, self.root)

    def check_teacher(self) -> None:
        """See `TaskDump`; the disk must have room for what is stored of layers, variants not counted."""
        config, shape = self.config, self.model.model.config
        layers = self.layers
        weights = init_bytes(config, self.model.name, shape)
        check_same_init(self.root, config.init_numbers(shape.num_hidden_layers))
        length_R = sampled_lengths(self.source, self.model.tokens.num_special, config.max_seq_length)
        needed = sum(size for _, size in layer_bytes(layers, self.source, length_R, 0).values())
        stored = sum(file.stat().st_size for layer in layers for file in (self.root / layer.name).glob("*.parquet"))
        require_space(self.root.parent, needed - stored + (0 if (self.root / INIT_FILE).exists() else weights))

    def check_labels(self, split: str, rows: pa.Table) -> None:
        """See `TaskDump`."""
        teacher = self.model
        longest = MAX_SEQ_LENGTH if self.config.windows else self.config.max_seq_length
        inputs = teacher.reader.tokenize(*sentences(rows), longest)
        require_known(teacher.tokenizer, inputs, f"teacher {teacher.name}")
        with naming_rows(inputs, rows, split):
            logits_NC = teacher_logits(teacher, inputs, self.max_tokens)
        gold = gold_arrays(teacher.target, rows)
        check_label_order(teacher.target, teacher.name, teacher.labels, logits_NC, *gold, self.is_stated)

    @cached_property
    def rows(self) -> Rows:  # type: ignore[override]
        """The rows with their variants, which are made if they are missing."""
        if self.wanted is None:
            return Rows(self.source, None)
        _check_special_tokens(self.wanted, self.model)
        own = self.source.own(self.wanted.split_of(self.task))
        is_job = self.config.job().count > 1
        return Rows(self.source, variants_for(self.wanted, self.task, own, processes(), self.command, is_job))

    def planned(self) -> SetRecord:
        """See `TaskDump`."""
        config, rows, unlabelled = self.config, self.rows, self.unlabelled
        settings, parts = of_task("logits", config, self.task, self.source, self.model)
        if config.doc_stride is not None:
            settings["doc_stride"] = config.doc_stride
        if unlabelled is not None:
            is_windowed = config.windows is not None
            reader, length = self.model.reader, config.max_seq_length
            unlabelled = count_truncated(unlabelled, self.source, reader, length, is_windowed)
            settings |= {f"source.unlabelled.{name}": value for name, value in unlabelled.settings.items()}
        made = rows.variants.record if rows.variants else None
        if made:
            settings |= {f"augment.{name}": value for name, value in made.settings.items()}
            # Settings alone do not fix the variants across library versions, so the hash of their texts is a setting,
            # too.
            settings["augment.rows"] = made.rows_sha256
        shards = all_shards(self.source, config.rows_per_shard, {made.split: made.rows} if made else NO_VARIANTS)
        longest = config.max_seq_length
        if config.windows is not None:
            longest = max(longest, longest_row(rows, shards, self.model.reader))
        return staged(
            settings,
            self.command,
            LIBRARIES,
            kind="examples",
            signals=Signals(logits=Logits(target=self.model.target)),
            max_seq_length=longest,
            windows=config.windows,
            shards=shards,
            augmentation=made,
            unlabelled=unlabelled,
            **parts,
        )

    def logits_job(self, record: SetRecord) -> "ExamplesJob":
        """See `TaskDump`."""
        known = Known.empty(self.model.target.num_logits)
        return ExamplesJob(record, self.model, self.config.precision, self.max_tokens, known)

    def scores(self, record: SetRecord) -> Scores:
        """See `Dump`; the teacher's label order is checked on every gold label."""
        scores, teacher = {}, record.teacher
        for split in record.splits:
            logits_NC, label_N, score_N = ExampleSet(self.root, record).gold(split)
            # The probe saw at most 256 rows. All gold labels together can expose an order that those did not.
            check_label_order(record.target, teacher.name, teacher.labels, logits_NC, label_N, score_N, self.is_stated)
            scores[split] = score_logits(self.task.metrics, record.target, logits_NC, label_N, score_N)
        return scores

    def finish(self, record: SetRecord | None, executor: Executor) -> SetRecord | None:
        """See `Dump`."""
        record = super().finish(record, executor)
        record = add_init_layers(self.root, record, self.config, self.model, self.old)
        if not self.layers:
            return record
        precision, tokens = self.config.precision, self.max_tokens
        return add_layers(self.root, self.layers, self.model, self.rows, precision, tokens, self.old, executor)


def _check_special_tokens(wanted: AugmentConfig, teacher: Teacher) -> None:
    for token in METHODS[wanted.method].special_tokens(wanted):
        if teacher.tokenizer.token_to_id(token) is None:
            own = teacher.tokens.mask_id
            advice = (
                "use --augment tinybert" if own is None else f"give --mask-token {teacher.tokenizer.id_to_token(own)}"
            )
            raise TeacherError(f"teacher {teacher.name}: its tokenizer has no {token}; {advice}, or --augment none")


@dataclass(frozen=True)
class ExamplesJob(LogitsJob[Inputs]):
    """Writes examples."""

    model: Teacher

    def prepare(self, rows: pa.Table) -> Inputs:
        """See `LogitsJob`."""
        tokenized = self.model.reader.tokenize(*sentences(rows), self.record.max_seq_length)
        return Inputs(rows, self.hashes(rows), tokenized)

    def hashes(self, rows: pa.Table) -> list[bytes]:
        """See `LogitsJob`."""
        return text_hashes(rows, self.record.tokenizer.sha256)

    def predict(self, inputs: Sequence[Tokenized], advance: Advance) -> Floats:
        """See `LogitsJob`."""
        return teacher_logits(self.model, inputs, self.max_tokens, advance)

    def lengths(self, inputs: Sequence[Tokenized]) -> Ints:
        """See `LogitsJob`."""
        return np.ones(len(inputs), dtype=np.int64)

    def table(self, shard: Shard, inputs: Inputs, logits_TC: Floats) -> pa.Table:
        """See `LogitsJob`."""
        return shard_table(self.record, shard, inputs.rows, inputs.hashes, inputs.tokenized, logits_TC)
