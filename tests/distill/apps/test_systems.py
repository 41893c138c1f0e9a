from pathlib import Path

from distill.apps.systems import bytes_of


def test_weights_in_several_files_count(tmp_path: Path) -> None:
    for size, name in enumerate(("config.json", "tokenizer.json", "finetune.json", "model.safetensors.index.json")):
        (tmp_path / name).write_bytes(b"x" * 10**size)
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(b"x" * 10_000)
    (tmp_path / "model-00002-of-00002.safetensors").write_bytes(b"x" * 100_000)
    assert bytes_of(tmp_path) == 110_011
    (tmp_path / "model.safetensors").write_bytes(b"x" * 1_000_000)
    assert bytes_of(tmp_path) == 1_110_011
