"""The command ``distill serve``: students behind HTTP."""

from pipeline.cli.options import needs_libraries, takes
from student.serve.config import ServeConfig


@takes(ServeConfig)
def serve(config: ServeConfig) -> None:
    """Answer over HTTP: text-embeddings-inference's API, the hub's, and a page for people."""
    needs_libraries("distill serve", "serve", "uvicorn")
    from student.serve.run import serve as serve_runs

    serve_runs(config)
