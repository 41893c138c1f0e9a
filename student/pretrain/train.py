"""``distill pretrain-student``: a student from a masked LM's stored predictions."""

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

from accelerate import PartialState

from pipeline.device import has_fast_bf16
from pipeline.errors import DataError
from pipeline.files import write_text
from pipeline.logit_set.reader import find_set
from pipeline.logit_set.record import TOKENIZER_FILE
from pipeline.logit_set.token_reader import TokenSet, open_tokens
from pipeline.training import loop
from pipeline.training.run import Run
from pipeline.training.run_record import RunRecord
from student.config import PretrainConfig
from student.model.card import CARD_FILE
from student.pretrain.card import card_text
from student.pretrain.data import Stream
from student.pretrain.learner import MlmLearner, new_student
from student.pretrain.model import design_mlm

LIBRARIES = ("distill-offline", "torch", "accelerate", "pyarrow", "tokenizers")


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
    token_set = open_tokens(find_set(config.logits, config.store), config.allow_unverified)
    token_set.check_temperature(config.temperature)
    student_config = design_mlm(config, token_set.record)
    state = PartialState()
    stream = Stream(token_set, "train", config.per_device_train_batch_size, config.seed, state.num_processes)
    if not stream.num_rows:
        raise DataError(f"{token_set.root}: its train split has no row")
    total_steps = stream.num_steps(config.num_train_epochs)
    total_steps = min(config.max_steps or total_steps, total_steps)
    folder = config.output_dir or Path("runs") / token_set.root.name
    settings = _settings(config, token_set) | {"steps": total_steps, "processes": state.num_processes}
    places = {"logit_set": str(token_set.root.resolve())}
    run = Run(folder, settings, command, places, rank=state.process_index, wait=state.wait_for_everyone)
    with state.main_process_first():
        finished = run.start()
    if finished is not None:
        return finished
    student = new_student(config, student_config).to(state.device)
    learner = MlmLearner(config, student, token_set, stream, total_steps, folder, state)
    schedule = loop.Schedule(
        total_steps=total_steps,
        entry_steps=config.save_steps,
        unit="step",
        seed=config.seed,
        warmup_steps=int(config.warmup_ratio * total_steps),
        keep_best=False,
    )
    result = {"history": loop.train(run, learner, schedule), "versions": {name: version(name) for name in LIBRARIES}}
    if run.is_main:
        write_text(folder / TOKENIZER_FILE, token_set.tokenizer_json())
        write_text(folder / CARD_FILE, card_text(student, token_set.record, run.record() | {"result": result}))
    return run.finish(result)


def _settings(config: PretrainConfig, token_set: TokenSet) -> dict[str, Any]:
    """What decides the weights; where the set and the run lie does not."""
    places = {"logits", "store", "output_dir", "save_steps", "allow_unverified", "json_output"}
    return config.model_dump(mode="json", exclude={*places, "max_steps"}) | {
        "logit_set_fingerprint": token_set.record.fingerprint,
        "codec": json.loads(token_set.record.codec.model_dump_json()),
        "precision": "bf16" if has_fast_bf16() else "fp32",
    }
