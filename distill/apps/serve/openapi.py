"""The description of the API that machines read."""

from importlib.metadata import version
from typing import Any

from distill.apps.serve.routes import POST

REF = "#/components/schemas/{model}"
TEXT = {"text/plain": {"schema": {"type": "string"}}}
PREDICTION = {
    "type": "object",
    "required": ["score", "label"],
    "properties": {"score": {"type": "number"}, "label": {"type": "string"}},
}
ERROR = {
    "type": "object",
    "required": ["error", "error_type"],
    "properties": {"error": {"type": "string"}, "error_type": {"type": "string"}},
}
RANKING = {"type": "array", "items": {"$ref": REF.format(model="Prediction")}}
RANKINGS = {"type": "array", "items": RANKING}
ANSWERS: dict[str, dict[str, Any]] = {
    "/": RANKINGS,
    "/predict": {"oneOf": [RANKING, RANKINGS]},
    "/embed": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
    "/teacher": {"type": "array", "items": {"oneOf": [RANKING, {"type": "null"}]}},
}
SUMMARIES = {
    "/": "Labels of texts, as the hub's inference API gives them",
    "/predict": "Labels of texts, as text-embeddings-inference gives them",
    "/embed": "Representations of texts",
    "/teacher": "What the teacher said when its answers were stored",
}
REFUSALS = {
    400: "No JSON, or no inputs",
    408: "The request did not arrive in time",
    413: "Too long, or too many inputs",
    422: "Not what is asked for here",
    424: "The student cannot read it",
    429: "Too many requests at a time",
}
GET = {
    "/health": ("Whether it answers", TEXT),
    "/ping": ("The same", TEXT),
    "/info": ("The model and its limits", {"application/json": {"schema": {"type": "object"}}}),
    "/metrics": ("Numbers for Prometheus", TEXT),
    "/runs": ("The students; each answers under /runs/NAME, too", {"application/json": {"schema": {"type": "array"}}}),
    "/openapi.json": ("This description", {"application/json": {"schema": {"type": "object"}}}),
}


def document() -> dict[str, Any]:
    """The whole description, OpenAPI 3.1."""
    schemas: dict[str, Any] = {"Prediction": PREDICTION, "Error": ERROR}
    paths: dict[str, Any] = {
        path: {"get": {"summary": summary, "responses": {"200": {"description": summary, "content": content}}}}
        for path, (summary, content) in GET.items()
    }
    for path, (kind, _) in POST.items():
        schema = kind.model_json_schema(ref_template=REF)
        schemas |= schema.pop("$defs", {}) | {kind.__name__: schema}
        paths.setdefault(path, {})["post"] = _operation(path, kind.__name__)
    info = {"title": "distill serve", "version": version("distill-offline")}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": {"schemas": schemas}}


def _operation(path: str, kind: str) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": REF.format(model="Error")}}}
    refusals = {str(status): {"description": text, "content": content} for status, text in REFUSALS.items()}
    answer = {"description": SUMMARIES[path], "content": {"application/json": {"schema": ANSWERS[path]}}}
    return {
        "summary": SUMMARIES[path],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": REF.format(model=kind)}}},
        },
        "responses": {"200": answer} | refusals,
    }
