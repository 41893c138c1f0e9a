"""Is a set what its ``distill.json`` says? Checked before it is believed."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.errors import IntegrityError, raise_all
from pipeline.files import sha256
from pipeline.logit_set.manifest import AugmentedManifest, ExamplesManifest, SetManifest, Shard, TokensManifest
from pipeline.logit_set.schema import examples_schema, logits_of
from pipeline.logit_set.shard_file import footer_of, read_footer, read_metadata
from pipeline.logit_set.tokens import tokens_schema
from pipeline.logit_set.verify_tokens import tokens_problems

EXAMINED = ["split", "source_row", "variant", "origin", "label", "score", "logits"]


def verify_shards(root: Path, manifest: SetManifest) -> None:
    """Checks every shard: bytes, fingerprint, columns, keys (every source row of a task once), and finite numbers.

    Raises:
        IntegrityError: listing everything that is wrong.
    """
    problems = [problem for shard in manifest.shards for problem in _problems(root, manifest, shard)]
    strangers = sorted({shard.split for shard in manifest.shards} - manifest.splits.keys())
    problems += [f"split {split!r}: has shards, but is not among the splits" for split in strangers]
    for split, record in manifest.splits.items():
        ranges = [(shard.start, shard.stop) for shard in manifest.shards_of(split)]
        if not ranges or ranges != _chain(ranges, record.rows):
            problems.append(f"split {split!r}: its shards do not cover the rows 0 to {record.rows:,} once")
    if isinstance(manifest, AugmentedManifest):
        variants = sum(shard.rows or 0 for shard in manifest.shards) - sum(s.rows for s in manifest.splits.values())
        if variants != manifest.augmentation.rows:
            problems.append(f"{variants:,} variants, but distill.json says {manifest.augmentation.rows:,}")
    raise_all(IntegrityError, f"{root}: not a sound logit set", problems)


def check_bytes(root: Path, shard: Shard) -> list[str]:
    """Says what is wrong with a shard's file, without looking inside: presence, size, SHA-256."""
    path = root / shard.path
    if not path.is_file() or path.is_symlink() or path.parent.is_symlink():
        return [f"{shard.path}: missing, or not a plain file"]
    if path.stat().st_size != shard.bytes:
        return [f"{shard.path}: {path.stat().st_size:,} bytes, but distill.json says {shard.bytes or 0:,}"]
    if sha256(path) != shard.sha256:
        return [f"{shard.path}: its SHA-256 is not the one in distill.json; the file was changed or damaged"]
    return []


def _problems(root: Path, manifest: SetManifest, shard: Shard) -> list[str]:
    problems = check_bytes(root, shard)
    if problems:
        return problems
    path = root / shard.path
    if read_footer(path) != footer_of(manifest, shard):
        return [f"{shard.path}: its footer belongs to another run or another range of rows"]
    expected = _expected_schema(manifest)
    schema = pq.read_schema(path).remove_metadata()
    if schema != expected:
        wrong = [f.name for f in expected if f.name not in schema.names or schema.field(f.name) != f]
        return [f"{shard.path}: columns missing or of another type: {', '.join(wrong) or schema.names}"]
    rows = read_metadata(path).num_rows
    if rows != shard.rows:
        return [f"{shard.path}: {rows:,} rows, but distill.json says {shard.rows or 0:,}"]
    try:
        if isinstance(manifest, TokensManifest):
            return tokens_problems(manifest, shard, path)
        assert isinstance(manifest, ExamplesManifest)
        table = pq.read_table(path, columns=EXAMINED, partitioning=None)
        return _examples_problems(manifest, shard, table)
    except (OSError, pa.ArrowException) as error:
        return [f"{shard.path}: cannot be read: {error}"]


def _expected_schema(manifest: SetManifest) -> pa.Schema:
    if isinstance(manifest, TokensManifest):
        return tokens_schema(manifest.codec)
    assert isinstance(manifest, ExamplesManifest)
    return examples_schema(manifest.target.num_logits, manifest.tokenizer.vocabulary_size)


def _examples_problems(manifest: ExamplesManifest, shard: Shard, table: pa.Table) -> list[str]:
    problems = []
    if set(table.column("split").unique().to_pylist()) - {shard.split}:
        problems.append(f"{shard.path}: holds rows of another split than {shard.split!r}")
    rows = table.column("source_row").to_numpy()
    variants = table.column("variant").to_numpy()
    originals = np.sort(rows[variants == 0])
    if not np.array_equal(originals, np.arange(shard.start, shard.stop)):
        problems.append(f"{shard.path}: the source rows {shard.start:,} to {shard.stop:,} are not there exactly once")
    if len(np.unique(np.stack([rows, variants]), axis=1).T) != len(rows):
        problems.append(f"{shard.path}: a (source_row, variant) occurs twice")
    is_variant = variants != 0
    if is_variant.any() and (shard.split != "train" or not isinstance(manifest, AugmentedManifest)):
        problems.append(f"{shard.path}: holds variants, but distill.json tells of none there")
    if ((rows < shard.start) | (rows >= shard.stop)).any():
        problems.append(f"{shard.path}: holds variants of other rows than {shard.start:,} to {shard.stop:,}")
    gold = pc.or_(*(pc.is_valid(table.column(name)) for name in ("label", "score"))).to_numpy()
    if (variants < 0).any() or (gold & is_variant).any():
        problems.append(f"{shard.path}: a variant has gold, or a number below 0")
    if ((pc.equal(table.column("origin"), "original").to_numpy()) == is_variant).any():
        problems.append(f"{shard.path}: the origin of a row is wrong: it is 'original' for variant 0, and for no other")
    finite = np.isfinite(logits_of(table, manifest.target.num_logits)).all(axis=1)
    if not finite.all():
        problems.append(f"{shard.path}: logits of source row {rows[~finite][0]} are not finite")
    return problems


def _chain(ranges: list[tuple[int, int]], num_rows: int) -> list[tuple[int, int]]:
    """The ranges with each start replaced by what it must be, ending at ``num_rows``."""
    stops = [stop for _, stop in ranges]
    return list(zip([0, *stops[:-1]], [*stops[:-1], num_rows], strict=True))
