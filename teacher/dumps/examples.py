"""Stage one on a task's examples: a teacher's logits of every text or pair, and the outputs of its layers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from pipeline import console
from pipeline.arrays import Floats, Ints
from pipeline.devices import processes
from pipeline.errors import ConfigError, TeacherError
from pipeline.files import require_space
from pipeline.sets.kinds.examples import ExampleSet, shard_table, text_hashes
from pipeline.sets.record import FILE_NAME, Scores, SetRecord, read_set_record, staged
from pipeline.sets.record_parts import MAX_SEQ_LENGTH, LayersName, Shard, UnlabelledRecord
from pipeline.sets.signals import LayerSignal, Logits, Signals
from pipeline.sets.signals.side_files import INIT_FILE
from pipeline.sources import load_source, sentences
from pipeline.tasks.metrics import score_logits
from pipeline.tasks.target import gold_arrays
from pipeline.tasks.task import Task
from pipeline.text.tokenizer import Tokenized, require_known
from teacher.augment.augment import Augmentation, read_source, variants_for
from teacher.dump.additions import add_init_layers, check_same_init, init_bytes
from teacher.dump.driver import Executor
from teacher.dump.estimate import Plan, layer_bytes, sampled_lengths
from teacher.dump.kept_layers import add_layers, planned_layers, wanted_layers
from teacher.dump.known_logits import Inputs, Known, LogitsJob
from teacher.dump.rows import LIBRARIES, NO_VARIANTS, Amount, Rows, all_shards, amount, longest_row, of_task
from teacher.dump.shard_jobs import Advance
from teacher.dump.teacher_dump import TaskDump
from teacher.models.batches import naming_rows
from teacher.models.classifier import Teacher, teacher_logits
from teacher.models.label_order import check_label_order
from teacher.settings import DumpTask, RunFlags, SetPlace, TextLogits
from teacher.unlabelled import add_unlabelled, count_truncated


class ExamplesDump(TaskDump):
    """Logits of a task's texts, with variants and unlabelled rows, layers and weights of layers."""

    set_type: ClassVar = ExampleSet

    logits: TextLogits

    def __init__(
        self, task: Task, rows: DumpTask, logits: TextLogits, run: RunFlags, place: SetPlace, command: str
    ) -> None:
        name = logits.set_name(task.name)
        self.manifest, self.wanted = rows.manifest, wanted_variants(logits, task, place, name)
        if self.wanted is None:
            source = load_source(task, rows.data, rows.split_names)
        else:
            source = read_source(self.wanted, rows.data, rows.split_names)
        self.unlabelled: UnlabelledRecord | None = None
        if logits.unlabelled is not None:
            source, self.unlabelled = add_unlabelled(task, source, logits.unlabelled)
        super().__init__(run, place, name, command, logits, task, source)
        self.windows = logits.windows(run.forward.max_seq_length)

    @cached_property
    def most_variants(self) -> dict[str, int]:
        """The maximum number of variants per row, by split."""
        return {self.wanted.split: len(self.wanted.sides)} if self.wanted else {}

    @property
    def variants_in_all(self) -> dict[str, int]:
        """The maximum number of variants of all rows of a split."""
        return {split: count * self.source.own(split).num_rows for split, count in self.most_variants.items()}

    @cached_property
    def amount(self) -> Amount:
        return amount(self.source, self.most_variants)

    def planned_shards(self) -> tuple[Shard, ...]:
        return all_shards(self.source, self.rows_per_shard, self.variants_in_all)

    def plan_of_signals(self, plan: Plan, name: str, shape: Any, length_R: Ints) -> Plan:
        signals = wanted_layers(self.logits.kept_layers, self.logits.layers_of, name, shape)
        layers = layer_bytes(signals, self.source, length_R, sum(self.variants_in_all.values()))
        weights = init_bytes(self.logits.init_layers(int(shape.num_hidden_layers)), name, shape)
        disk_bytes = plan.disk_bytes + sum(size for _, size in layers.values()) + weights
        # Layers are written in a second pass over the rows.
        tokens = plan.tokens * (2 if layers else 1)
        return replace(plan, tokens=tokens, disk_bytes=disk_bytes, layer_bytes=layers, init_bytes=weights)

    @cached_property
    def layers(self) -> tuple[LayerSignal, ...]:
        """The requested signals of layers, and those that the set has already."""
        name, shape = self.model.name, self.model.model.config
        return planned_layers(wanted_layers(self.logits.kept_layers, self.logits.layers_of, name, shape), self.root)

    @property
    def layer_names(self) -> list[LayersName]:
        return [one.name for one in self.logits.kept_layers if one.name != "init"]

    @cached_property
    def init(self) -> tuple[int, ...]:
        """The layers whose weights are added to the set."""
        return self.logits.init_layers(int(self.model.model.config.num_hidden_layers))

    def check_teacher(self) -> None:
        """Also checks that the disk has space for the layer outputs, without those of variants."""
        layers = self.layers
        weights = init_bytes(self.init, self.model.name, self.model.model.config)
        check_same_init(self.root, self.init)
        length_R = sampled_lengths(self.source, self.model.tokens.num_special, self.forward.max_seq_length)
        needed = sum(size for _, size in layer_bytes(layers, self.source, length_R, 0).values())
        stored = sum(file.stat().st_size for layer in layers for file in (self.root / layer.name).glob("*.parquet"))
        require_space(self.root.parent, needed - stored + (0 if (self.root / INIT_FILE).exists() else weights))

    def check_labels(self, split: str, rows: pa.Table) -> None:
        teacher = self.model
        longest = MAX_SEQ_LENGTH if self.windows else self.forward.max_seq_length
        inputs = teacher.reader.tokenize(*sentences(rows), longest)
        require_known(teacher.tokenizer, inputs, f"teacher {teacher.name}")
        with naming_rows(inputs, rows, split):
            logits_NC = teacher_logits(teacher, inputs, self.max_tokens)
        gold = gold_arrays(teacher.target, rows)
        check_label_order(teacher.target, teacher.name, teacher.labels, logits_NC, *gold, self.is_stated)

    @cached_property
    def rows(self) -> Rows:
        """Returns the rows with their variants, which are made if they are missing."""
        if self.wanted is None:
            return Rows(self.source, None)
        teacher = self.model
        for token in self.wanted.method.special_tokens:
            if teacher.tokenizer.token_to_id(token) is None:
                own = teacher.tokens.mask_id
                mask = "" if own is None else teacher.tokenizer.id_to_token(own)
                advice = f"Give --mask-token {mask}" if mask else "Use --augment tinybert"
                raise TeacherError(f"teacher {teacher.name}: its tokenizer has no {token}. {advice}, or --augment none")
        own, is_job = self.source.own(self.wanted.split), self.run.jobs.job.count > 1
        return Rows(self.source, variants_for(self.wanted, own, processes(), self.command, self.manifest, is_job))

    def planned(self) -> SetRecord:
        rows, unlabelled, windows = self.rows, self.unlabelled, self.windows
        settings, parts = of_task("logits", self.root.name, self.forward, self.task, self.source, self.model)
        if windows is not None:
            settings["doc_stride"] = windows.stride
        if unlabelled is not None:
            reader, length = self.model.reader, self.forward.max_seq_length
            unlabelled = count_truncated(unlabelled, self.source, reader, length, windows is not None)
            settings |= {f"source.unlabelled.{name}": value for name, value in unlabelled.settings.items()}
        made = rows.variants.record if rows.variants else None
        if made:
            settings |= {f"augment.{name}": value for name, value in made.settings.items()}
            # Settings alone do not fix the variants across library versions, so the hash of their texts is a setting,
            # too.
            settings["augment.rows"] = made.rows_sha256
        shards = all_shards(self.source, self.rows_per_shard, {made.split: made.rows} if made else NO_VARIANTS)
        longest = self.forward.max_seq_length
        if windows is not None:
            longest = max(longest, longest_row(rows, shards, self.model.reader))
        return staged(
            settings,
            self.command,
            LIBRARIES,
            kind="examples",
            signals=Signals(logits=Logits(target=self.model.target)),
            max_seq_length=longest,
            windows=windows,
            shards=shards,
            augmentation=made,
            unlabelled=unlabelled,
            **parts,
        )

    def logits_job(self, record: SetRecord) -> "ExamplesJob":
        known = Known.empty(self.model.target.num_logits)
        return ExamplesJob(record, self.model, self.forward.precision, self.max_tokens, known)

    def scores(self, record: SetRecord) -> Scores:
        """Checks the teacher's label order on every gold label, too."""
        scores, teacher = {}, record.teacher
        for split in record.splits:
            logits_NC, label_N, score_N = ExampleSet(self.root, record).gold(split)
            # The probe saw at most 256 rows. All gold labels together can expose an order that those did not.
            check_label_order(record.target, teacher.name, teacher.labels, logits_NC, label_N, score_N, self.is_stated)
            scores[split] = score_logits(self.task.metrics, record.target, logits_NC, label_N, score_N)
        return scores

    def finish(self, record: SetRecord | None, executor: Executor) -> SetRecord | None:
        record = super().finish(record, executor)
        is_alone = self.run.jobs.job.count == 1
        record = add_init_layers(self.root, record, self.init, self.model, self.old, is_alone)
        if not self.layers:
            return record
        precision, tokens = self.forward.precision, self.max_tokens
        return add_layers(self.root, self.layers, self.model, self.rows, precision, tokens, self.old, executor)


