"""Base classes of dumps with a teacher, and of dumps with a classifier of texts or words."""

from abc import abstractmethod
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import torch

from pipeline import console
from pipeline.arrays import Ints
from pipeline.devices import processes
from pipeline.errors import DistillError
from pipeline.files import require_space
from pipeline.sets.file_columns import write_file_columns
from pipeline.sets.open import LogitSet
from pipeline.sets.record import FILE_NAME, SetRecord, read_set_record
from pipeline.sets.record_parts import LayersName, Shard, WindowsRecord
from pipeline.sources import Source
from pipeline.tasks.task import Task
from teacher.dump.additions import add_token_vectors, load_token_encoder
from teacher.dump.driver import Dump, Executor
from teacher.dump.estimate import (
    TOKENS_ALONE,
    Plan,
    classifier_seconds,
    estimated_tokens,
    memory_bytes,
    token_vectors_bytes,
)
from teacher.dump.extend import answers, extended, open_old, take_over
from teacher.dump.known_logits import Known, LogitsJob, read_shared_answers, remove_shared_answers, write_shared_answers
from teacher.dump.rows import Amount, amount
from teacher.models.batches import tokens_per_batch
from teacher.models.classifier import Teacher, load_teacher, outputs, warn_of_missing_head
from teacher.models.encoder import SentenceEncoder
from teacher.models.loaded import LoadedModel, inference_mode, keep_head_in_float32, load_config, require_positions
from teacher.settings import LabelLogits, RunFlags, SetPlace

PROBED_ROWS = 256


class TeacherDump(Dump):
    """A dump that runs a teacher."""

    def __init__(self, run: RunFlags, place: SetPlace, usual_name: str, command: str) -> None:
        self.run, self.place, self.command = run, place, command
        self.forward, self.rows_per_shard = run.forward, place.rows_per_shard
        self.root: Path = place.root(usual_name)

    @cached_property
    def device(self) -> torch.device:
        """The device of this process."""
        device: torch.device = processes().device
        return device

    @property
    def max_tokens(self) -> int:
        """The maximum number of padded tokens per batch."""
        return tokens_per_batch(self.device, self.forward.max_tokens_per_batch)

    def inference(self) -> AbstractContextManager[None]:
        """Returns a context in which the teacher can run."""
        return inference_mode(self.device, self.forward.precision)

    @abstractmethod
    def plan(self) -> Plan:
        """Returns the estimates for the dump, without loading the teacher."""

    @property
    @abstractmethod
    def model(self) -> LoadedModel:
        """The teacher, on the device."""

    def tokenizer_json(self) -> str:
        return self.model.reader.tokenizer_json()


