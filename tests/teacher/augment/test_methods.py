"""Every flag of augmentation is some method's own, or every method's."""

import subprocess
import sys

import pytest

from pipeline.errors import ConfigError
from pipeline.tasks.task import Task
from teacher.augment.methods import METHODS, AugmentSettings, MaskPos, TinyBert
from teacher.models.model_settings import ForwardFlags
from tests.helpers.messages import naming

MASK = {"mask_token": "<mask>"}


def test_flags_of_other_methods_are_refused() -> None:
    mask_pos = naming("--masked-lm: ", "--method tinybert", "--sentences: ", "--method mask-each")
    with pytest.raises(ConfigError, match=mask_pos):
        AugmentSettings.from_flags(method="mask-pos", masked_lm="x", sentences=3, **MASK)
    with pytest.raises(ConfigError, match=naming("--mask-token: ", "--method mask-pos", "--method mask-each")):
        AugmentSettings.from_flags(method="tinybert", **MASK)


def test_what_decides_variants_are_the_fields_of_a_method() -> None:
    given = MaskPos(mask_probability=0.2, seed=3)
    assert given.own_settings == {"mask_probability": 0.2, "seed": 3}
    tiny = TinyBert(masked_lm="x", num_candidates=4, forward=ForwardFlags(precision="bf16"))
    assert tiny.own_settings == {"num_candidates": 4}
    assert tiny.named_files == {"masked_lm"}


def test_an_unknown_method_is_refused() -> None:
    for name in METHODS:
        assert AugmentSettings.from_flags(method=name).by.name == name
    with pytest.raises(ConfigError, match=naming("--method tinybrt: ", "tinybert", "mask-pos", "mask-each")):
        AugmentSettings.from_flags(method="tinybrt")


def test_variants_of_an_unknown_method_are_refused(opinion: Task) -> None:
    wrong = opinion.model_copy(update={"num_variants": {"mask-pos": 3, "tinybrt": 3}})
    with pytest.raises(ConfigError, match=naming("'opinion'", "num_variants: ", "'tinybrt'", "'tinybert'")):
        MaskPos().variants_of(wrong)


def test_the_table_of_methods_is_quick_to_import() -> None:
    code = "import sys, teacher.augment.methods; print(*{'torch', 'numpy', 'pyarrow', 'transformers'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
