"""The page of a logit set: what it is, how good its teacher is, which rows are worth a look."""

from pathlib import Path
from typing import Any

from pipeline.console import size
from pipeline.logit_set.reader import usable_manifest
from pipeline.logit_set.record import ExamplesManifest, SetManifest, Shard, TokensManifest, augmentation_of
from pipeline.logit_set.verify import require_shards
from pipeline.query.views import columns_with_text
from pipeline.report import pictures, questions
from pipeline.report.page import Page, Section, Table, clipped
from pipeline.report.pictures import TEXTS, Connection
from pipeline.report.variants import variants_section
from pipeline.sql.gate import open_files


def set_page(root: Path, allow_unverified: bool = False) -> Page:
    """Describes a set, from its record and, for a task's, from its rows.

    Raises:
        IntegrityError: if it is not a sound set, or not verified and that is not allowed.
    """
    manifest = usable_manifest(root, SetManifest, "", allow_unverified)  # type: ignore[type-abstract]  # either kind
    about = (Section("What it is", facts=_facts(manifest)), _scores(manifest))
    if not isinstance(manifest, ExamplesManifest):
        lead = f"What {manifest.teacher.name} says about masked words: {manifest.num_rows:,} masked sequences."
        return Page("logit set of a corpus", manifest.name, lead, about)
    lead = f"What {manifest.teacher.name} says about {manifest.task.name}: {manifest.num_rows:,} rows with its logits."
    return Page("logit set", manifest.name, lead, (*about, *_row_sections(root, manifest)))


def _facts(manifest: SetManifest) -> dict[str, Any]:
    teacher, tokenizer = manifest.teacher, manifest.tokenizer
    facts: dict[str, Any] = {
        "state": manifest.state,
        "teacher": f"{teacher.name}, {teacher.num_parameters:,} parameters, weights {teacher.weights_sha256[:16]}…",
        "revision": teacher.revision,
        "precision": f"{manifest.precision}, at most {manifest.max_seq_length} tokens",
        "tokenizer": f"{tokenizer.vocabulary_size:,} words, {tokenizer.sha256[:16]}…",
        "source": manifest.source,
        "licence": manifest.licence,
        "size": f"{manifest.num_rows:,} rows, {size(manifest.num_bytes)} in {len(manifest.shards)} files",
        **_own_facts(manifest),
        "created": manifest.created,
        "command": manifest.command,
        "fingerprint": manifest.fingerprint,
        "written with": ", ".join(f"{name} {version}" for name, version in manifest.versions.items()),
        "notes": "; ".join(manifest.notes),
    }
    return {name: value for name, value in facts.items() if value}


def _own_facts(manifest: SetManifest) -> dict[str, Any]:
    """What only one kind of set has to say."""
    if isinstance(manifest, TokensManifest):
        masking, corpus = manifest.masking, manifest.corpus
        return {
            "codec": str(manifest.codec),
            "masking": f"{masking.kind}, {masking.probability:.0%}, copies: {masking.num_copies}, seed {masking.seed}",
            "sequences": f"{corpus.packing} of {corpus.name} ({corpus.language}), from {corpus.min_seq_length} tokens",
        }
    assert isinstance(manifest, ExamplesManifest)
    target = manifest.target
    names = clipped(", ".join(target.names), 400)
    return {"logits": "the score itself" if target.kind == "score" else f"{target.num_logits}: {names}"}


def _scores(manifest: SetManifest) -> Section:
    metrics = list(dict.fromkeys(name for scores in manifest.scores.values() for name in scores))
    rows = [
        (split, manifest.rows_of(split), *(manifest.scores.get(split, {}).get(name) for name in metrics))
        for split in _dev_first(manifest)
    ]
    heads = ("split", "rows", *(name.replace("_", " ") for name in metrics))
    text = "Measured against gold while the set was written. A teacher has often been trained on the train split."
    return Section("The teacher's scores", text, tables=(Table("By split", heads, rows),))


def _dev_first(manifest: SetManifest) -> list[str]:
    return sorted(manifest.splits, key=lambda split: split == "train")


def _row_sections(root: Path, manifest: ExamplesManifest) -> list[Section]:
    require_shards(root, manifest, manifest.shards)
    tables = {split: f"split_{number}" for number, split in enumerate(_dev_first(manifest))}
    views = {table: _files(root, manifest.shards_of(split)) for split, table in tables.items()}
    columns = dict.fromkeys(views, columns_with_text(manifest))
    with open_files(views, columns) as connection:
        sections = [_split(connection, table, split, manifest) for split, table in tables.items()]
        record = augmentation_of(manifest)
        if record is not None:
            sections.append(variants_section(connection, tables["train"], manifest.target, record))
    return sections


def _files(root: Path, shards: list[Shard]) -> list[Path]:
    return [root / shard.path for shard in shards]


def _split(connection: Connection, table: str, split: str, manifest: ExamplesManifest) -> Section:
    target = manifest.target
    has_gold = questions.num_gold(connection, table, target) > 0
    drawn = pictures.against_gold(connection, table, target, "teacher") if has_gold else []
    if target.kind != "score":
        drawn += pictures.certainty(connection, table, target)
    tables = []
    if target.kind != "score":
        tables.append(_hardest(connection, table, manifest))
    if has_gold:
        tables.append(
            _likely_errors(connection, table, manifest)
            if target.kind == "classes"
            else _farthest(connection, table, manifest)
        )
    text = "" if has_gold else "This split has no gold."
    return Section(f"Split {split}", text, pictures=tuple(drawn), tables=tuple(tables))


def _hardest(connection: Connection, table: str, manifest: ExamplesManifest) -> Table:
    columns = {"row": "source_row", "gold": "label", "teacher": "teacher", "margin": "margin", **TEXTS}
    if manifest.target.kind == "bins":
        del columns["gold"]
    rows = questions.hardest(connection, table)
    caption = "The rows of which the teacher is least sure: the two likeliest classes are nearly as likely."
    return pictures.row_table("Hardest rows", rows, columns, manifest.target.names, caption)


def _likely_errors(connection: Connection, table: str, manifest: ExamplesManifest) -> Table:
    columns = {
        "row": "source_row",
        "gold": "label",
        "likely": "likely",
        "p(gold)": "p_label",
        "p(likely)": "p_class",
        **TEXTS,
    }
    rows, every = questions.label_errors(connection, table)
    part = "" if every == 1 else f" Looked for in every {every:,}th row."
    caption = (
        "Rows whose gold may be wrong: the teacher finds another class likelier than it finds it on average for rows "
        f"that belong there (confident learning).{part}"
    )
    return pictures.row_table("Likely label errors", rows, columns, manifest.target.names, caption)


def _farthest(connection: Connection, table: str, manifest: ExamplesManifest) -> Table:
    columns = {"row": "source_row", "gold": "score", "teacher": "said", **TEXTS}
    rows = questions.farthest(connection, table, manifest.target)
    caption = "One of the two, gold or the teacher, is likely wrong."
    return pictures.row_table("Farthest from gold", rows, columns, (), caption)
