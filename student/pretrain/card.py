"""The README.md of a pretrained student's folder."""

from importlib.resources import files

import yaml

from pipeline.logit_set.record import SetRecord
from pipeline.training.run_record import RunRecord
from student.model.architecture import embedding_summary, used_summary
from student.pretrain.model import MlmStudent


def card_text(student: MlmStudent, record: SetRecord, run_record: RunRecord) -> str:
    """Fills the template from the student, the set it was pretrained on, and the record of its run."""
    template = files("student.pretrain").joinpath("card.md").read_text(encoding="utf-8")
    front_matter = {
        "library_name": "distill",
        "pipeline_tag": "fill-mask",
        "license": "other",
        "license_name": record.licence,
        "tags": ["distillation", "cmow", "matrix-embeddings"],
    }
    scores = run_record["result"]["history"][-1]["metrics"]["validation"]
    lines = ["| held out | student |", "|---|---|", *(f"| {name} | {value:.4f} |" for name, value in scores.items())]
    values = {
        "front_matter": yaml.safe_dump(front_matter, sort_keys=False).strip(),
        "corpus": record.subject,
        "teacher": record.teacher.name,
        "embedding": f"{embedding_summary(student.config)}; {used_summary(student.config)}",
        "num_outputs": f"{student.config.num_outputs:,}",
        "num_parameters": f"{sum(p.numel() for p in student.parameters()):,}",
        "scores": "\n".join(lines) if scores else "Nothing was held out.",
        "fingerprint": record.fingerprint,
        "codec": str(record.codec),
        "licence": record.licence,
        "command": run_record["command"],
        "versions": ", ".join(f"{name} {version}" for name, version in run_record["result"]["versions"].items()),
    }
    for key, value in values.items():
        template = template.replace("{{" + key + "}}", value)
    return template
