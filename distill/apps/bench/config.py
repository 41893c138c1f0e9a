"""Settings of ``distill bench``; free of torch, so that ``--help`` is quick."""

from pathlib import Path

from pydantic import Field, field_validator

from pipeline.config import JsonFlags
from pipeline.errors import did_you_mean

TRANSFORMERS = {"bert-base": "BERT-base", "distilbert": "DistilBERT", "tinybert-4": "TinyBERT-4"}
PEERS = TRANSFORMERS | {"model2vec": "model2vec"}
PICTURES = (".svg", ".png")


class BenchConfig(JsonFlags):
    """Flags of ``distill bench``."""

    student: Path | None = Field(None, description="Folder of a run. (default: a new student of the default size)")
    peer: tuple[str, ...] = Field(
        (),
        description=f"Compare with this peer: {', '.join(PEERS)}, or the folder of another run; repeat for more. "
        "(default: all of these)",
    )
    seconds: float = Field(90, gt=0, le=86_400, description="About how long to measure.")
    output: Path | None = Field(None, description="Draw a chart, too, in this .svg or .png file.")

    @field_validator("peer")
    @classmethod
    def _known(cls, peers: tuple[str, ...]) -> tuple[str, ...]:
        for name in peers:
            if name not in PEERS and not Path(name).is_dir():
                raise ValueError(f"unknown peer {name!r}: {did_you_mean(name, PEERS)}")
        return peers

    @field_validator("output")
    @classmethod
    def _a_picture(cls, output: Path | None) -> Path | None:
        if output is not None and (output.suffix not in PICTURES or output.is_dir()):
            raise ValueError(f"{output}: give the name of a file that ends in {' or '.join(PICTURES)}")
        return output

    @property
    def peers(self) -> tuple[str, ...]:
        """The peers that are wanted."""
        return self.peer or tuple(PEERS)