def wanted_variants(logits: TextLogits, task: Task, place: SetPlace, usual_name: str) -> Augmentation | None:
    """Returns the variants set by the flags or the task's manifest. None if there are none.

    Raises:
        ConfigError: if the set was started without those of the manifest.
    """
    method = logits.method
    if method is None:
        return None
    name = getattr(logits.variants, "variants", None)
    if logits.adds_by_default and name is None:  # so that other variants in the store are not mistaken for them
        method = method.model_copy(update={"num_variants": method.variants_of(task)})
    wanted, root = Augmentation(method, task, place.store, name), place.root(usual_name)
    if not logits.adds_by_default:
        return wanted
    # A set that was started without variants has another fingerprint, and the general message would not name the cause.
    if (root / FILE_NAME).exists() and read_set_record(root).augmentation is None:
        raise ConfigError(
            f"{root} was dumped without variants, which the manifest now requires. Use --augment none to continue it, "
            "or --name to write another set."
        )
    count = len(wanted.sides)
    console.note(
        f"{task.name}: up to {count} variants of each training row by {method.name} are added, as set in "
        f"the manifest, because students gain from them. The teacher reads up to {count + 1} times as many training "
        "rows. Use --augment none to turn that off"
    )
    return wanted


@dataclass(frozen=True)
class ExamplesJob(LogitsJob[Inputs]):
    """Writes examples."""

    model: Teacher

    def prepare(self, rows: pa.Table) -> Inputs:
        tokenized = self.model.reader.tokenize(*sentences(rows), self.record.max_seq_length)
        return Inputs(rows, self.hashes(rows), tokenized)

    def hashes(self, rows: pa.Table) -> list[bytes]:
        return text_hashes(rows, self.record.tokenizer.sha256)

    def predict(self, inputs: Sequence[Tokenized], advance: Advance) -> Floats:
        return teacher_logits(self.model, inputs, self.max_tokens, advance)

    def lengths(self, inputs: Sequence[Tokenized]) -> Ints:
        return np.ones(len(inputs), dtype=np.int64)

    def table(self, shard: Shard, inputs: Inputs, logits_TC: Floats) -> pa.Table:
        return shard_table(self.record, shard, inputs.rows, inputs.hashes, inputs.tokenized, logits_TC)
