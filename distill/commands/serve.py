"""The command ``distill serve``: students behind HTTP."""

from distill.apps.serve.config import ServeConfig
from distill.commands.options import needs_libraries, takes


@takes(ServeConfig)
def serve(config: ServeConfig) -> None:
    """Answer over HTTP: text-embeddings-inference's API, the hub's, and a page for people."""
    needs_libraries("distill serve", "serve", "uvicorn")
    from distill.apps.serve.run import serve as serve_runs

    serve_runs(config)
