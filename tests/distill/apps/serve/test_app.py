import asyncio
import json
import re
import shutil
from base64 import b64encode
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from starlette.types import Message, Receive, Scope, Send

from distill.apps.app_settings import ServeSettings
from distill.apps.serve import batches
from distill.apps.serve.app import App, page
from distill.apps.serve.prometheus import Metrics
from distill.apps.serve.served import Served, name_of, names_of, open_served
from pipeline.errors import ConfigError
from pipeline.file_names import STUDENT_FILE
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.tasks.target import softmax
from student.encoders.matrices import matrix_encoder
from student.export.export import export
from student.predict.predictor import Predictor
from student.run_settings import ExportSettings
from tests.helpers.asgi import Answered, ask, asking
from tests.helpers.engine import needs_engine
from tests.helpers.messages import naming

TEXT = "the food was lovely ."
PAIR = ["anna paid ben .", "ben was paid by anna ."]
PATHS = ("/", "/predict", "/tasks", "/embed", "/teacher")
LIMITS = {"max_client_batch_size": 3, "payload_limit": 2000, "max_concurrent_requests": 2}


@pytest.fixture(scope="module")
def app(opinion_run: Path, roles_run: Path, tmp_path_factory: pytest.TempPathFactory) -> App:
    """The student of opinions, and under its name that of roles; with small limits."""
    folder = tmp_path_factory.mktemp("served")
    runs = {"opinion": opinion_run, "roles": roles_run}
    metrics, config = Metrics(1), ServeSettings(runs=tuple(runs), **LIMITS)
    return App({n: Served(shutil.copytree(run, folder / n), metrics) for n, run in runs.items()}, config, metrics)


ORIGIN = "https://example.org"


def app_for(origins: tuple[str, ...], run: Path) -> App:
    metrics, config = Metrics(1), ServeSettings(runs=(str(run),), cors_allow_origin=origins)
    return App({"opinion": Served(run, metrics)}, config, metrics)


def test_pages_of_allowed_origins_get_answers_and_refusals(opinion_run: Path) -> None:
    app = app_for((ORIGIN, "null"), opinion_run)
    for origin in (ORIGIN, "null"):
        for body, status in (({"inputs": TEXT}, 200), ({"inputs": 3}, 422)):
            answer = ask(app, "POST", "/predict", body, {"origin": origin})
            assert (answer.status, answer.headers["access-control-allow-origin"]) == (status, origin)
    other = ask(app, "POST", "/predict", {"inputs": TEXT}, {"origin": "https://example.com"})
    assert (other.status, "access-control-allow-origin" in other.headers) == (200, False)


def test_a_browser_may_ask_first_what_it_may_send(opinion_run: Path) -> None:
    asked = {
        "origin": ORIGIN,
        "access-control-request-method": "POST",
        "access-control-request-headers": "content-type, authorization",
    }
    answer = ask(app_for((ORIGIN,), opinion_run), "OPTIONS", "/predict", b"", asked)
    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert {"content-type", "authorization"} <= set(answer.headers["access-control-allow-headers"].lower().split(", "))
    assert ask(app_for((ORIGIN,), opinion_run), "OPTIONS", "/predict", b"", asked | {"origin": "null"}).status == 400


def test_any_origin_or_none(opinion_run: Path) -> None:
    origin = {"origin": ORIGIN}
    answer = ask(app_for(("*",), opinion_run), "GET", "/health", b"", origin)
    assert answer.headers["access-control-allow-origin"] == "*"
    silent = ask(app_for((), opinion_run), "GET", "/health", b"", origin)
    assert "access-control-allow-origin" not in silent.headers


@pytest.mark.parametrize("wrong", ["example.org", "https://example.org/", "https://", "http://a b", "https://*/x"])
def test_what_is_no_origin_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match=naming("--cors-allow-origin")):
        ServeSettings.from_flags(runs=("run",), cors_allow_origin=(ORIGIN, wrong))


def post(app: App, path: str, inputs: object, **others: object) -> Answered:
    return ask(app, "POST", path, {"inputs": inputs} | others)


