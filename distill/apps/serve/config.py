"""Settings of ``distill serve``; free of heavy imports, so that ``--help`` is quick."""

from pydantic import Field

from pipeline.config import Config


class ServeConfig(Config):
    """Flags of ``distill serve``; the limits have text-embeddings-inference's names."""

    runs: tuple[str, ...] = Field(
        description="Folders of runs; each is served under its folder's name, the first one also without.",
        json_schema_extra={"argument": True},
    )
    host: str = Field("127.0.0.1", description="Address to listen on; 0.0.0.0 for all that this machine has.")
    port: int = Field(8080, ge=0, le=65535, description="Port to listen on; 0 for any that is free.")
    workers: int = Field(1, ge=1, le=256, description="Processes, which share the students' memory.")
    max_concurrent_requests: int = Field(512, ge=1, description="Requests at a time, per process; more get a 429.")
    max_client_batch_size: int = Field(1024, ge=1, description="Texts, or pairs of them, in a request.")
    payload_limit: int = Field(2_000_000, ge=1, description="Largest request, in bytes.")
