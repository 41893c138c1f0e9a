"""The initial weights of a student: another student, pretrained vectors, its teacher's, those in a file, or noise.

A teacher's token vectors follow the recipe of static embeddings (model2vec, Arora et al. 2017): principal components,
with smaller weights for frequent tokens if vectors are summed, because these would dominate a sum.

Shapes: V vocabulary, W width of the teacher's vectors, E width of the student's, K = min(W, E), N tokens in a file with
D numbers each, P pairs of neighbouring tokens of all rows, T tokens.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from torch import nn

from pipeline import console
from pipeline.arrays import Floats, Ints, Ragged
from pipeline.errors import ConfigError, IntegrityError, raise_all
from pipeline.file_names import CONFIG_FILE, WEIGHTS_FILE
from pipeline.files import sha256
from pipeline.sets.open import LogitSet
from pipeline.sets.record import SetRecord
from pipeline.sets.token_vectors import VocabularyVectors
from pipeline.text.word_vectors import read_word_vectors
from student.data import Rows
from student.encoders.aligned import AlignedEncoder
from student.encoders.encoder import Encoder
from student.encoders.kinds import ENCODERS, EncoderKind
from student.encoders.matrices import MatrixEncoder
from student.model.architecture import EncoderConfig, TaskConfig
from student.model.config_file import read_encoder_config, why_none
from student.model.flags import EmbeddingKind, Init, InitKind, Start
from student.model.student import TaskStudent
from student.model.weights import ENCODER, Tensors, read_weights
from student.pretrained.vectors import PretrainedVectors, pretrained_vocabulary, vocabulary_sha256

# Weights fit only an encoder of the same shape that reads the same token ids.
SAME = ("tokenizer_sha256", "matrix_size", "vector_size", "bidirectional", "lstm", "bert", "table_dtype")
SAME_HEAD = ("task", "target", "is_pair", "pairing", "embedding", "pooling", "bigram_size", "head", "hidden_size")
HEAD, BIGRAMS = "head.", "bigrams."


FLAG = "--init-vectors"


# This is a in a / (a + p) of Arora et al. (2017), who recommend values from 1e-4 to 1e-3.
SIF_WEIGHT = 1e-3


# A pair that occurs in one row only would memorise that row.
FEWEST_ROWS = 2
# Two ids of 32 bits fit one int64, which numpy sorts much faster than pairs.
BITS = 32


C = TypeVar("C", bound=EncoderConfig)
Doubles = npt.NDArray[np.float64]
StartVectors = VocabularyVectors | PretrainedVectors


def given_vectors(embedding: EmbeddingKind, start: Start, first: LogitSet) -> Literal["pretrained", "teacher"] | None:
    """Returns which vectors the tokens of a student of a set start from.

    Returns:
        The pretrained ones of the package, or the set's. None: neither, but noise, a run, a file, or layers.

    Raises:
        ConfigError: if the flags require vectors that the set does not have, or that have another vocabulary.
    """
    if not isinstance(start, Init):
        return None
    by_default = start.init is None and _prefers_pretrained(ENCODERS[embedding], first.record)
    if (by_default or start.init == "pretrained") and has_pretrained(first):
        return "pretrained"
    if start.init == "pretrained":
        raise ConfigError(
            f"--init pretrained: the vectors are for the vocabulary of BERT (uncased), but {first.root} has another. "
            "Leave the flag out, or use --init noise"
        )
    return "teacher" if starts_from_teacher(embedding, start.init, first.root, first.record) else None


def has_pretrained(first: LogitSet) -> bool:
    """Whether the package has vectors for the vocabulary of a set."""
    return vocabulary_sha256(first.tokenizer_json()) == pretrained_vocabulary()


def _prefers_pretrained(kind: EncoderKind, record: SetRecord) -> bool:
    """Whether an encoder starts from pretrained vectors if the vocabulary is theirs."""
    is_aligned = kind.make is AlignedEncoder
    # LSTMs keep their start, because pretrained vectors are short for frequent tokens, as sums need it.
    if "vector_size" not in kind.sizes or not (kind.sums_vectors or is_aligned):
        return False
    # The vectors were trained in sums of sentences. Where single tokens count, a set's own are better (aligned pairs,
    # docs/experiments/sentence-vectors.md) or not worse for all that is known (labelled words). Both beat noise.
    reads_tokens = is_aligned or record.kind == "token_labels"
    return not reads_tokens or record.signals.token_vectors is None


def starts_from_teacher(embedding: EmbeddingKind, init: InitKind | None, root: Path, record: SetRecord) -> bool:
    """Whether a student's vectors start from the token vectors of the set in ``root``.

    Raises:
        ConfigError: if the flags require it, but there are no token vectors.
    """
    # A BERT starts from layers, which include their own word embeddings.
    if ENCODERS[embedding].is_bert:
        return False
    has_vectors = record.signals.token_vectors is not None
    if init == "teacher" and not has_vectors:
        advice = f"Repeat its command to add them ({record.command}), or use --init noise"
        if record.teacher.is_imported:
            advice = "Its answers were imported, so use --init noise"
        raise ConfigError(f"--init teacher: {root} has no token vectors. {advice}")
    # Token vectors are the default where they exist, because they cost nothing at training time.
    return has_vectors and init != "noise" and "vector_size" in ENCODERS[embedding].sizes


def source_sha256(run: Path | None, config: EncoderConfig) -> str | None:
    """Returns the SHA-256 of the initial weights for the record of a run. None without ``run``, or for a BERT.

    Raises:
        ConfigError: if the folder contains no weights, or naming every difference of its embeddings.
        IntegrityError: if the folder holds no student.
    """
    if run is None or config.bert is not None:
        return None
    if not (run / WEIGHTS_FILE).is_file():
        raise ConfigError(f"--init-from {why_none(run / WEIGHTS_FILE)}")
    source = read_encoder_config(run / CONFIG_FILE)
    # All differences are listed at once, so that one correction of the flags is enough.
    problems = [
        f"{name} is {getattr(source, name)!r} there and {getattr(config, name)!r} here"
        for name in SAME
        if getattr(source, name) != getattr(config, name)
    ]
    if ENCODERS[source.embedding].make is not ENCODERS[config.embedding].make:
        problems.append(f"it has --embedding {source.embedding} there and {config.embedding} here")
    raise_all(ConfigError, f"--init-from {run}: its embeddings do not fit", problems)
    return sha256(run / WEIGHTS_FILE)


def copy_embeddings(run: Path, encoder: Encoder) -> None:
    """Copies the encoder of the student in ``run`` into another of the same embeddings.

    The set of bigrams does not change. Bigrams that also exist in ``run`` get its vectors.

    Raises:
        IntegrityError: if the file is damaged or contains other tables.
    """
    own = encoder.bigrams if isinstance(encoder, MatrixEncoder) else None

    def with_own_pairs(tensors: Tensors) -> Tensors:
        pairs_K2, vectors_KG = tensors.pop(f"{BIGRAMS}pairs_K2", None), tensors.pop(f"{BIGRAMS}table.weight", None)
        # A student without bigrams can start from one that has some: the sums are simply left out.
        if own is None:
            return tensors
        if pairs_K2 is not None and vectors_KG is not None:
            own.take_over(pairs_K2, vectors_KG)
        # A strict load needs every name, so the student's own pairs complete the tensors.
        return tensors | {BIGRAMS + name: tensor for name, tensor in own.state_dict().items()}

    _copy(run, ENCODER, encoder, with_own_pairs)


def has_head_for(run: Path, config: TaskConfig) -> bool:
    """Whether the student in ``run`` has a head of the same task and shape."""
    source = read_encoder_config(run / CONFIG_FILE)
    return type(source) is type(config) and all(getattr(source, n, None) == getattr(config, n, None) for n in SAME_HEAD)


def copy_head(run: Path, student: TaskStudent) -> None:
    """Copies the head of the student in ``run`` into one for which it `has_head_for`.

    Raises:
        IntegrityError: if the file is damaged or contains another head.
    """
    _copy(run, HEAD, student.head)


def _copy(run: Path, part: str, module: nn.Module, changed: Callable[[Tensors], Tensors] = dict) -> None:
    tensors = {name.removeprefix(part): tensor for name, tensor in read_weights(run, part).items()}
    try:
        with torch.no_grad():
            module.load_state_dict(changed(tensors))
    except (RuntimeError, ValueError) as error:
        raise IntegrityError(f"{run / WEIGHTS_FILE}: not the weights of a student: {error}") from error


@torch.no_grad()
def start_from_vectors(encoder: Encoder, vectors: StartVectors, chosen_V: torch.Tensor | None = None) -> None:
    """Initializes the vectors of an encoder from others, also for unused tokens. The padding stays 0.

    If they are narrower than the student's, the other columns do not change.

    Args:
        encoder: an encoder with vectors.
        vectors: the teacher's vectors, or pretrained ones.
        chosen_V: bool, the tokens to initialize. Default: all.
    """
    table = encoder.vector_table()
    assert table is not None, "only called for a student with vectors"
    how = (encoder.pad_id, encoder.start_deviation, encoder.counts_less)
    # Principal components are fitted on the whole vocabulary, so the start does not depend on the rows chosen.
    start_VK = torch.from_numpy(start_vectors(vectors, table.embedding_dim, *how))
    chosen_V = torch.ones(len(start_VK), dtype=torch.bool) if chosen_V is None else chosen_V[: len(start_VK)].cpu()
    chosen_N = chosen_V.nonzero().flatten()
    encoder.start_vectors(chosen_N.to(table.weight.device), start_VK[chosen_N])


def start_vectors(
    vectors: StartVectors,
    size: int,
    pad_id: int,
    deviation: float = Encoder.start_deviation,
    counts_less: bool = True,
) -> Floats:
    """The initial vectors of a student.

    Args:
        vectors: the teacher's vectors, with the counts of the training rows, or pretrained ones.
        size: E.
        pad_id: the token whose row is 0. It may be past the vocabulary.
        deviation: standard deviation of all numbers together.
        counts_less: whether frequent tokens get shorter vectors. Pretrained ones stay as they are.

    Returns:
        start_VK: float32, the first K principal components, times the SIF weights if so. Of pretrained vectors, the
            first K columns.
    """
    if isinstance(vectors, PretrainedVectors):
        start_VK = vectors.vector_VW[:, :size].double().numpy()
    else:
        start_VK = principal_components(vectors.vector_VW.astype(np.float64), size)
        if counts_less:
            # Frequent tokens carry little meaning but would dominate a sum. An LSTM learns such weights itself.
            start_VK *= sif_weights(vectors.count_V)[:, None]
    # The padding must stay neutral. The slice does nothing if the token lies beyond the teacher's vocabulary.
    start_VK[pad_id : pad_id + 1] = 0
    return scaled(start_VK, deviation)


def scaled(start_NK: Doubles, deviation: float) -> Floats:
    """Returns vectors scaled to a standard deviation of all their numbers, float32. Zeros stay zeros."""
    theirs = start_NK.std()
    return (start_NK * (deviation / theirs if theirs else 0)).astype(np.float32)


def principal_components(vector_VW: Doubles, size: int) -> Doubles:
    """Returns the coordinates of vectors along their principal axes, float64 [V, K], the largest variance first.

    The largest number of an axis is positive, so that the same vectors give the same table on every machine.
    """
    return onto_axes(vector_VW - vector_VW.mean(axis=0), size)


def onto_axes(vector_VW: Doubles, size: int) -> Doubles:
    """Like `principal_components`, but from the origin instead of the mean."""
    # The product has W² numbers whatever the vocabulary's size, so `eigh` is faster than an SVD.
    _, axes_WW = np.linalg.eigh(vector_VW.T @ vector_VW)
    axes_WK = axes_WW[:, ::-1][:, :size]
    # An eigenvector's sign is arbitrary and differs between LAPACK builds.
    largest_K = np.abs(axes_WK).argmax(axis=0)
    component_VK: Doubles = vector_VW @ (axes_WK * np.sign(np.take_along_axis(axes_WK, largest_K[None], axis=0)))
    return component_VK


def sif_weights(count_V: Ints) -> Doubles:
    """Returns the smooth inverse frequency a / (a + p) of each token [V], with p from its count plus one."""
    # One is added so that tokens without occurrences get a finite weight.
    p_V = (count_V + 1) / (count_V + 1).sum()
    weight_V: Doubles = SIF_WEIGHT / (SIF_WEIGHT + p_V)
    return weight_V


@torch.no_grad()
def start_from_words(encoder: Encoder, path: Path, tokenizer_json: str) -> None:
    """Initializes tokens with the vectors of words that are written like them. Other tokens do not change.

    Wider vectors are reduced to their principal components. For narrower vectors, the other columns do not change. All
    are scaled to the initial deviation of the encoder's vectors.

    Args:
        encoder: an encoder with vectors.
        path: the file.
        tokenizer_json: the tokenizer, with the spelling of each token.

    Raises:
        DataError: if the file cannot be read, or no token is written like a word of it.
    """
    table = encoder.vector_table()
    assert table is not None, "only called for a student with vectors"
    ids = Tokenizer.from_str(tokenizer_json).get_vocab()
    ids = {piece: token for piece, token in ids.items() if token < table.num_embeddings and token != encoder.pad_id}
    words, vectors_ND = read_word_vectors(path, FLAG, wanted=ids.keys())
    # Files may list a word twice. Reading backwards keeps its first entry, since files list frequent words first.
    first = {word: number for number, word in reversed(list(enumerate(words)))}
    start_ND = vectors_ND[list(first.values())].astype("float64")
    # Principal components lose the least variance for a given size.
    if start_ND.shape[1] > table.embedding_dim:
        start_ND = principal_components(start_ND, table.embedding_dim)
    ids_N = torch.tensor([ids[word] for word in first], device=table.weight.device)
    encoder.start_vectors(ids_N, torch.from_numpy(scaled(start_ND, encoder.start_deviation)))
    console.note(f"the vectors of {len(first):,} of {len(ids):,} tokens start from {path}")


def frequent_pairs(examples: Iterable[Rows], most: int) -> Ints:
    """Returns the pairs of neighbouring tokens that occur in the most training rows, at least in two.

    Args:
        examples: training rows, of several tasks if they share the pairs. Rows of weight 0 do not count.
        most: the maximum number of pairs.

    Returns: Ids, int64 [K, 2], ascending.
    """
    if not most:
        return np.zeros((0, 2), np.int64)
    pair_K, count_K = np.unique(np.concatenate([_pairs_of_rows(rows) for rows in examples]), return_counts=True)
    # Ties are broken by the pair's number, so that the same rows give the same pairs everywhere.
    kept = np.argsort(-count_K, kind="stable")[:most]
    pair_K = np.sort(pair_K[kept[count_K[kept] >= FEWEST_ROWS]])
    return np.stack([pair_K >> BITS, pair_K & (2**BITS - 1)], axis=1)


def with_bigrams(config: C, count: int) -> C:
    """Returns a student's configuration with the number of found pairs."""
    return config.model_copy(update={"num_bigrams": count, "bigram_size": config.bigram_size if count else 0})


def _pairs_of_rows(examples: Rows) -> Ints:
    """Each row's pairs, each once, as one number, int64 [P]."""
    # A row of weight 0 trains nothing, so its pairs would keep vectors of 0.
    counted = np.flatnonzero(examples.weight_N)
    pairs_P2 = np.concatenate([_pairs(part.take(counted)) for part in examples.sequences])
    # Counting rows instead of occurrences keeps one long, repetitive text from deciding.
    return np.unique(pairs_P2, axis=0)[:, 1]


def _pairs(ids: Ragged) -> Ints:
    """Returns the row of each pair, and its two tokens as one number, int64 [P, 2]."""
    row_T = np.repeat(np.arange(len(ids.lengths)), ids.lengths)
    first_P = np.flatnonzero(row_T[1:] == row_T[:-1])
    return np.stack([row_T[first_P], ids.flat[first_P] << BITS | ids.flat[first_P + 1]], axis=1)
