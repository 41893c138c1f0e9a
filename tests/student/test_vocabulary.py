"""Students that read another vocabulary than their teacher: what they read, and what needs the teacher's tokens."""

import re
import zlib
from base64 import b64decode
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError
from safetensors.torch import load
from tokenizers import Tokenizer

from pipeline.arrays import Ragged
from pipeline.errors import ConfigError
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.kinds.sentences import SentenceSet
from pipeline.sets.kinds.token_labels import TokenLabelSet
from pipeline.sets.open import LogitSet
from pipeline.text.tokenizer import bert_uncased, wordpiece
from student.data import load_examples
from student.evaluate import evaluate
from student.initial_weights.vectors import has_pretrained, pretrained_for, read_pretrained
from student.model.student import load_student
from student.run_settings import EvaluateSettings
from student.settings import TrainSettings
from student.train import train
from student.training_data import load_data
from student.vocabulary import in_vocabulary
from teacher.dumps import dump
from tests.helpers.commands import invoke
from tests.helpers.dumps import dump_config
from tests.helpers.messages import naming
from tests.helpers.students import tiny_config, weights
from tests.helpers.words import dump_entities, write_random_teacher


def spelled(logit_set: LogitSet, ids: Ragged) -> list[str]:
    """What is left of texts in tokens, without spaces."""
    names = {number: token for token, number in Tokenizer.from_str(logit_set.tokenizer_json()).get_vocab().items()}
    return ["".join(names[number].removeprefix("##") for number in row) for row in ids.lists()]


def test_the_student_does_not_read_text_that_was_truncated_for_the_teacher(work: Path, tmp_path: Path) -> None:
    # The tokens of this teacher are letters, so many more words of a text would fit for the student.
    letters = "abcdefghijklmnopqrstuvwxyz"
    wordpiece([*letters, *(f"##{letter}" for letter in letters)]).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "a.jsonl").write_text('{"split": "train", "source_row": 0, "logits": [0, 1]}')
    source = ("--manifest", work / "roles.yaml", "--data", work / "data", "--store", tmp_path, "--tokenizer", tmp_path)
    command = ("import", tmp_path / "a.jsonl", *source, "--teacher", "llm", "--name", "x", "--max-seq-length", 15)
    assert invoke(*command).exit_code == 0
    theirs = ExampleSet.open(tmp_path / "x")
    [ours] = in_vocabulary([theirs], "shipped")
    read, stored = load_examples(ours, "train"), load_examples(theirs, "train")
    assert sum(int(part.lengths.sum()) for part in stored.sequences) == 12
    for own, teachers_own in zip(read.sequences, stored.sequences, strict=True):
        assert spelled(ours, own) == spelled(theirs, teachers_own)


def test_stored_ids_are_read_if_they_are_those_of_the_student(opinion_set: ExampleSet) -> None:
    assert in_vocabulary([opinion_set], None) == [opinion_set]
    assert in_vocabulary([opinion_set], "teacher") == [opinion_set]


def test_a_learned_vocabulary_is_trained_evaluated_and_resumed(store: Path, tmp_path: Path) -> None:
    runs = [tmp_path / name for name in ("one", "two")]
    for run in runs:
        record = train(tiny_config(store / "opinion", run, vocabulary=250), "train-student")
        found = evaluate(EvaluateSettings(run=run))
        assert found["validation"]["gold"] == record["result"]["evaluation"]["validation"]["gold"]
        assert invoke("verify", run).exit_code == 0
    assert load_student(runs[0]).config.vocabulary_size <= 250
    first, second = map(weights, runs)
    assert all((first[name] == second[name]).all() for name in first)
    # A run that starts from another reads the vocabulary of that one.
    started = tiny_config(store / "opinion", tmp_path / "three", init=runs[0])
    assert train(started, "train-student")["settings"]["tokenizer_sha256"] == record["settings"]["tokenizer_sha256"]


def test_the_page_has_a_row_for_each_token_that_a_learned_vocabulary_has_in_training(
    opinion_set: ExampleSet, tmp_path: Path
) -> None:
    run, page = tmp_path / "run", tmp_path / "page.html"
    train(tiny_config(opinion_set.root, run, vocabulary=250), "train-student")
    assert invoke("export", run, "--html", page).exit_code == 0
    found = re.search(r'<script id="student"[^>]*>([^<]*)<', page.read_text())
    assert found is not None
    row_V = load(zlib.decompress(b64decode(found[1])))["row_of_token"]
    [read] = in_vocabulary([opinion_set], "250")
    used = np.unique(load_examples(read, "train").sequences[0].flat)
    padding = row_V[load_student(run).config.pad_id]
    assert (row_V != padding).nonzero().flatten().tolist() == used.tolist()