def ranked(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The prediction of `Predictor` for a text, as clients get it."""
    labels = sorted(result["probabilities"].items(), key=lambda item: -item[1])
    return [{"score": pytest.approx(score, abs=1e-6), "label": label} for label, score in labels]


def test_predict_says_what_the_predictor_says(app: App, opinion_run: Path) -> None:
    texts = [TEXT, "the wine was awful .", "xylophone"]
    expected = [ranked(result) for result in Predictor(opinion_run)(texts)]
    assert post(app, "/predict", TEXT).json == expected[0]
    assert post(app, "/predict", [TEXT]).json == expected[0]
    assert post(app, "/predict", [[text] for text in texts]).json == expected
    raw = {one["label"]: one["score"] for one in post(app, "/predict", TEXT, raw_scores=True).json}
    (logits,) = Predictor(opinion_run).logits([TEXT])
    assert [*raw.values()] == sorted(raw.values(), reverse=True)
    assert sorted(raw.values()) == pytest.approx(sorted(logits.tolist()), abs=1e-5)


@pytest.fixture(scope="module")
def several(together: Path) -> App:
    """Three students of one run."""
    metrics = Metrics(1)
    students = open_served(together, metrics)
    return App({one.name: one for one in students}, ServeSettings(runs=(str(together),), **LIMITS), metrics)


def test_several_tasks_answer_at_once(several: App) -> None:
    alone = {name: post(several, f"/runs/{name}/predict", TEXT).json for name in ("opinion", "score")}
    assert post(several, "/tasks", TEXT).json == {name: approximately(one) for name, one in alone.items()}
    first, _ = post(several, "/runs/score/tasks", [[TEXT], ["xylophone"]]).json
    assert first == {name: approximately(one) for name, one in alone.items()}  # two rows are summed in another order
    assert list(post(several, "/tasks", PAIR).json) == ["roles"]
    assert list(post(several, "/tasks", TEXT, tasks=["score", "opinion"]).json) == ["score", "opinion"]
    raw = post(several, "/tasks", TEXT, raw_scores=True).json["opinion"]
    assert raw == approximately(post(several, "/runs/opinion/predict", TEXT, raw_scores=True).json)


def approximately(ranking: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one | {"score": pytest.approx(one["score"], abs=1e-6)} for one in ranking]


@pytest.mark.parametrize(
    ("inputs", "tasks", "status"),
    [
        (TEXT, ["opinions"], 422),
        (TEXT, ["roles"], 422),
        (PAIR, ["score"], 422),
        ([], None, 400),
        ([[TEXT], PAIR], None, 422),
    ],
)
def test_tasks_that_do_not_fit_are_refused(several: App, inputs: object, tasks: object, status: int) -> None:
    assert post(several, "/tasks", inputs, tasks=tasks).status == status


def test_a_student_alone_is_one_task(app: App) -> None:
    assert post(app, "/runs/roles/tasks", PAIR).json == {"roles": post(app, "/runs/roles/predict", PAIR).json}
    assert post(app, "/tasks", PAIR).status == 422


@needs_engine
def test_a_file_of_several_tasks_has_no_teacher_and_needs_none(
    together: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export(ExportSettings(run=together, file=tmp_path / "x.distill"))
    capsys.readouterr()
    students = open_served(tmp_path / "x.distill", Metrics(1))
    assert [one.name for one in students] == ["opinion", "roles", "score"]
    assert capsys.readouterr().err == ""


def test_the_server_names_tasks_by_their_folders(together: Path, opinion_run: Path) -> None:
    assert names_of(together) == ["opinion", "roles", "score"]
    assert names_of(opinion_run) == [opinion_run.name]


def test_pairs_are_for_the_student_that_takes_them(app: App, roles_run: Path) -> None:
    (expected,) = Predictor(roles_run)(PAIR[:1], PAIR[1:])
    assert post(app, "/runs/roles/predict", PAIR).json == ranked(expected)
    assert post(app, "/runs/roles/predict", [PAIR, PAIR]).json == [ranked(expected)] * 2
    assert post(app, "/runs/roles", {"text": PAIR[0], "text_pair": PAIR[1]}).json == [ranked(expected)]
    assert post(app, "/predict", PAIR).status == 422
    assert post(app, "/runs/roles/predict", TEXT).status == 422


def test_the_hub_gets_a_list_of_lists(app: App, opinion_run: Path) -> None:
    first, second = (ranked(result) for result in Predictor(opinion_run)([TEXT, "dull ."]))
    assert post(app, "/", TEXT).json == [first]
    assert post(app, "/", [TEXT, "dull ."]).json == [first, second]
    assert post(app, "/", TEXT, parameters={"top_k": 1, "function_to_apply": None}).json == [first[:1]]


def test_vectors_are_those_of_the_encoder(app: App, opinion_run: Path) -> None:
    predictor = Predictor(opinion_run)
    (whole,) = post(app, "/embed", TEXT, normalize=False).json
    weight = matrix_encoder(predictor.student.encoder).parts()[0].table.weight
    ids = predictor.reader.tokenizer.encode(TEXT, add_special_tokens=False).ids
    assert whole[:5] == pytest.approx(weight[ids].sum(dim=0).tolist(), abs=1e-5)  # the sum of vectors
    unit, other = np.array(post(app, "/embed", [TEXT, "dull ."]).json)
    np.testing.assert_allclose(unit, np.array(whole) / np.linalg.norm(whole), atol=1e-6)
    assert np.linalg.norm(other) == pytest.approx(1, abs=1e-5)


def test_long_texts_are_cut_unless_the_client_will_not_have_it(app: App) -> None:
    fits, long = (" ".join(["food"] * words) for words in (30, 31))  # and two special tokens; 32 are read
    assert post(app, "/predict", long).json == post(app, "/predict", fits).json
    assert post(app, "/predict", fits, truncate=False).status == 200
    refused = post(app, "/predict", long, truncate=False)
    assert (refused.status, refused.json["error_type"]) == (413, "Validation")
    assert "32 tokens" in refused.json["error"]


def test_the_teacher_is_told_where_it_was_asked(app: App, opinion_set: ExampleSet, roles_set: ExampleSet) -> None:
    for prefix, logit_set in (("", opinion_set), ("/runs/roles", roles_set)):
        row = logit_set.read("validation", ("sentence1", "sentence2", "logits"), "variant = 0").slice(7, 1)
        text = [row["sentence1"][0].as_py(), row["sentence2"][0].as_py()]
        sentences = [one for one in text if one is not None]
        never = ["never seen"] * len(sentences)
        found, missing = post(app, f"{prefix}/teacher", [sentences, never]).json
        expected = softmax(np.array([row["logits"][0].as_py()]))[0]
        told = {one["label"]: one["score"] for one in found}
        assert [told[name] for name in logit_set.record.target.names] == pytest.approx(expected.tolist(), abs=1e-6)
        assert missing is None


@pytest.mark.parametrize(
    ("path", "body", "status", "kind", "message"),
    [
        ("/predict", b"{", 400, "Validation", "JSON"),
        ("/predict", {"inputs": []}, 400, "Empty", "`inputs`"),
        ("/predict", {"inputs": [["a"]] * 4}, 413, "Validation", "4"),
        ("/predict", {"inputs": "a" * 2000}, 413, "Validation", "2,000 bytes"),
        ("/embed", {"inputs": [["a"]]}, 422, "Validation", "`inputs`"),
        ("/predikt", {"inputs": "a"}, 404, "Validation", "'/predict'"),
        ("/runs/opinions/predict", {"inputs": "a"}, 404, "Validation", "'opinion'"),
        ("/health", {"inputs": "a"}, 405, "Validation", "/health"),
    ],
)
def test_refusals_say_why(app: App, path: str, body: object, status: int, kind: str, message: str) -> None:
    refused = ask(app, "POST", path, body)
    assert (refused.status, refused.json["error_type"]) == (status, kind)
    assert message in refused.json["error"]
    assert refused.headers["connection"] == "close"


def test_a_length_that_is_told_is_believed_before_the_body_is_read(app: App) -> None:
    assert ask(app, "POST", "/predict", b"", {"content-length": "2001"}).status == 413
    assert ask(app, "POST", "/predict", b'{"inputs": "a"}', {"content-length": "9" * 5000}).status == 413


def test_more_requests_than_there_is_room_for_are_refused_and_counted(app: App) -> None:
    async def three() -> list[Answered]:
        return await asyncio.gather(*(asking(app, "POST", "/predict", {"inputs": TEXT}) for _ in range(3)))

    before = metric(app, 'te_request_failure{err="overloaded"}')
    first, second, third = asyncio.run(three())
    assert (first.status, second.status, third.status) == (200, 200, 429)
    assert (third.status, third.json["error_type"]) == (429, "Overloaded")
    assert metric(app, 'te_request_failure{err="overloaded"}') == before + 1
    assert post(app, "/predict", TEXT).status == 200


def test_a_request_counts_until_its_answer_is_sent(app: App) -> None:
    async def story() -> list[Answered]:
        may_send = asyncio.Event()

        async def held(scope: Scope, receive: Receive, send: Send) -> None:
            async def send_later(message: Message) -> None:
                sending.append(message)
                await may_send.wait()
                await send(message)

            await app(scope, receive, send_later)

        sending: list[Message] = []
        slow = [asyncio.create_task(asking(held, "POST", "/predict", {"inputs": TEXT})) for _ in range(2)]
        while len(sending) < 2:
            await asyncio.sleep(0.01)
        third = await asking(app, "POST", "/predict", {"inputs": TEXT})
        may_send.set()
        return [third, *await asyncio.gather(*slow)]

    assert [one.status for one in asyncio.run(story())] == [429, 200, 200]
    assert post(app, "/predict", TEXT).status == 200


@pytest.mark.parametrize("truncate", [None, False])
def test_nobody_waits_for_ever(app: App, truncate: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "ANSWER_SECONDS", 0)
    refused = post(app, "/predict", TEXT, truncate=truncate)
    assert (refused.status, refused.json["error_type"]) == (429, "Overloaded")
    monkeypatch.undo()
    assert post(app, "/predict", TEXT, truncate=truncate).status == 200


def metric(app: App, name: str) -> float:
    lines = ask(app, "GET", "/metrics").body.decode().splitlines()
    return float(next(line for line in lines if line.startswith(name)).rsplit(" ", 1)[1])


def test_requests_are_counted(app: App) -> None:
    names = ['te_request_success{method="single"}', 'te_request_success{method="batch"}', "te_batch_next_size_sum"]
    before = [metric(app, name) for name in names]
    post(app, "/predict", TEXT)
    post(app, "/predict", [["a"], ["b"]])
    assert [metric(app, name) for name in names] == [before[0] + 1, before[1] + 1, before[2] + 3]
    assert metric(app, "te_queue_size") == 0


def test_health_and_the_page_share_a_path(app: App) -> None:
    for path in ("/health", "/ping", "/"):
        answered = ask(app, "GET", path, headers={"accept": "*/*"})
        assert (answered.status, answered.body) == (200, b"")
    page = ask(app, "GET", "/", headers={"accept": "text/html,*/*"})
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    beside = ask(app, "GET", "/runs/roles", headers={"accept": "text/html,*/*"})
    # The page fetches from addresses below its own, which are not below this one.
    assert (beside.status, beside.headers["location"]) == (307, "../#roles")
    assert ask(app, "GET", "/runs/roles", headers={"accept": "*/*"}).status == 200
    assert ask(app, "GET", "/runs/none", headers={"accept": "text/html"}).status == 404
    assert ask(app, "HEAD", "/health").status == 200
    assert ask(app, "DELETE", "/").headers["allow"] == "GET, POST"


def test_info_is_as_text_embeddings_inference_has_it(app: App, opinion_run: Path) -> None:
    info = ask(app, "GET", "/runs/opinion/info").json
    names = list(info["model_type"]["classifier"]["label2id"])
    assert info["model_type"]["classifier"]["id2label"] == {"0": names[0], "1": names[1]}
    files = Predictor(opinion_run).hashes()
    assert info["model_files"] == files
    assert post(app, "/predict", TEXT).headers["x-model-sha"] == info["model_sha"]
    assert post(app, "/runs/roles/predict", PAIR).headers["x-model-sha"] != info["model_sha"]
    assert post(app, "/predict", TEXT).headers["x-distill-version"] == info["version"]
    assert (info["max_input_length"], info["max_client_batch_size"], info["auto_truncate"]) == (32, 3, True)
    one, other = ask(app, "GET", "/runs").json
    assert (one["name"], one["is_pair"], one["has_teacher"]) == ("opinion", False, True)
    assert (one["text_columns"], other["text_columns"]) == ([["sentence1"]], [["sentence1"], ["sentence2"]])
    assert one["max_client_batch_size"] == 3
    assert (other["name"], other["is_pair"], other["labels"]) == ("roles", True, ["different", "same"])


def test_a_run_has_the_name_by_which_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "best").symlink_to(tmp_path / "run-17")
    assert name_of(tmp_path / "best") == "best"
    assert name_of(Path()) == Path.cwd().name
    assert name_of(tmp_path / "best" / "..") == tmp_path.name
    assert name_of(tmp_path / "best" / STUDENT_FILE) == "best"


def test_the_description_has_every_path_and_every_path_is_there(app: App) -> None:
    document = ask(app, "GET", "/openapi.json").json
    known = ask(app, "GET", "/nothing").json["error"].partition("nown: ")[2].rstrip(".").split(", ")
    assert sorted(document["paths"]) == sorted(known)
    for path, operations in document["paths"].items():
        for method in operations:
            assert ask(app, method.upper(), path, {"inputs": TEXT}).status == 200
    for reference in re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document)):
        assert reference in document["components"]["schemas"]


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
)
questions = st.fixed_dictionaries(
    {"inputs": st.text() | st.lists(st.text() | st.lists(st.text(), max_size=3), max_size=4) | values},
    optional={"raw_scores": values, "truncate": values, "normalize": values, "parameters": values},
)
bodies = st.binary() | values.map(json.dumps).map(str.encode) | questions.map(json.dumps).map(str.encode)


@given(body=bodies, path=st.sampled_from([f"{run}{path}" for run, path in product(("", "/runs/roles"), PATHS)]))
@example(body=b'{"inputs": "\\ud800"}', path="/predict")
@example(body=json.dumps({"inputs": "\0\U000e0001\u200d[MASK]\u4e0d"}).encode(), path="/predict")
def test_no_body_breaks_it(app: App, body: bytes, path: str) -> None:
    answered = ask(app, "POST", path, body)
    assert answered.status in {200, 400, 413, 422}
    expected = (list, dict) if path.endswith("/tasks") else list
    assert isinstance(answered.json, expected if answered.status == 200 else dict)


HTML = bytes(page().body).decode()
POLICY = dict(part.split(" ", 1) for part in page().headers["content-security-policy"].split("; "))


def test_the_policy_lets_nothing_in_but_the_pages_own_script_and_style_and_its_own_server() -> None:
    assert POLICY["default-src"] == "'none'"
    assert POLICY["connect-src"] == "'self'"
    assert not re.search(r"unsafe|http|\*", page().headers["content-security-policy"])


@pytest.mark.parametrize(("tag", "number"), [("style", 2), ("script", 1)])
def test_the_policy_names_what_is_in_the_page(tag: str, number: int) -> None:
    contents = [part.split(f"</{tag}>")[0] for part in HTML.split(f"<{tag}>")[1:]]
    assert len(contents) == number
    assert POLICY[f"{tag}-src"].split() == [
        f"'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'" for content in contents
    ]


def test_texts_never_become_markup() -> None:
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|\bon\w+=\"", HTML)
    assert "{{" not in HTML


def test_it_names_nothing_elsewhere() -> None:
    assert not re.search(r"(src|href)=\"(?!data:,|openapi\.json)|url\(|@import|https?:", HTML)
