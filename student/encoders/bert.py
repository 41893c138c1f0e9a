"""BERT (Devlin et al. 2019) without its teacher's libraries. Parameters have Hugging Face's names.

Shapes: N sequences, L tokens of the longest, T tokens of all of them end to end, S = N + 1 starts, H width, A heads, D
= H / A, Q requested tokens, B batch.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.devices import has_fast_bf16
from student.encoders.encoder import Encoder
from student.encoders.products import SparseGrads, embedding_rows
from student.encoders.specs import Bert
from student.model.architecture import StudentConfig

# The states of more tokens than this, padding included, do not fit a processor's caches.
PADDED_TOKENS = 2**13


@dataclass
class LayerOutputs:
    """The outputs of a BERT's layers.

    Attributes:
        is_token_NL: which positions of ``scores`` and ``values`` are tokens and not padding.
        states: [T, H] each, without padding: the input of the first layer, and the output of each layer.
        scores: [N, A, L, L] for each layer: q k / sqrt(D), before masking and softmax.
        values: [N, A, L, D] for each layer.
    """

    is_token_NL: Tensor
    states: list[Tensor] = field(default_factory=list)
    scores: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)


class Closing(nn.Module):
    """The end of both halves of a layer: Linear, dropout, and LayerNorm of the sum with the half's input."""

    def __init__(self, num_inputs: int, width: int, eps: float, dropout: float) -> None:
        super().__init__()
        self.dense = nn.Linear(num_inputs, width)
        # The attribute's spelling is Hugging Face's, so that weights load without a table of names.
        self.LayerNorm = nn.LayerNorm(width, eps=eps)
        self.dropout = nn.Dropout(dropout)

    def forward(self, numbers: Tensor, begun: Tensor) -> Tensor:
        """Returns a tensor of the shape of ``begun``."""
        return self.LayerNorm(self.dropout(self.dense(numbers)) + begun)  # type: ignore[no-any-return]


class BertLayer(nn.Module):
    """Attention between tokens, and an MLP on each token. A LayerNorm follows both."""

    def __init__(self, spec: Bert, dropout: float) -> None:
        super().__init__()
        width, eps = spec.vector_size, spec.layer_norm_eps
        self.num_heads, self.dropout = spec.num_attention_heads, dropout
        projections = nn.ModuleDict({name: nn.Linear(width, width) for name in ("query", "key", "value")})
        closing = Closing(width, width, eps, dropout)
        self.attention = nn.ModuleDict({"self": projections, "output": closing})
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(width, spec.inner_size)})
        self.output = Closing(spec.inner_size, width, eps, dropout)

    def forward(
        self, states_NLH: Tensor, asked_NQH: Tensor, is_token_NL: Tensor, told: LayerOutputs | None = None
    ) -> Tensor:
        """Returns the new states of some tokens.

        Args:
            states_NLH: the states of all tokens.
            asked_NQH: the states of the tokens whose new states are requested.
            is_token_NL: which positions are not padding.
            told: the list that receives scores and values.

        Returns:
            float32 [N, Q, H].
        """
        query_NAQD, key_NALD, value_NALD = self._projected(states_NLH, asked_NQH)
        mask, rate = is_token_NL[:, None, None], self.dropout if self.training else 0.0
        # The fused attention never exposes its scores, so layers that are compared compute them step by step.
        if told is None:
            mixed_NAQD = functional.scaled_dot_product_attention(
                query_NAQD, key_NALD, value_NALD, attn_mask=mask, dropout_p=rate
            )
        else:
            # In bfloat16 the rounding of scores would be larger than the differences that the loss measures.
            with torch.autocast(value_NALD.device.type, enabled=False):
                query_NAQD, key_NALD, value_NALD = query_NAQD.float(), key_NALD.float(), value_NALD.float()
                scores_NAQL = query_NAQD @ key_NALD.mT / math.sqrt(query_NAQD.shape[-1])
                share_NAQL = scores_NAQL.masked_fill(~mask, -torch.inf).softmax(dim=-1)
                mixed_NAQD = functional.dropout(share_NAQL, rate) @ value_NALD
            # The stored scores are from before the softmax and before masking, as Att-MSE and Att-KL need them.
            told.scores.append(scores_NAQL)
            told.values.append(value_NALD)
        attended_NQH = self.attention["output"](mixed_NAQD.transpose(1, 2).flatten(2), asked_NQH)
        return self.output(functional.gelu(self.intermediate["dense"](attended_NQH)), attended_NQH)  # type: ignore[no-any-return]

    def _projected(self, states_NLH: Tensor, asked_NQH: Tensor) -> Iterator[Tensor]:
        projections = self.attention["self"]
        assert isinstance(projections, nn.ModuleDict)
        # Only the requested tokens need queries, but all tokens need keys and values.
        for name, read in (("query", asked_NQH), ("key", states_NLH), ("value", states_NLH)):
            yield projections[name](read).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)