class TaskDump(TeacherDump):
    """A classifier's logits of a task's rows."""

    set_type: ClassVar[type[LogitSet]]

    windows: WindowsRecord | None = None

    def __init__(
        self,
        run: RunFlags,
        place: SetPlace,
        usual_name: str,
        command: str,
        logits: LabelLogits,
        task: Task,
        source: Source,
    ) -> None:
        super().__init__(run, place, usual_name, command)
        self.logits, self.task, self.source = logits, task, source

    @property
    def is_stated(self) -> bool:
        """Whether the flags set the teacher's order of labels."""
        return bool(self.logits.label_names)

    @cached_property
    def old(self) -> LogitSet | None:
        """The set that is extended, if any."""
        name = self.logits.extend
        return None if name is None else open_old(name, self.place.store, self.root, self.set_type, self.layer_names)

    @property
    def layer_names(self) -> list[LayersName]:
        """The requested signals of layers."""
        return []

    @cached_property
    def model(self) -> Teacher:
        """The teacher, on the device."""
        name, revision = self.run.teacher.teacher_for(self.task)
        length, labels = self.forward.max_seq_length, self.logits.label_names
        teacher = load_teacher(self.task, name, revision, labels, length, self.windows)
        # Logits in bf16 have about three significant digits, too few for the soft targets of a student.
        keep_head_in_float32(teacher.model)
        teacher.model.to(self.device)
        return teacher

    @cached_property
    def token_encoder(self) -> SentenceEncoder | None:
        """The encoder whose token vectors are stored instead of the teacher's, if any."""
        return load_token_encoder(self.logits, self.task, self.model, self.forward.max_seq_length)

    @cached_property
    def amount(self) -> Amount:
        """The amount of the teacher's input, including all possible variants."""
        return amount(self.source.texts)

    @cached_property
    def expected_bytes(self) -> int:
        """Returns the approximate size of the shards."""
        return self.amount.expected_bytes

    @abstractmethod
    def planned_shards(self) -> tuple[Shard, ...]:
        """Returns the shards of a plan."""

    def estimated_tokens(self) -> tuple[int, Ints]:
        """Returns the approximate number of the teacher's tokens, and the lengths of some rows."""
        length = self.forward.max_seq_length
        return estimated_tokens(self.source.texts, self.amount, self.task.is_pair, length, self.windows)

    def plan(self) -> Plan:
        tokens, length_R = self.estimated_tokens()
        plan = Plan(self.amount.rows, len(self.planned_shards()), tokens, self.expected_bytes, None, None)
        try:
            name, revision = self.run.teacher.teacher_for(self.task)
            shape = load_config(name, revision)
        except DistillError as error:
            console.warn(f"no estimate of time and memory: {error}")
            return plan
        # A plan needs no weights, but a teacher that does not fit the task should be noticed here already.
        outputs(self.task, name, shape, self.logits.label_names)
        warn_of_missing_head(self.task, name, shape)
        require_positions(name, shape, self.forward.max_seq_length)
        plan = self.plan_of_signals(plan, name, shape, length_R)
        if self.logits.token_vectors:
            disk_bytes = plan.disk_bytes + token_vectors_bytes(shape)
            plan = replace(plan, tokens=plan.tokens + shape.vocab_size * TOKENS_ALONE, disk_bytes=disk_bytes)
        seconds = classifier_seconds(shape, length_R.tolist(), self.max_tokens, self.device, self.forward.precision)
        of_all = float(seconds * plan.tokens / length_R.sum())
        return replace(plan, seconds=of_all, memory_bytes=memory_bytes(shape, self.max_tokens))

    def plan_of_signals(self, plan: Plan, name: str, shape: Any, length_R: Ints) -> Plan:
        """Adds the set's other parts besides logits, from the teacher's transformers config and lengths of rows."""
        return plan

    def probe(self) -> None:
        # Files of an earlier try take no new space, so a dump that is resumed on a nearly full disk must not be
        # refused.
        stored = sum(file.stat().st_size for file in self.root.glob(f"{self.set_type.row_kind.name}/*.parquet"))
        stored += sum(shard.bytes or 0 for shard in self.old.record.shards) if self.old is not None else 0
        require_space(self.root.parent, self.expected_bytes - stored)
        _ = self.model, self.token_encoder
        self.check_teacher()
        # The probe costs a forward pass, and a resumed dump of the same teacher has passed it before.
        begun = read_set_record(self.root).teacher if (self.root / FILE_NAME).exists() else None
        teacher = (self.model.weights_sha256, self.model.labels)
        if begun is None or (begun.weights_sha256, begun.labels) != teacher:
            splits = self.source.splits
            split = next((name for name in self.task.dev_splits if name in splits), next(iter(splits)))
            rows = self.source.own(split)
            # Evenly spread rows, because many files are sorted by label and their first rows have only one.
            places = np.unique(np.linspace(0, rows.num_rows - 1, min(PROBED_ROWS, rows.num_rows)).astype(np.int64))
            with self.inference():
                self.check_labels(split, rows.take(pa.array(places)))

    def check_teacher(self) -> None:
        """Fails if the teacher does not support the other requested outputs."""

    @abstractmethod
    def check_labels(self, split: str, rows: pa.Table) -> None:
        """Fails if the teacher's vocabulary lacks the words of some rows, or if gold contradicts its label order."""

    @abstractmethod
    def planned(self) -> SetRecord:
        """Returns the record of a set that does not extend another one."""

    @abstractmethod
    def logits_job(self, record: SetRecord) -> LogitsJob[Any]:
        """Returns the job of the set, with no answer known."""

    @cached_property
    def record(self) -> SetRecord:
        planned = self.planned()
        if self.old is None:
            return planned
        return extended(planned, self.old, self.source, self.rows_per_shard, self.logits_job(planned).hashes)

    def start(self, record: SetRecord) -> None:
        write_file_columns(self.root, self.source.kept)
        if self.old is not None:
            take_over(self.root, record, self.old)

    def job(self, record: SetRecord) -> LogitsJob[Any]:
        job: LogitsJob[Any] = self.logits_job(record)
        with self.inference():
            return replace(job, known=self._known(job))

    def _known(self, job: LogitsJob[Any]) -> Known:
        """Returns the logits that are known before any shard: those of an old set, and of texts in several shards."""
        store, is_shared = self.place.store, self.run.jobs.job.count > 1 and self.old is None
        known = read_shared_answers(store, job.record) if is_shared else None
        if known is not None:
            return known
        hashes = job.hashes_by_shard(self.source)
        if self.old is not None:
            job = replace(job, known=answers(self.old, hashes))
        known = job.with_repeated(self.source, hashes)
        if is_shared:
            write_shared_answers(store, job.record, known)
        return known

    def finish(self, record: SetRecord | None, executor: Executor) -> SetRecord | None:
        # Kept until the set is verified, because a job that resumes a lost shard has to reuse the same logits.
        remove_shared_answers(self.place.store, record)
        if record is None or record.state != "verified" or not self.logits.token_vectors:
            return record
        with self.inference():
            return add_token_vectors(
                self.root, record, self.logits, self.model, self.token_encoder, self.old, self.max_tokens
            )
