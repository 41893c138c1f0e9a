"""Starting a student's vectors from those of words in a file. Shapes: N tokens that are found, D numbers each."""

from pathlib import Path

import torch
from tokenizers import Tokenizer

from pipeline import console
from pipeline.text.word_vectors import read_word_vectors
from student.model.encoder import Encoder
from student.train.token_vectors import principal_components, scaled

FLAG = "--init-vectors"


@torch.no_grad()
def start_from_words(encoder: Encoder, path: Path, tokenizer_json: str) -> None:
    """Gives a token the vector of the word that is written like it; the others stay as they are.

    Wider vectors are reduced to their principal components; of narrower ones the other columns stay as they are. All
    are brought to the deviation that the encoder's vectors start with.

    Args:
        encoder: one with vectors.
        path: the file.
        tokenizer_json: tells how tokens are written.

    Raises:
        DataError: if the file cannot be read, or no token is written like a word of it.
    """
    table = encoder.vector_table()
    assert table is not None, "asked of a student with vectors"
    ids = Tokenizer.from_str(tokenizer_json).get_vocab()
    ids = {piece: token for piece, token in ids.items() if token < table.num_embeddings and token != encoder.pad_id}
    words, vectors_ND = read_word_vectors(path, FLAG, wanted=ids.keys())
    first = {word: number for number, word in reversed(list(enumerate(words)))}
    start_ND = vectors_ND[list(first.values())].astype("float64")
    if start_ND.shape[1] > table.embedding_dim:
        start_ND = principal_components(start_ND, table.embedding_dim)
    ids_N = torch.tensor([ids[word] for word in first], device=table.weight.device)
    encoder.start_vectors(ids_N, torch.from_numpy(scaled(start_ND, encoder.start_deviation)))
    console.note(f"the vectors of {len(first):,} of {len(ids):,} tokens start from {path}")
