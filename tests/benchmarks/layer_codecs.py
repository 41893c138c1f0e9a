"""What codecs change in the losses of layers: ``python -m tests.benchmarks.layer_codecs EXACT RECODED...``.

The first set has states, attention and values in float32; the others are made of it by ``distill recode``.
A bert that starts from every second of the teacher's layers is compared with them, before it has learnt anything.
"""

import sys

import numpy as np
import torch

from pipeline import console
from pipeline.sets.kinds.examples import ExampleSet
from student.data import as_read, load_examples
from student.initial_weights.bert import bert_start, copy_layers
from student.layer_stage import layer_loss
from student.model.student import Student
from student.settings import TrainSettings
from student.training_data import build_student_config, task_facts

ROWS, LAYERS = 64, "2,4,6"
READS = {"hid-seq": "states", "att-mse": "attention", "att-kl": "attention", "val-kl": "values"}


def loss_and_gradient(logit_set: ExampleSet, name: str) -> tuple[float, torch.Tensor]:
    """The loss of the first training rows, and its gradient of all weights, end to end."""
    flags = TrainSettings.from_flags(set=(str(logit_set.root),), embedding="bert", init_layers=LAYERS, layer_loss=name)
    facts = task_facts(logit_set)
    config, _ = build_student_config(flags, logit_set, facts)
    student, start = Student(config).eval(), bert_start(flags.encoder, flags.start, logit_set)
    assert start is not None, "starts from its teacher"
    copy_layers(start, student.encoder)
    examples = as_read(load_examples(logit_set, "train"), config)
    assert flags.layers is not None
    rows = np.arange(ROWS)
    layers = layer_loss(flags.layers, student, logit_set, facts["special_ids"], examples, examples.weight_N)
    ids_T, starts_S = examples.batch(rows)
    loss = layers(*layers.read(student, ids_T, starts_S), starts_S, rows)
    gradients = torch.autograd.grad(loss, list(student.encoder.parameters()), allow_unused=True)
    return float(loss.detach()), torch.cat([gradient.flatten() for gradient in gradients if gradient is not None])


def main(exact: str, *others: str) -> None:
    """Prints how far losses and gradients are from those of the exact set, as shares of them."""
    sets = [ExampleSet.open(path) for path in (exact, *others)]
    table = []
    for distance, signal_name in READS.items():
        loss, gradient = loss_and_gradient(sets[0], distance)
        for one in sets[1:]:
            codec = next(signal.how for signal in one.record.signals.layer_signals if signal.name == signal_name)
            if codec == "float32":
                continue
            other_loss, other = loss_and_gradient(one, distance)
            away = float((other - gradient).norm() / gradient.norm())
            table.append([distance, codec, f"{other_loss / loss - 1:+.2e}", f"{away:.1e}"])
    console.print_table(["layer loss", "codec", "its loss", "its gradient"], table)


if __name__ == "__main__":
    main(*sys.argv[1:])
