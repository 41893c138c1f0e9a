"""How well a pretrained student guesses masked tokens, and its teacher's guesses."""

import math

import torch
from torch.nn import functional

from pipeline.logit_set.codecs import CODECS
from pipeline.logit_set.token_reader import TokenSet
from pipeline.training import has_fast_bf16
from student.mlm.data import read_pool
from student.mlm.loss import CHUNK, teacher_cross_entropy
from student.mlm.model import MlmStudent

MAX_ROWS, BATCH_SIZE = 4096, 256


@torch.no_grad()
def evaluate_mlm(student: MlmStudent, token_set: TokenSet, split: str) -> dict[str, float]:
    """Scores a pretrained student on at most so many rows of a split.

    Returns:
        ``masked_accuracy``; ``gold_loss`` and ``perplexity`` of the masked tokens; ``teacher_loss``, the cross-entropy
        with the teacher at the codec's own temperature, nats. Empty if the split has no row.
    """
    student.eval()
    codec, decoder, device = token_set.manifest.codec, token_set.decoder(), student.device
    temperature = codec.temperature or 1.0
    right, gold, soft, positions, seen = 0, 0.0, 0.0, 0, 0
    dtype = torch.bfloat16 if has_fast_bf16() else torch.float32
    weight = student.head.weight.to(dtype)
    for group, _ in token_set.groups(split):
        if seen >= MAX_ROWS:
            break
        token_set.check_shards([group[0]])
        pool = read_pool(token_set, [group])
        for start in range(0, min(len(pool.rows), MAX_ROWS - seen), BATCH_SIZE):
            batch = pool.batch(list(range(start, min(start + BATCH_SIZE, len(pool.rows)))), student.config.pad_id)
            features_PF = student(batch.ids_BL.to(device), batch.row_P.to(device), batch.place_P.to(device))
            for low in range(0, len(features_PF), CHUNK):
                part = slice(low, min(low + CHUNK, len(features_PF)))
                logits_PV = (features_PF[part].to(dtype) @ weight.T).float() + student.head.bias
                target_P = batch.target_P[part].to(device)
                columns = {name: column[part.start : part.stop] for name, column in batch.said.items()}
                teacher = CODECS[codec.name].decode(codec, columns, temperature, decoder)
                right += int((logits_PV.argmax(dim=1) == target_P).sum())
                gold += float(functional.cross_entropy(logits_PV, target_P, reduction="sum"))
                soft += float(teacher_cross_entropy(logits_PV / temperature, teacher).sum())
                positions += len(target_P)
        seen += len(pool.rows)
    if not positions:
        return {}
    return {
        "masked_accuracy": right / positions,
        "gold_loss": gold / positions,
        "perplexity": math.exp(gold / positions),
        "teacher_loss": soft / positions,
    }
