"""``distill pretrain-student``: a student from a masked LM's stored predictions, or an encoder's stored vectors."""

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from accelerate import PartialState

from pipeline import console
from pipeline.errors import DataError
from pipeline.files import write_text
from pipeline.processes import processes
from pipeline.sets.reader import find_set
from pipeline.sets.record import TOKENIZER_FILE, read_set_record
from pipeline.sets.record_parts import RowsName
from pipeline.training import loop
from pipeline.training.run import Run
from pipeline.training.run_record import RunRecord
from student.config import PretrainConfig
from student.model.card import CARD_FILE
from student.pretrain.learner import masked_lesson
from student.pretrain.lesson import Lesson
from student.pretrain.vector_learner import vector_lesson

LIBRARIES = ("distill-offline", "torch", "accelerate", "pyarrow", "tokenizers")
LESSONS: dict[RowsName, Callable[[PretrainConfig, Path, PartialState], Lesson]] = {
    "tokens": masked_lesson,
    "sentences": vector_lesson,
}


def pretrain(config: PretrainConfig, command: str) -> RunRecord:
    """Pretrains the student that ``config`` describes, or goes on with it.

    The run folder holds ``run.json`` (settings, hashes, losses), the student and its tokenizer; `distill train-student
    --init-from` starts from it.

    Returns:
        The content of ``run.json``; empty on other ranks than the first.

    Raises:
        ConfigError: naming every flag that does not fit, the temperature included if the set's codec has not kept it.
        DataError: if there is no such set, or it has no row.
        FingerprintMismatchError: if the folder holds a run with other settings.
    """
    root = find_set(config.logits, config.store)
    state = processes()
    lesson = LESSONS.get(read_set_record(root).rows, masked_lesson)(config, root, state)
    if not lesson.stream.num_rows:
        raise DataError(f"{root}: its train split has no row")
    total_steps = lesson.stream.num_steps(config.num_train_epochs)
    if config.max_steps is not None and config.max_steps > total_steps:
        passes = f"{config.num_train_epochs} pass{'es' if config.num_train_epochs > 1 else ''} over {root}"
        console.warn(f"--max-steps {config.max_steps:,}: {passes} have only {total_steps:,}; see --num-train-epochs")
    total_steps = min(config.max_steps or total_steps, total_steps)
    folder = config.output_dir or Path("runs") / root.name
    settings = _settings(config, lesson) | {"steps": total_steps, "processes": state.num_processes}
    places = {"logit_set": str(root.resolve())}
    run = Run(folder, settings, command, places, rank=state.process_index, wait=state.wait_for_everyone)
    with state.main_process_first():
        finished = run.start()
    if finished is not None:
        return finished
    learner = lesson.learner(total_steps, folder)
    schedule = loop.Schedule(
        total_steps=total_steps,
        entry_steps=config.save_steps,
        unit="step",
        seed=config.seed,
        warmup_steps=int(config.warmup_ratio * total_steps),
        keep_best=False,
    )
    history = loop.train(run, learner, schedule, config.report_to)
    result = {"history": history, "versions": {name: version(name) for name in LIBRARIES}}
    if run.is_main:
        write_text(folder / TOKENIZER_FILE, lesson.stored.tokenizer_json())
        write_text(folder / CARD_FILE, lesson.card(learner.model, run.record() | {"result": result}))
    return run.finish(result)


def _settings(config: PretrainConfig, lesson: Lesson) -> dict[str, Any]:
    """What decides the weights; where the set and the run lie does not."""
    places = {"logits", "store", "output_dir", "init", "save_steps", "allow_unverified", "report_to", "json_output"}
    settings = config.model_dump(mode="json", exclude={*places, *lesson.unused, "max_steps"})
    return settings | {"logit_set_fingerprint": lesson.stored.record.fingerprint} | lesson.settings
