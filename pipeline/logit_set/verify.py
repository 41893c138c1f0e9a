"""Is a set what its ``distill.json`` says? Checked before it is believed, cheapest and safest first."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import IntegrityError, raise_all
from pipeline.files import sha256
from pipeline.logit_set.manifest import (
    ExamplesManifest,
    SetManifest,
    Shard,
    TokensManifest,
    augmentation_of,
    has_text,
)
from pipeline.logit_set.records import (
    PartialSplit,
)
from pipeline.logit_set.schema import examples_schema
from pipeline.logit_set.shard_file import bomb_problem, footer_of, read_footer, read_metadata
from pipeline.logit_set.tokens import tokens_schema
from pipeline.logit_set.verify_examples import Tally, examples_problem
from pipeline.logit_set.verify_tokens import tokens_problems


def verify_shards(root: Path, manifest: SetManifest) -> None:
    """Checks every shard: bytes, fingerprint, columns, keys (every source row of a task once), texts, finite numbers.

    Raises:
        IntegrityError: listing everything that is wrong.
    """
    problems, tallies = [], {split: Tally() for split in manifest.splits}
    for shard in manifest.shards:
        problems += _problems(root, manifest, shard, tallies.setdefault(shard.split, Tally()))
    strangers = sorted(tallies.keys() - manifest.splits.keys())
    problems += [f"split {split!r}: has shards, but is not among the splits" for split in strangers]
    for split, record in manifest.splits.items():
        ranges = [(shard.start, shard.stop) for shard in manifest.shards_of(split)]
        if not ranges or ranges != _chain(ranges, record.rows):
            problems.append(f"split {split!r}: its shards do not cover the rows 0 to {record.rows:,} once")
    if not problems and isinstance(manifest, ExamplesManifest):
        problems = _tally_problems(manifest, tallies)
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


def _problems(root: Path, manifest: SetManifest, shard: Shard, tally: Tally) -> list[str]:
    problems = check_bytes(root, shard)
    if problems:
        return problems
    path = root / shard.path
    try:
        problem = _frame_problem(manifest, shard, path)
        if problem is None and isinstance(manifest, ExamplesManifest):
            problem = examples_problem(manifest, shard, path, tally)
        if problem is None and isinstance(manifest, TokensManifest):
            return tokens_problems(manifest, shard, path)
    except (OSError, pa.ArrowException) as error:
        problem = f"cannot be read: {error}"
    return [f"{shard.path}: {problem}"] if problem else []


def _frame_problem(manifest: SetManifest, shard: Shard, path: Path) -> str | None:
    """What is wrong with a file as far as its metadata tell."""
    if read_footer(path) != footer_of(manifest, shard):
        return "its footer belongs to another run or another range of rows"
    expected = _expected_schema(manifest)
    schema = pq.read_schema(path).remove_metadata()
    if schema != expected:
        wrong = [f.name for f in expected if f.name not in schema.names or schema.field(f.name) != f]
        return f"columns missing or of another type: {', '.join(wrong) or schema.names}"
    metadata = read_metadata(path)
    if metadata.num_rows != shard.rows:
        return f"{metadata.num_rows:,} rows, but distill.json says {shard.rows or 0:,}"
    return bomb_problem(metadata, path.stat().st_size)


def _expected_schema(manifest: SetManifest) -> pa.Schema:
    if isinstance(manifest, TokensManifest):
        return tokens_schema(manifest.codec)
    assert isinstance(manifest, ExamplesManifest)
    return examples_schema(manifest.target.num_logits, manifest.tokenizer.vocabulary_size, has_text(manifest))


def _tally_problems(manifest: ExamplesManifest, tallies: dict[str, Tally]) -> list[str]:
    """What is wrong with the splits as wholes, once every shard is sound."""
    problems = []
    for split, record in manifest.splits.items():
        absent = record.absent if isinstance(record, PartialSplit) else 0
        if tallies[split].originals != record.rows - absent:
            problems.append(
                f"split {split!r}: {tallies[split].originals:,} source rows, but distill.json says "
                f"{record.rows - absent:,}"
            )
        elif not absent and has_text(manifest) and tallies[split].rows_sha256 != record.rows_sha256:
            problems.append(f"split {split!r}: its texts and gold are not those whose hash distill.json gives")
    variants = sum(tally.variants for tally in tallies.values())
    augmentation = augmentation_of(manifest)
    if augmentation is not None and variants != augmentation.rows:
        problems.append(f"{variants:,} variants, but distill.json says {augmentation.rows:,}")
    return problems


def _chain(ranges: list[tuple[int, int]], num_rows: int) -> list[tuple[int, int]]:
    """The ranges with each start replaced by what it must be, ending at ``num_rows``."""
    stops = [stop for _, stop in ranges]
    return list(zip([0, *stops[:-1]], [*stops[:-1], num_rows], strict=True))
