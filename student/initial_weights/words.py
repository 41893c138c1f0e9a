"""Token vectors of a student that start from a text file of word vectors.

Shapes: N tokens in a file with D numbers each.
"""

from pathlib import Path

import torch
from tokenizers import Tokenizer

from pipeline import console
from pipeline.text.word_vectors import read_word_vectors
from student.encoders.encoder import Encoder
from student.initial_weights.teacher import principal_components, scaled

FLAG = "--init"


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
