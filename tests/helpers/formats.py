"""Where the fixtures of the formats lie."""

from pathlib import Path

FOLDER = Path(__file__).parents[1] / "fixtures" / "formats" / "v1"
CODECS = ("dense", "hidden", "sampled", "topk")
