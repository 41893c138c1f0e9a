"""``distill recode`` and ``distill budget``."""

from dataclasses import asdict
from typing import Any

from distill.commands.options import command_line, needs_teacher_libraries, takes
from pipeline import console
from pipeline.errors import ConfigError
from pipeline.sets.config import RecodeConfig
from teacher.config import BudgetConfig, BudgetTask


@takes(RecodeConfig)
def recode(config: RecodeConfig) -> None:
    """Write a set of tokens, or the stored layers of a set of examples, in another codec; no teacher is needed."""
    config.check()
    if config.layer_codecs:
        from pipeline.sets.recode_layers import recode_layers as recode_set
    else:
        from pipeline.sets.recode import recode as recode_set
    print_set(recode_set(config, command_line()), config.json_output)


@takes(BudgetConfig, BudgetTask, by=("corpus", "task"))
def budget(config: BudgetConfig | BudgetTask) -> None:
    """Measure what each codec would cost and lose, on a sample of a set, of a corpus or of a task's rows."""
    if isinstance(config, BudgetTask):
        _print_layer_budget(config)
        return
    from pipeline.sets.budget import as_dicts

    lines = as_dicts(_budget_lines(config))
    if config.json_output:
        console.print_json(lines)
        return
    temperatures = list(lines[0]["kept_mass"])
    columns = ["codec", "bytes", "corpus", "KL", *(f"T={t}" for t in temperatures), "ECE"]
    rows = [
        [
            *(line["codec"], f"{line['bytes_per_position']:,.1f}", console.size(line["corpus_bytes"])),
            *(f"{line['kl']:.4f}", *(f"{mass:.3f}" if mass else "no" for mass in line["kept_mass"].values())),
            f"{line['calibration_error']:.4f}",
        ]
        for line in lines
    ]
    console.print_table(columns, rows)
    console.note(
        "bytes a position, all columns counted; size of the whole corpus; divergence of what is stored from the whole "
        "distribution; share of it that is kept, by temperature; calibration error of the likeliest token. Sampled "
        "distributions are far from the whole at any one position and right on average, which is what a student learns "
        "from; those of top-k are not."
    )


def _print_layer_budget(config: BudgetTask) -> None:
    config.check()
    needs_teacher_libraries()
    from teacher.dump.layer_budget import layer_budget

    lines = [asdict(line) for line in layer_budget(config)]
    if config.json_output:
        console.print_json(lines)
        return
    rows = [
        [
            *(line["signal"], line["layer"], line["codec"], f"{line['bytes_per_row']:,.0f}"),
            *(console.size(line["task_bytes"]), "-" if line["lost"] is None else f"{line['lost']:.2g}"),
        ]
        for line in lines
    ]
    console.print_table(["signal", "layer", "codec", "bytes a row", "task", "lost"], rows)
    console.note(
        "bytes a row in the files, and of all of the task's own rows, for each layer; lost of states is a share of "
        "their variance, of attention and values the divergence of softmax in nats; bases were fitted to other rows."
    )


def _budget_lines(config: BudgetConfig) -> list[Any]:
    if (config.logits is None) == (config.corpus is None):
        raise ConfigError("what to measure: give a set of tokens or --corpus, one of them")
    if config.corpus is not None:
        needs_teacher_libraries()
        from teacher.dump.budget import corpus_budget

        return corpus_budget(config)
    from pipeline.sets.budget import budget as set_budget
    from pipeline.sets.reader import find_set
    from pipeline.sets.token_reader import open_tokens

    assert config.logits is not None
    control = open_tokens(find_set(config.logits, config.store))
    positions = sum(scores.get("positions", 0) for scores in control.record.scores.values())
    return set_budget(control, config.positions, positions)


def print_set(record: Any, json_output: bool) -> None:
    """Prints what a set of tokens or of sentences has come to."""
    if json_output:
        console.print_json(record.model_dump(mode="json"))
        return
    metrics = list(next(iter(record.scores.values()), {}))
    rows = [[split, *(scores.get(name) for name in metrics)] for split, scores in record.scores.items()]
    signals = " and ".join(map(str, record.signals.stored))
    title = f"{record.name}: {record.state}, {signals}, {console.size(record.num_bytes)}"
    console.print_table(["split", *(name.replace("_", " ") for name in metrics)], rows, title=title)
