"""The folder of a student that is a BERT, which `transformers` reads as one of its own.

Its ``config.json`` is that of a ``BertForSequenceClassification``, with the student's own under one key; its weights
have the names that this class gives them.
"""

import json
from typing import Any

from tokenizers import Tokenizer

from student.model.architecture import BERT_KEY, StudentConfig

TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
PROBLEMS = {"score": "regression", "labels": "multi_label_classification"}


def bert_json(config: StudentConfig) -> str:
    """The text of the ``config.json`` of a student that is a BERT."""
    assert config.bert is not None, "asked of a bert"
    rate, names = config.hidden_dropout, config.target.names
    values: dict[str, Any] = {
        "model_type": "bert",
        "architectures": ["BertForSequenceClassification"],
        "vocab_size": config.num_tokens,
        "hidden_size": config.vector_size,
        **config.bert.model_dump(),
        "hidden_act": "gelu",
        "hidden_dropout_prob": rate,
        "attention_probs_dropout_prob": rate,
        "classifier_dropout": rate,
        "initializer_range": config.initializer_range,
        "pad_token_id": config.pad_id,
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
        "problem_type": PROBLEMS.get(config.target.kind, "single_label_classification"),
        "dtype": "float32",
        BERT_KEY: config.model_dump(mode="json"),
    }
    return json.dumps(values, indent=2, ensure_ascii=False)


def tokenizer_config_json(tokenizer: Tokenizer, config: StudentConfig) -> str:
    """The text of the ``tokenizer_config.json`` with which ``AutoTokenizer`` takes ``tokenizer.json`` as it is."""
    names: dict[str, str | None] = {"pad_token": tokenizer.id_to_token(config.pad_id)}
    if config.special_ids is not None:
        before, _, after = config.special_ids
        names |= {"cls_token": tokenizer.id_to_token(before[0])}
        names |= {"sep_token": tokenizer.id_to_token(after[0])} if after else {}
    values = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.max_seq_length,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
    }
    return json.dumps(values | {key: name for key, name in names.items() if name is not None}, indent=2) + "\n"
