"""Every flag of augmentation is some method's own, or every method's."""

import subprocess
import sys

import pytest

from pipeline.errors import ConfigError
from pipeline.tasks.task import Task
from teacher.augment.augment_settings import AugmentConfig
from teacher.augment.methods import METHODS, AugmentFlags, flags_of_others
from tests.helpers.messages import naming

COMMON = {"num_variants"}


def test_each_flag_is_of_some_methods_or_of_all() -> None:
    flags = {flag for method in METHODS.values() for flag in method.flags}
    assert flags < set(AugmentConfig.model_fields)
    assert flags | COMMON > set(AugmentFlags.model_fields)


def test_flags_of_others() -> None:
    assert flags_of_others("tinybert") == METHODS["mask-pos"].flags | METHODS["mask-each"].flags
    assert "mask_token" not in flags_of_others("mask-each") | flags_of_others("mask-pos")
    assert {"masked_lm", "precision", "max_seq_length"} < flags_of_others("mask-pos")
    assert not flags_of_others("mask-pos") & METHODS["mask-pos"].flags


def test_an_unknown_method_is_refused() -> None:
    for name in METHODS:
        assert AugmentConfig.from_flags(method=name).method == name
    with pytest.raises(ConfigError, match=naming("--method: ", "'tinybert'", "'mask-pos'", "'mask-each'", "'tinybrt'")):
        AugmentConfig.from_flags(method="tinybrt")


def test_variants_of_an_unknown_method_are_refused(opinion: Task) -> None:
    wrong = opinion.model_copy(update={"num_variants": {"mask-pos": 3, "tinybrt": 3}})
    with pytest.raises(ConfigError, match=naming("'opinion'", "num_variants: ", "'tinybrt'", "'tinybert'")):
        AugmentConfig(method="mask-pos").variants_of(wrong)


def test_the_table_of_methods_is_quick_to_import() -> None:
    code = "import sys, teacher.augment.methods; print(*{'torch', 'numpy', 'pyarrow', 'transformers'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
