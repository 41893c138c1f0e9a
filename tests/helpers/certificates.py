"""Certificates of any margin, for students that need none."""

import struct
from pathlib import Path

from student.predict.certificate import Certificate, Trial, model_hashes, write_certificate
from tests.helpers.engine_files import joined, parts


def certify(run: Path, threshold: float) -> None:
    """Puts a certificate with this margin into a folder, for the weights that are there."""
    trial = Trial(percent=50, threshold=threshold, answered=60, disagreements=1, bound=0.08)
    certificate = Certificate(
        disagreement=0.1,
        confidence=0.9,
        certified=trial,
        trials=(trial,),
        num_rows=100,
        logit_set="sets/toy",
        logit_set_fingerprint="0" * 64,
        where="true",
        rows_sha256="1" * 64,
        logits_sha256="2" * 64,
        student_sha256=model_hashes(run),
    )
    write_certificate(run, certificate)


def with_margin(content: bytes, margin: float) -> bytes:
    """The content of a file of a certified student, with another margin for the engine."""
    header, data = parts(content)
    begin, end = header["0.margin"]["data_offsets"]
    return joined(header, data[:begin] + struct.pack("<f", margin) + data[end:])