class BertEmbeddings(nn.Module):
    """The sum of the embeddings of a token, its position, and its sentence's number."""

    def __init__(self, spec: Bert, config: StudentConfig) -> None:
        super().__init__()
        width = spec.vector_size
        self.word_embeddings = nn.Embedding(config.num_tokens, width, padding_idx=config.pad_id)
        self.position_embeddings = nn.Embedding(spec.max_position_embeddings, width)
        self.token_type_embeddings = nn.Embedding(spec.type_vocab_size, width)
        self.LayerNorm = nn.LayerNorm(width, eps=spec.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout)
        self.separator_id = config.separator_id if spec.type_vocab_size > 1 else None

    def forward(self, words_NLH: Tensor, ids_NL: Tensor) -> Tensor:
        """Returns float32 [N, L, H] from the rows of the words, which may be 0 for padding."""
        types = self.token_type_embeddings.weight[0]
        if self.separator_id is not None:
            is_separator_NL = ids_NL == self.separator_id
            # The first separator belongs to the first sentence, which the comparison with itself excludes.
            is_second_NL = is_separator_NL.cumsum(1) > is_separator_NL.long()
            types = self.token_type_embeddings(is_second_NL.long())
        sum_NLH = words_NLH + types + self.position_embeddings.weight[: ids_NL.shape[1]]
        return self.dropout(self.LayerNorm(sum_NLH))  # type: ignore[no-any-return]