def test_tasks_of_teachers_with_two_tokenizers_share_a_vocabulary(store: Path, work: Path, tmp_path: Path) -> None:
    dump(dump_config(work, "opinion", tmp_path, max_seq_length=32), "teacher-dump")
    other = tmp_path / "opinion" / "distill.json"
    opened = [ExampleSet.open(store / "roles"), ExampleSet.open(other.parent)]
    changed = opened[1].record.tokenizer.model_copy(update={"sha256": "0" * 64})
    foreign = replace(opened[1], record=opened[1].record.model_copy(update={"tokenizer": changed}))
    assert in_vocabulary(opened, None) == opened
    hashes = {one.tokenizer.sha256 for one in in_vocabulary([opened[0], foreign], None)}
    assert len(hashes) == 1
    assert hashes.isdisjoint({opened[0].record.tokenizer.sha256, "0" * 64})


def test_each_sweep_of_a_vocabulary_reads_its_own_rows(store: Path, tmp_path: Path) -> None:
    flags = ("--matrix-size", 3, "--vector-size", 5, "--hidden-size", 8, "--num-train-epochs", 1)
    swept = ("--set", store / "opinion", "--output-dir", tmp_path, "--grid", "vocabulary=teacher,250")
    result = invoke("sweep", *swept, *flags)
    assert result.exit_code == 0, result.output
    sizes = {load_student(path.parent).config.vocabulary_size for path in tmp_path.glob("*/config.json")}
    assert len(sizes) == 2


def test_words_get_the_logits_of_the_teachers_first_token(tmp_path: Path) -> None:
    write_random_teacher(tmp_path, 400)
    opened: TokenLabelSet = dump_entities(tmp_path, token_vectors=False, max_seq_length=8)
    [own] = in_vocabulary([opened], "200")
    theirs, ours = opened.read("train"), own.read("train")
    first_W, own_W = (
        rows.pieces.by_word(np.arange(len(rows.teacher_TC)), rows.num_words_N, -1).flat for rows in (theirs, ours)
    )
    # The student reads no word that was truncated for the teacher.
    assert (first_W[own_W >= 0] >= 0).all()
    assert (first_W < 0).any()
    np.testing.assert_array_equal(ours.teacher_TC[own_W[own_W >= 0]], theirs.teacher_TC[first_W[own_W >= 0]])
    assert len(ours.teacher_TC) == len(ours.pieces.ids.flat)
    # The case of words marks names.
    assert Tokenizer.from_str(own.tokenizer_json()).normalizer.normalize_str("Paris") == "Paris"


def test_sentences_are_read_from_the_tokens_of_the_teacher(vector_store: Path, tmp_path: Path) -> None:
    opened = SentenceSet.open(vector_store / "float16")
    [own] = in_vocabulary([opened], "300")
    table = opened.read_group(opened.groups("train")[0][0])
    assert spelled(own, own.sequences(table))[:5] == spelled(opened, opened.sequences(table))[:5]
    flags = ("--matrix-size", 3, "--vector-size", 5, "--output-dir", tmp_path / "run", "--vocabulary", 300)
    result = invoke("pretrain-student", "--set", opened.root, *flags)
    assert result.exit_code == 0, result.output
    assert invoke("evaluate", tmp_path / "run").exit_code == 0


def test_what_belongs_to_the_tokens_of_the_teacher_is_refused(
    roles_vectors: ExampleSet, layers_set: ExampleSet, token_store: Path, tmp_path: Path
) -> None:
    for logit_set, flags, named in (
        (roles_vectors, {"init": "teacher"}, "--init teacher"),
        (roles_vectors, {"embedding": "bert", "init": "noise"}, "--embedding bert"),
        (layers_set, {"layer_loss": "hid-cls"}, "--layer-loss"),
    ):
        settings = TrainSettings.from_flags(set=str(logit_set.root), output_dir=tmp_path, vocabulary=300, **flags)
        with pytest.raises(ConfigError, match=naming(named, "--vocabulary teacher")):
            train(settings, "train-student")
    result = invoke("pretrain-student", "--set", token_store / "sampled", "--vocabulary", "shipped")
    assert result.exit_code == 2
    assert "--vocabulary shipped" in result.stderr


@pytest.mark.parametrize("value", ["own", "10", "1e3", "-5", "10000000"])
def test_other_values_are_refused(value: str) -> None:
    with pytest.raises((ConfigError, ValidationError), match=naming(f"{value}", "shipped")):
        TrainSettings.from_flags(set="x", vocabulary=value)


def test_learned_tokens_start_from_the_vectors_of_their_pieces(store: Path, tmp_path: Path) -> None:
    [data] = load_data(tiny_config(store / "opinion", tmp_path, vocabulary=300))
    json = data.logit_set.tokenizer_json()
    assert has_pretrained(data.logit_set)
    ids, shipped = Tokenizer.from_str(json).get_vocab(), bert_uncased()
    vectors, theirs = pretrained_for(json).vector_VW, read_pretrained().vector_VW
    for token, number in ids.items():
        known = shipped.token_to_id(token)
        pieces = shipped.encode(token.removeprefix("##"), add_special_tokens=False).ids if known is None else [known]
        np.testing.assert_allclose(vectors[number], theirs[pieces].sum(dim=0), atol=1e-6)
