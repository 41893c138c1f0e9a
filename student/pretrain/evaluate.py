"""How well a pretrained student guesses masked tokens, and its teacher's guesses. Shapes: P positions, V vocabulary."""

import math
from collections.abc import Iterator

import torch
from torch.nn import functional

from pipeline.device import has_fast_bf16
from pipeline.errors import FingerprintMismatchError
from pipeline.logit_set.reader import find_set
from pipeline.logit_set.token_reader import TokenSet, open_tokens
from pipeline.training.run_record import RUN_RECORD, read_run_record
from student.config import EvaluateConfig
from student.model.model import default_device
from student.pretrain.data import MaskedBatch, read_pool
from student.pretrain.head import CHUNK
from student.pretrain.loss import cross_entropy
from student.pretrain.model import MlmStudent

MAX_ROWS, BATCH_SIZE = 4096, 256


def evaluate_pretrained(config: EvaluateConfig) -> dict[str, dict[str, float]]:
    """Evaluates a pretraining run on the validation split of a set of tokens, by default its own.

    Returns:
        Per split the scores of `evaluate_mlm`.

    Raises:
        DataError: if the set is not where it was.
        FingerprintMismatchError: if its ids come from another tokenizer.
    """
    record = read_run_record(config.run / RUN_RECORD)
    student = MlmStudent.load(config.run).to(default_device())
    token_set = open_tokens(find_set(config.logits or record["logit_set"], config.store), config.allow_unverified)
    if token_set.record.tokenizer.sha256 != student.config.tokenizer_sha256:
        raise FingerprintMismatchError(
            f"{token_set.root}: its token ids come from another tokenizer than the student's"
        )
    return {"validation": evaluate_mlm(student, token_set, "validation")}


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
    dtype = torch.bfloat16 if has_fast_bf16() else torch.float32
    weight_VF = student.head.weight.to(dtype)
    right, gold, soft, positions = 0, 0.0, 0.0, 0
    for batch in _batches(student, token_set, split):
        target_P = batch.target_P.to(student.device)
        features_PF = student(*(ids.to(student.device) for ids in (batch.ids_BL, batch.row_P, batch.place_P)))
        for low in range(0, len(features_PF), CHUNK):
            part = slice(low, low + CHUNK)
            logits_PV = (features_PF[part].to(dtype) @ weight_VF.T).float() + student.head.bias
            columns = {name: column[part] for name, column in batch.predictions.items()}
            teacher = codec.decode(columns, temperature, decoder)
            right += int((logits_PV.argmax(dim=1) == target_P[part]).sum())
            gold += float(functional.cross_entropy(logits_PV, target_P[part], reduction="sum"))
            soft += float(cross_entropy(logits_PV / temperature, [(1, teacher.to(student.device))])[0].sum())
        positions += len(target_P)
    if not positions:
        return {}
    return {
        "masked_accuracy": right / positions,
        "gold_loss": gold / positions,
        "perplexity": math.exp(gold / positions),
        "teacher_loss": soft / positions,
    }


def _batches(student: MlmStudent, token_set: TokenSet, split: str) -> Iterator[MaskedBatch]:
    """Batches of the first `MAX_ROWS` rows of a split."""
    left = MAX_ROWS
    for group, num_rows in token_set.groups(split):
        if left <= 0:
            return
        token_set.check_shards([group[0]])
        pool = read_pool(token_set, [group])
        rows = range(min(left, num_rows))
        for start in range(0, len(rows), BATCH_SIZE):
            yield pool.batch(list(rows[start : start + BATCH_SIZE]), student.config.pad_id)
        left -= num_rows
