"""A view on a set of tokens with a row per masked position and candidate, in words."""

from pathlib import Path

from pipeline.logit_set.codecs import CODECS
from pipeline.logit_set.manifest import TokensManifest
from pipeline.sql.gate import parquet


def token_view_sql(name: str, manifest: TokensManifest, paths: list[Path]) -> str:
    """The statement that creates the view ``name``; it needs the table ``vocabulary``.

    Columns: the key, ``position``, ``target`` (what stood there), ``candidate`` and its ``probability``.
    """
    codec = CODECS[manifest.codec.name]
    own = "".join(f", unnest({column}) as {column}" for column in codec.fields(manifest.codec))
    candidates, probabilities = codec.candidates_sql(manifest.codec)
    words = f"(select id, token from vocabulary where tokenizer = '{manifest.tokenizer.sha256}')"
    return f"""create view "{name}" as
        with by_position as (
            select split, source_row, piece, copy, unnest(positions) as position, unnest(targets) as target_id{own}
            from {parquet(paths)}
        ), by_candidate as (
            select split, source_row, piece, copy, position, target_id,
                unnest({candidates}) as candidate_id, unnest({probabilities}) as probability
            from by_position
        )
        select split, source_row, piece, copy, position, target_words.token as target, words.token as candidate,
            probability
        from by_candidate
        join {words} as target_words on target_words.id = target_id
        left join {words} as words on words.id = candidate_id
    """
