"""The Arrow types of the column ``label`` of sets."""

import pyarrow as pa

from pipeline.tasks.target import Target

GOLD_TYPE = pa.int32()  # the type of a row's single label
LABEL_LISTS = pa.list_(pa.int32())  # the type of a row's labels, if any number of them may hold


def gold_type(target: Target) -> pa.DataType:
    """Returns the type of the labels of a target."""
    return LABEL_LISTS if target.has_label_lists else GOLD_TYPE
