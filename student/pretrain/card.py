"""The README.md of a pretrained student's folder."""

from importlib.resources import files

import yaml
from torch import nn

from pipeline.sets.record import SetRecord
from pipeline.training.run_record import RunRecord
from student.model.architecture import EncoderConfig
from student.model.words import embedding_summary, used_summary
from student.pretrain.model import MlmStudent
from student.pretrain.vector_model import VectorStudent


def card_text(student: MlmStudent, run_record: RunRecord, record: SetRecord) -> str:
    """The card of a student, of the set of tokens that it was pretrained on, and of its run."""
    config = student.config
    own = {"num_outputs": f"{config.num_outputs:,}", "codec": str(record.codec)}
    return _filled("card.md", "fill-mask", student, config, record, run_record, own)


def vector_card_text(student: VectorStudent, run_record: RunRecord, record: SetRecord) -> str:
    """The card of a student, of the set of sentences that it was pretrained on, and of its run."""
    config = student.config
    made_by = "a linear layer makes" if config.vector_map == "linear" else "it is compared with"
    own = {
        "made_by": made_by,
        "width": f"{config.width:,}",
        "signals": " and ".join(map(str, record.signals.stored)),
        "loss": run_record["settings"]["vector_loss"],
    }
    return _filled("card_vectors.md", "feature-extraction", student, config, record, run_record, own)


def _filled(
    template_name: str,
    tag: str,
    student: nn.Module,
    config: EncoderConfig,
    record: SetRecord,
    run_record: RunRecord,
    own: dict[str, str],
) -> str:
    template = files("student.pretrain").joinpath(template_name).read_text(encoding="utf-8")
    front_matter = {
        "library_name": "distill",
        "pipeline_tag": tag,
        "license": "other",
        "license_name": record.licence,
        "tags": ["distillation", "cmow", "matrix-embeddings"],
    }
    scores: dict[str, float] = next(iter(run_record["result"]["history"][-1]["metrics"].values()), {})
    lines = ["| held out | student |", "|---|---|", *(f"| {name} | {value:.4f} |" for name, value in scores.items())]
    values = {
        "front_matter": yaml.safe_dump(front_matter, sort_keys=False).strip(),
        "corpus": record.subject,
        "teacher": record.teacher.name,
        "embedding": f"{embedding_summary(config)}; {used_summary(config)}",
        "num_parameters": f"{sum(p.numel() for p in student.parameters()):,}",
        "scores": "\n".join(lines) if scores else "Nothing was held out.",
        "fingerprint": record.fingerprint,
        "licence": record.licence,
        "command": run_record["command"],
        "versions": ", ".join(f"{name} {version}" for name, version in run_record["result"]["versions"].items()),
        **own,
    }
    for key, value in values.items():
        template = template.replace("{{" + key + "}}", value)
    return template
