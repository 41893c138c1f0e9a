"""The one rule for "the same input": copies are texts that differ only in capitals, spaces and invisible marks.

Most tokenizers remove these differences, so a student reads both texts alike. The macro `plain_text` in
``pipeline/sql/analyses.sql`` is the same rule for queries.
"""

import pyarrow as pa
import pyarrow.compute as pc

INVISIBLE = r"\p{Cf}"  # such as zero-width spaces and byte order marks
SPACES = r"[\p{Z}\p{Cc}]+"  # spaces of all kinds, tabs, line breaks and control characters


def plain_texts(texts: pa.Array) -> pa.Array:
    """Returns texts, or lists of words as texts, in NFC and lower case, with one space between words.

    Invisible marks are removed.
    """
    is_list = pa.types.is_list(texts.type) or pa.types.is_large_list(texts.type)
    texts = pc.binary_join(texts, " ") if is_list else texts.cast(pa.string())
    # DuckDB uses the same libraries as Arrow for each step, utf8proc and RE2, so both give the same texts.
    spaced = pc.replace_substring_regex(pc.replace_substring_regex(texts, INVISIBLE, ""), SPACES, " ")
    return pc.utf8_trim(pc.utf8_lower(pc.utf8_normalize(spaced, form="NFC")), " ")


def input_keys(rows: pa.Table) -> pa.Array:
    """Returns a key of each row that is equal for copies of an input. Null for rows without text and for empty texts.

    Args:
        rows: with the columns ``sentence1`` and ``sentence2``, of texts or of lists of words.
    """
    columns = [rows.column(name).combine_chunks() for name in ("sentence1", "sentence2") if name in rows.column_names]
    texts = [column for column in columns if column.null_count < len(column)]
    if not texts:
        return pa.nulls(rows.num_rows, pa.string())
    # A plain text has no line break, so the key keeps ("ab", "c") and ("a", "bc") apart.
    keys = pc.binary_join_element_wise(*map(plain_texts, texts), "\n")
    return pc.if_else(pc.equal(pc.utf8_trim_whitespace(keys), ""), None, keys)
