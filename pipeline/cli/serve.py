"""The command ``distill serve``: students behind HTTP."""

import importlib.util

from pipeline.cli.options import takes
from pipeline.errors import MissingDependencyError
from student.serve.config import ServeConfig


@takes(ServeConfig)
def serve(config: ServeConfig) -> None:
    """Answer over HTTP: text-embeddings-inference's API, the hub's, and a page for people."""
    if importlib.util.find_spec("uvicorn") is None:
        raise MissingDependencyError("distill serve needs uvicorn: pip install 'distill-offline[serve]'")
    from student.serve.run import serve as serve_runs

    serve_runs(config)
