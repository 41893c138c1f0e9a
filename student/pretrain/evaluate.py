"""How well a pretrained student guesses masked tokens, and its teacher's guesses. Shapes: P positions, V vocabulary."""

import torch
from torch.nn import functional

from pipeline.config import refuse_flags
from pipeline.errors import FingerprintMismatchError
from pipeline.sets.token_reader import TokenSet, open_tokens
from pipeline.sets.tokens import perplexity
from pipeline.training.run_record import RUN_RECORD, read_run_record
from student.config import CostFlags, EvaluateConfig
from student.model.architecture import VectorConfig
from student.model.config_file import read_encoder_config
from student.model.model import default_device
from student.model.weights import CONFIG_FILE
from student.pretrain.control import control
from student.pretrain.frequencies import log_frequencies
from student.pretrain.held_out import head_logits, held_out
from student.pretrain.loss import cross_entropy
from student.pretrain.model import MlmStudent
from student.pretrain.vector_evaluate import evaluate_vector_run
from student.trained_sets import evaluated_sets


def evaluate_pretrained(config: EvaluateConfig) -> dict[str, dict[str, float]]:
    """Evaluates a pretraining run on what a set of its kind holds out, by default its own.

    Returns:
        The scores of `evaluate_mlm` under ``validation`` and those of `control` under ``control``, or per split the
        scores of `evaluate_vectors`.

    Raises:
        ConfigError: if costs of labels are given.
        DataError: if the set is gone.
        FingerprintMismatchError: if another is in its place, or its ids come from another tokenizer.
    """
    refuse_flags(config, CostFlags.model_fields, "is for labels, and a pretrained student has none")
    if isinstance(read_encoder_config(config.run / CONFIG_FILE), VectorConfig):
        return evaluate_vector_run(config)
    record = read_run_record(config.run / RUN_RECORD)
    student = MlmStudent.load(config.run).to(default_device())
    token_set = open_tokens(evaluated_sets(record, config.logits, config.store)[0], config.allow_unverified)
    if token_set.record.tokenizer.sha256 != student.config.tokenizer_sha256:
        raise FingerprintMismatchError(
            f"{token_set.root}: its token ids come from another tokenizer than the student's"
        )
    return scores_and_control(student, token_set, log_frequencies(token_set))


def scores_and_control(
    student: MlmStudent, token_set: TokenSet, log_frequency_V: torch.Tensor
) -> dict[str, dict[str, float]]:
    """The scores of `evaluate_mlm` on the rows held out, and what `control` tells of them."""
    return {
        "validation": evaluate_mlm(student, token_set, "validation"),
        "control": control(student, token_set, "validation", log_frequency_V),
    }


@torch.no_grad()
def evaluate_mlm(student: MlmStudent, token_set: TokenSet, split: str) -> dict[str, float]:
    """Scores a pretrained student on at most so many rows of a split.

    Returns:
        ``masked_accuracy``; ``gold_loss`` and ``perplexity`` of the masked tokens; ``teacher_loss``, the cross-entropy
        with the teacher at the codec's own temperature, nats. Empty if the split has no row.
    """
    student.eval()
    codec, decoder = token_set.record.codec, token_set.decoder()
    temperature = codec.temperature_kept
    right, gold, soft, positions = 0, 0.0, 0.0, 0
    for part in held_out(student, token_set, split):
        logits_PV = head_logits(student, part.features_PF)
        teacher = codec.decode(part.predictions, temperature, decoder).to(student.device)
        right += int((logits_PV.argmax(dim=1) == part.target_P).sum())
        gold += float(functional.cross_entropy(logits_PV, part.target_P, reduction="sum"))
        soft += float(cross_entropy(logits_PV / temperature, [(1, teacher)])[0].sum())
        positions += len(part.target_P)
    if not positions:
        return {}
    return {
        "masked_accuracy": right / positions,
        "gold_loss": gold / positions,
        "perplexity": perplexity(gold / positions),
        "teacher_loss": soft / positions,
    }
