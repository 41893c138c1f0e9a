"""Fine-tuning a BERT into a teacher: Accelerate loop, dynamic padding, best checkpoint by the dev metric, resumable."""

from pipeline.files import make_folder
from pipeline.tasks.target import make_target
from pipeline.tasks.task import load_task
from pipeline.training import loop
from pipeline.training.run_record import RunRecord, best_of
from pipeline.training.steps import seed_step
from teacher.config import FinetuneTask
from teacher.finetune.common import classifier_settings, new_accelerator, save_teacher, sentence_encoder, start_run
from teacher.finetune.learner import ClassifierLearner, Lesson
from teacher.finetune.rows import rows_of, splits_of, training_source
from teacher.finetune.tasks import finetune_tasks
from teacher.finetune.words import WordLesson
from teacher.models.classifier import new_classifier


def finetune(config: FinetuneTask, command: str) -> RunRecord:
    """Fine-tunes a teacher into ``config.output_dir``, or the teachers of its ``tasks``, or goes on with it.

    Returns:
        The record that is also written to ``finetune.json``: settings, metrics per epoch, and the best epoch, whose
        weights are kept.

    Raises:
        DataError: if there is no train split.
        FingerprintMismatchError: if the folder holds a run with other settings.
    """
    config.check()
    if config.tasks is not None:
        return finetune_tasks(config, command)
    task = load_task(config.task, config.manifest)
    source = training_source(task, config)
    assert config.objective != "mlm", "check() has refused it"
    target = make_target(task, config.objective)
    accelerator = new_accelerator()
    make_folder(config.output_dir)
    seed_step(config.seed, 0)
    teacher = new_classifier(task, target, config.model_name_or_path, config.model_revision, config.max_seq_length)
    settings = classifier_settings(config, task, source, teacher, accelerator)
    run, finished = start_run(config.output_dir, settings, command, accelerator)
    if finished is not None:
        return finished
    lesson = (
        WordLesson(config, task, teacher, rows_of(source, config), accelerator)
        if task.type == "tokens"
        else Lesson(config, task, teacher, splits_of(source, teacher, config), accelerator)
    )

    def keep() -> None:
        save_teacher(teacher.model, teacher.name, teacher.revision, config.output_dir)

    learner = ClassifierLearner(config, [lesson], accelerator, lesson.scores, keep)
    history = loop.train(run, learner, learner.schedule(), config.report_to)
    return run.finish({"history": history, "best": best_of(history), **sentence_encoder(config)})
