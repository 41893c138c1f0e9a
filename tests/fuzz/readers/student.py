"""The records in a student's folder; its weights and its tokenizer have readers of their own."""

import json
import shutil
from typing import Any

from pipeline.file_names import CONFIG_FILE, RUN_RECORD
from pipeline.record_file import read_work_record, with_checksum
from student.model.config_file import read_encoder_config
from student.model.student import Student
from student.predict.certificate import CERTIFICATE_FILE, read_certificate
from tests.fuzz.files import FIXTURES, FOLDER, of_a_kind, seeds

COVERS = ("student.model.architecture", "student.predict.certificate", "pipeline.training.run")
PAIRS = f"pairs of {CONFIG_FILE}"
KINDS = (CONFIG_FILE, PAIRS, RUN_RECORD, CERTIFICATE_FILE)
RUN, OF_PAIRS = FOLDER / "run", FOLDER / "run-pairs"
for copy in (RUN, OF_PAIRS):
    shutil.copytree(FIXTURES / copy.name, copy)
CERTIFICATE: dict[str, Any] = {
    "disagreement": 0.1,
    "confidence": 0.9,
    "certified": None,
    "trials": [],
    "num_rows": 1,
    "logit_set": "a",
    "logit_set_fingerprint": "b",
    "where": "c",
    "rows_sha256": "d",
    "logits_sha256": "e",
    "student_sha256": {},
}
SEEDS = seeds(
    KINDS,
    {
        CONFIG_FILE: [(FIXTURES / name / CONFIG_FILE).read_bytes() for name in ("run", "run-int8", "run-pretrained")],
        PAIRS: [(FIXTURES / "run-pairs" / CONFIG_FILE).read_bytes()],
        RUN_RECORD: [(FIXTURES / name / RUN_RECORD).read_bytes() for name in ("run", "run-pairs")],
        CERTIFICATE_FILE: [json.dumps(CERTIFICATE).encode(), with_checksum(json.dumps(CERTIFICATE, indent=2)).encode()],
    },
)


def read(data: bytes) -> None:
    kind, content = of_a_kind(data, KINDS)
    if kind in (CONFIG_FILE, PAIRS):
        run = RUN if kind == CONFIG_FILE else OF_PAIRS
        (run / CONFIG_FILE).write_bytes(content)
        read_encoder_config(run / CONFIG_FILE)
        Student.load(run)
        return
    (RUN / kind).write_bytes(content)
    if kind == RUN_RECORD:
        read_work_record(RUN / kind)
    else:
        read_certificate(RUN)
