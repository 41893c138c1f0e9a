"""``distill pretrain-student``: a student from a masked LM's stored predictions, or an encoder's stored vectors."""

from importlib.metadata import version
from pathlib import Path

from pipeline import console
from pipeline.devices import processes
from pipeline.errors import DataError
from pipeline.file_names import TOKENIZER_FILE
from pipeline.files import write_text
from pipeline.record_file import Record
from pipeline.sets.open import find_set
from pipeline.training.loop import fit
from pipeline.training.run import Run
from pipeline.training.schedule import Schedule
from student.lessons import pretraining_of_set
from student.model.card import CARD_FILE
from student.pretrain_settings import PretrainSettings
from student.vocabulary import note_vocabulary

LIBRARIES = ("distill-offline", "torch", "pyarrow", "tokenizers")


def pretrain(settings: PretrainSettings, command: str) -> Record:
    """Pretrains the student that settings describe, or resumes it.

    The run folder contains ``run.json`` (settings, hashes, losses), the student and its tokenizer. `distill
    train-student --init` starts from it.

    Returns: The content of ``run.json``. Empty on other ranks than the first.

    Raises:
        ConfigError: naming every flag that does not fit, including the temperature if the set's codec does not support
            it.
        DataError: if there is no such set, or it has no rows.
        FingerprintMismatchError: if the folder holds a run with other settings.
    """
    root = find_set(settings.set, settings.store)
    state = processes()
    task = pretraining_of_set(root).task(settings, root, state)
    if not task.batches.num_rows:
        raise DataError(f"{root}: its train split has no rows")
    total_steps = task.batches.num_steps(settings.num_train_epochs)
    epochs, most = settings.num_train_epochs, settings.max_steps
    if most is not None and most > total_steps:
        passes = f"{epochs} pass{'es' if epochs > 1 else ''} over {root}"
        console.warn(f"--max-steps {most:,}: {passes} have only {total_steps:,}. Raise --num-train-epochs")
    total_steps = min(most or total_steps, total_steps)
    folder = settings.output_dir or Path("runs") / root.name
    decided = task.decided() | {"steps": total_steps, "processes": state.num_processes}
    places = {"logit_set": str(root.resolve())}
    run = Run(folder, decided, command, places, rank=state.process_index, wait=state.wait_for_everyone)
    with state.main_process_first():
        finished = run.start()
    if finished is not None:
        return finished
    note_vocabulary(task.opened)
    task.start()
    schedule = Schedule(
        total_steps=total_steps,
        entry_steps=settings.save_steps,
        unit="step",
        seed=settings.seed,
        warmup_steps=settings.warmup_steps,
        save_best=False,
    )
    history = fit(run, task, task.optimizer, schedule, settings.report_to)
    result = {"history": history, "versions": {name: version(name) for name in LIBRARIES}}
    if run.is_main:
        write_text(folder / TOKENIZER_FILE, task.opened.tokenizer_json())
        write_text(folder / CARD_FILE, task.card(run.record() | {"result": result}))
    return run.finish(result)