class BertEncoder(Encoder):
    """The features of a token are its last state.

    Those of a sequence are the pooler's output, tanh of a Linear, for its first token.

    With the pooler ``mean-cls``, the features of a sequence are the mean of that token's states over the layers (MKD,
    Liu et al. 2020). Sequences are read with the tokenizer's special tokens. The second sentence of a pair begins after
    the first separator. An empty sequence is read as a single padding token.
    """

    has_neutral_rows = False

    def __init__(self, config: StudentConfig) -> None:
        super().__init__()
        spec = config.encoder
        assert isinstance(spec, Bert), type(spec)
        self.pad_id, self.spec = config.pad_id, spec
        self.size = self.token_size = width = spec.vector_size
        self.embeddings = BertEmbeddings(spec, config)
        layers = (BertLayer(spec, config.hidden_dropout) for _ in range(spec.num_hidden_layers))
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(layers)})
        self.pooler = None if spec.pooler == "mean-cls" else nn.ModuleDict({"dense": nn.Linear(width, width)})
        self._start_from_noise(spec.initializer_range)

    @torch.no_grad()
    def _start_from_noise(self, deviation: float) -> None:
        for part in self.modules():
            if isinstance(part, nn.Linear | nn.Embedding):
                part.weight.normal_(std=deviation)
            if isinstance(part, nn.Linear):
                part.bias.zero_()
        self.embeddings.word_embeddings.weight[self.pad_id] = 0

    def reduce(self, ids_T: Tensor, starts_S: Tensor, sparse_grads: SparseGrads | None = None) -> Tensor:
        """See `Encoder`."""
        # Training keeps the batch as it is. Inference regroups sequences by length, which a gradient buffer cannot
        # follow.
        if torch.is_grad_enabled():
            ids_NL, words_NLH, _ = self._padded(ids_T, starts_S, sparse_grads)
            return self._pooled(words_NLH, ids_NL)
        features_NF = self.embeddings.word_embeddings.weight.new_empty(len(starts_S) - 1, self.size)
        for chosen, ids_NL in _of_like_length(ids_T, starts_S, self.pad_id):
            features_NF[chosen] = self._pooled(self.embeddings.word_embeddings(ids_NL), ids_NL)
        return features_NF

    def scan(self, ids_T: Tensor, starts_S: Tensor, sparse_grads: SparseGrads | None = None) -> Tensor:
        """See `Encoder`."""
        ids_NL, words_NLH, is_inside_NL = self._padded(ids_T, starts_S, sparse_grads)
        is_token_NL, states_NLH = self._is_token(ids_NL), self.embeddings(words_NLH, ids_NL)
        with self._arithmetic():
            for layer in self._layers():
                states_NLH = layer(states_NLH, states_NLH, is_token_NL)
        return states_NLH[is_inside_NL]  # type: ignore[no-any-return]

    def layers(self, ids_T: Tensor, starts_S: Tensor, sparse_grads: SparseGrads | None = None) -> LayerOutputs:
        """Returns the outputs of every layer. See `reduce` for the arguments."""
        ids_NL, words_NLH, is_inside_NL = self._padded(ids_T, starts_S, sparse_grads)
        told, states_NLH = LayerOutputs(self._is_token(ids_NL)), self.embeddings(words_NLH, ids_NL)
        told.states.append(states_NLH[is_inside_NL])
        for layer in self._layers():
            with self._arithmetic():
                states_NLH = layer(states_NLH, states_NLH, told.is_token_NL, told)
            told.states.append(states_NLH[is_inside_NL])
        return told

    def pooled(self, firsts: Sequence[Tensor]) -> Tensor:
        """Pools the first tokens' states [N, H] after each layer to features_NF, the result of `reduce`."""
        # MKD's BERT student averages the first token's states over its layers (Liu et al. 2020).
        if self.pooler is None:
            return torch.stack(list(firsts)).mean(dim=0)
        return self.pooler["dense"](firsts[-1]).tanh()  # type: ignore[no-any-return]

    def tables(self) -> list[nn.Embedding]:
        """See `Encoder`.

        The tables of positions and sentence numbers are normal parameters, because their rows are not tokens.
        """
        return [self.embeddings.word_embeddings]

    @property
    def multiply_adds(self) -> int:
        """See `Encoder`. The last layer only needs keys and values, and their use by the first token."""
        # The last layer computes the first token alone, so most of its cost is per input and not per token.
        whole, width = self.spec.num_of_layers // self.spec.num_hidden_layers, self.size
        return (self.spec.num_hidden_layers - 1) * whole + 2 * width**2 + 2 * width

    @property
    def multiply_adds_per_input(self) -> int:
        """See `Encoder`. The remaining part of the last layer, and the pooler."""
        matrices = 2 if self.pooler is None else 3
        return matrices * self.size**2 + 2 * self.size * self.spec.inner_size

    @property
    def multiply_adds_per_pair(self) -> int:
        """See `Encoder`. Attention, without that of the last layer."""
        return (self.spec.num_hidden_layers - 1) * 2 * self.size

    def export_problems(self, longest: int) -> list[str]:
        """None."""
        return []

    def exported(self, ids_BL: Tensor, longest: int) -> Tensor:
        """See `Encoder`. The padding is at the end."""
        return self._pooled(self.embeddings.word_embeddings(ids_BL), ids_BL)

    def _arithmetic(self) -> torch.autocast:
        """Uses bfloat16 for the layers' matrix products during training, on machines with fast bfloat16."""
        device = self.embeddings.word_embeddings.weight.device.type
        # Evaluation stays in float32, so that scores do not depend on the machine.
        return torch.autocast(device, torch.bfloat16, enabled=self.training and has_fast_bf16())

    def _layers(self) -> nn.ModuleList:
        layers = self.encoder["layer"]
        assert isinstance(layers, nn.ModuleList)
        return layers

    def _padded(
        self, ids_T: Tensor, starts_S: Tensor, sparse_grads: SparseGrads | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns padded ids_NL, the words' rows [N, L, H] with zeros for padding, and the mask of tokens."""
        # Rows are looked up before padding, so that the sparse gradients have one row per real token.
        words_TH = embedding_rows(self.embeddings.word_embeddings.weight, ids_T, self.pad_id, sparse_grads)
        lengths_N = starts_S.diff()
        position_L = torch.arange(max(1, int(lengths_N.max())), device=ids_T.device)
        is_inside_NL = position_L < lengths_N.unsqueeze(1)
        ids_NL = ids_T.new_full(is_inside_NL.shape, self.pad_id)
        ids_NL[is_inside_NL] = ids_T
        words_NLH = words_TH.new_zeros(*is_inside_NL.shape, self.size)
        words_NLH[is_inside_NL] = words_TH
        return ids_NL, words_NLH, is_inside_NL

    def _is_token(self, ids_NL: Tensor) -> Tensor:
        """Returns bool [N, L]. The first position always counts as a token, so that attention is defined."""
        # A softmax over padding alone would be NaN, so an empty sequence attends to its first padding.
        return (ids_NL != self.pad_id) | (torch.arange(ids_NL.shape[1], device=ids_NL.device) == 0)

    def _pooled(self, words_NLH: Tensor, ids_NL: Tensor) -> Tensor:
        """Returns features_NH. The last layer computes only the first token."""
        *layers, last = self._layers()
        is_token_NL, states_NLH = self._is_token(ids_NL), self.embeddings(words_NLH, ids_NL)
        firsts = []
        with self._arithmetic():
            for layer in layers:
                states_NLH = layer(states_NLH, states_NLH, is_token_NL)
                firsts.append(states_NLH[:, 0])
            # The head reads only the first token, so the last layer skips the queries of all others.
            firsts.append(last(states_NLH, states_NLH[:, :1], is_token_NL)[:, 0])
        return self.pooled(firsts)


def _of_like_length(ids_T: Tensor, starts_S: Tensor, pad_id: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields the numbers of sequences of similar lengths, and their padded ids_NL."""
    lengths_N, padding = starts_S.diff(), ids_T.new_tensor([pad_id])
    # The padding is appended, so that index -1 reads it for every position beyond a sequence's end.
    read_T, order_N = torch.cat([ids_T, padding]), lengths_N.argsort(descending=True)
    longest_N = lengths_N[order_N].tolist()
    start = 0
    while start < len(longest_N):
        longest = max(1, longest_N[start])
        chosen_N = order_N[start : start + max(1, PADDED_TOKENS // longest)]
        start += len(chosen_N)
        position_L = torch.arange(longest, device=ids_T.device)
        is_inside_NL = position_L < lengths_N[chosen_N].unsqueeze(1)
        place_NL = starts_S[chosen_N].unsqueeze(1) + position_L
        yield chosen_N, read_T[torch.where(is_inside_NL, place_NL, -1)]
