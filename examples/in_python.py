"""MRPC from the teacher to a student, in Python alone; editors open each part that begins with ``%%`` as a cell.

Each step can be stopped and repeated, and goes on from what is finished. In a notebook leave out the ``print``: the
results are tables by themselves, and dicts or lists of dicts to go on with.
"""

# %% Stage one: fine-tune a teacher, and write down what it says
from distill import dump_teacher, finetune_teacher

print(finetune_teacher(task="mrpc", model_name_or_path="bert-base-uncased", output_dir="teachers/mrpc"))
print(dump_teacher(task="mrpc", model_name_or_path="teachers/mrpc"))

# %% Between the stages: ask the set
from distill import open_set

print(
    open_set("logits/mrpc").sql(
        "select split, count(*) as rows, avg(entropy(logits)) as entropy from mrpc group by split"
    )
)

# %% Stage two, which needs neither the teacher nor transformers
from distill import Predictor, evaluate, train_student

run = train_student(task="mrpc", embedding="cbow", num_train_epochs=5, output_dir="runs/python")
print(run)
print(evaluate("runs/python")["validation"]["fidelity"])

# %% The student at work
[answer] = Predictor("runs/python")(["A man is eating."], ["Somebody eats."])
print(answer["label"], answer["probabilities"])
