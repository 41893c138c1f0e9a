"""Reading what a teacher's layers said, by key, a batch of rows at a time; needs no torch.

What is stored stays in memory as it is stored; a batch becomes float32 when it is asked for.

Shapes: R rows of a split that the signal is of, B rows of a batch, T their tokens, H hidden size, A heads, L tokens of
a row, special ones included.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pipeline.arrays import Floats, Ints
from pipeline.errors import ConfigError, did_you_mean
from pipeline.sets.reader import ExampleSet
from pipeline.sets.record_parts import LayersName
from pipeline.sets.signals import LayerSignal
from pipeline.sets.signals.layer_signal import KEY_FIELDS, Numbers, Stored
from pipeline.sets.vector_basis import Basis
from pipeline.sets.verify_layers import num_specials, sound_rows

KEYS = [field.name for field in KEY_FIELDS[1:]]


@dataclass(frozen=True)
class LayerStore:
    """What some layers said about the rows of a split.

    Attributes:
        signal: how it is stored.
        source_row_R: int64, with the next the key of a row; ascending.
        variant_R: int64.
        length_R: int64, how many tokens the teacher read of each.
        stored: by layer, end to end.
        bases: by layer, for a codec that needs them.
    """

    signal: LayerSignal
    source_row_R: Ints
    variant_R: Ints
    length_R: Ints
    stored: Mapping[int, Stored]
    bases: Mapping[int, Basis]

    def __len__(self) -> int:
        return len(self.source_row_R)

    def places(self, source_row_N: Ints, variant_N: Ints) -> Ints:
        """For each key the number of its row here, or -1 for a row that the signal is not of [N]."""
        key = np.dtype([("row", np.int64), ("variant", np.int64)])
        here, asked = np.empty(len(self), key), np.empty(len(source_row_N), key)
        here["row"], here["variant"] = self.source_row_R, self.variant_R
        asked["row"], asked["variant"] = source_row_N, variant_N
        if not len(here):
            return np.full(len(asked), -1)
        place_N = np.searchsorted(here, asked).clip(max=len(here) - 1)
        return np.where(here[place_N] == asked, place_N, -1)

    def rows(self, layer: int, place_B: Ints, most_tokens: int | None = None) -> list[Floats]:
        """What a layer said about rows, an array of float32 each.

        Args:
            layer: its number.
            place_B: numbers of rows, as `places` gives them; none below 0.
            most_tokens: of ``states``, read the first tokens alone. (default: all)

        Returns:
            Of ``states`` [L, H], of ``cls`` [1, H], of ``attention`` and ``values`` [A, L, L].
        """
        stored, length_B = self.stored[layer], self.length_R[place_B]
        length_B = length_B if most_tokens is None else length_B.clip(max=most_tokens)
        sizes_B = self.signal.sizes(length_B)
        batch = {
            end: _taken(stored[end], (np.cumsum(size_R) - size_R)[place_B], sizes_B[end])
            for end, size_R in self.signal.sizes(self.length_R).items()
        }
        return self.signal.decode(batch, length_B, self.bases.get(layer))

    def tokens(self, layer: int, place_B: Ints) -> tuple[Floats, Ints]:
        """The states of a layer of rows, token after token: [T, H] of float32, and where each row begins, [B + 1].

        Of ``states`` and ``cls``; see `rows`.
        """
        rows = self.rows(layer, place_B)
        offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows], dtype=np.int64)])
        return np.concatenate(rows), offsets


def open_layers(logit_set: ExampleSet, name: LayersName, split: str, layers: tuple[int, ...] = ()) -> LayerStore:
    """Reads what layers said about the rows of a split, once its files have been checked.

    Args:
        logit_set: a set with the signal.
        name: of the signal.
        split: of the rows.
        layers: whose; without any all that are stored.

    Raises:
        ConfigError: if the set has not the signal, the split or a layer.
        IntegrityError: if a file is missing or was changed, or its rows cannot be right.
    """
    root, record = logit_set.root, logit_set.record
    logit_set.check_split(split)
    signal = next((signal for signal in record.signals.layer_signals if signal.name == name), None)
    if signal is None:
        raise ConfigError(f"{root}: has no {name}; repeat `{record.command}` with --{name} LAYERS")
    missing = [str(layer) for layer in layers if layer not in signal.layers]
    if missing:
        stored = [str(layer) for layer in signal.layers]
        raise ConfigError(f"{root}: no {name} of layer {missing[0]}; {did_you_mean(missing[0], stored)}")
    wanted = signal.model_copy(update={"layers": layers or signal.layers})
    keys = [np.empty((len(KEYS), 0), dtype=np.int64)]
    nothing = wanted.file_schema().empty_table()
    parts = {layer: [wanted.stored_in(nothing, layer)] for layer in wanted.layers}
    specials = num_specials(root, record)
    for number in (number for number, shard in enumerate(signal.shards) if shard.split == split):
        for rows in sound_rows(root, record, signal, number, specials, wanted.layers):
            keys.append(np.stack([rows.column(column).to_numpy().astype(np.int64) for column in KEYS]))
            for layer, found in parts.items():
                found.append(wanted.stored_in(rows, layer))
    stored_of = {layer: _joined(found) for layer, found in parts.items()}
    source_row_R, variant_R, length_R = np.concatenate(keys, axis=1)
    return LayerStore(wanted, source_row_R, variant_R, length_R, stored_of, signal.read_bases(root))


def _joined(parts: list[Stored]) -> Stored:
    return {end: np.concatenate([part[end] for part in parts]) for end in parts[0]}


def _taken(flat: Numbers, start_B: Ints, size_B: Ints) -> Numbers:
    """So many numbers from each of some places on, end to end."""
    first_B = np.cumsum(size_B) - size_B
    taken: Numbers = flat[np.repeat(start_B - first_B, size_B) + np.arange(size_B.sum())]
    return taken
