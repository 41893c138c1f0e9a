"""A sample of what ``python -m tests.fuzz.flips`` does 10,000 times."""

from collections import Counter
from pathlib import Path

from pipeline.sets.card import CARD_FILE
from tests.fuzz.flips import flips


def test_a_flipped_bit_is_detected_unless_it_is_in_a_card(tmp_path: Path) -> None:
    for name, outcomes in flips(tmp_path, 120).items():
        assert outcomes == Counter({"harmless" if name.endswith(CARD_FILE) else "detected": outcomes.total()}), name
        assert outcomes
