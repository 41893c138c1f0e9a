"""Tiny BERTs as students, made in memory."""

import torch

from student.model.architecture import StudentConfig
from student.model.student import Student
from tests.helpers.toy_students import student_config

SHAPE = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12, "max_position_embeddings": 16}
BERT = {
    "embedding": "bert",
    **SHAPE,
    "vector_size": 8,
    "head": "dense",
    "hidden_size": None,
    "special_ids": ((2,), (3,), (3,)),
    "pairing": "joint",
    "hidden_dropout": 0.0,
    "initializer_range": 0.5,
}


SENTENCES = [[2, 5, 4, 3, 6, 3], [2, 3], [2, 9, 8, 7, 6, 5, 4, 3, 4, 3], [], [2, 4, 3]]


def bert_config(**changes: object) -> StudentConfig:
    return student_config(**BERT | changes)


def bert_student(**changes: object) -> Student:
    torch.manual_seed(0)
    return Student(bert_config(**changes)).eval()
