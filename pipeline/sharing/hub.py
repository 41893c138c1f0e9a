"""Sets on the Hugging Face hub: a dataset repository with one commit per push. No reader sees an incomplete set.

The hub stores large files by their hash. Files that it already has are not uploaded again, including those of an
interrupted push.
"""

import re
from typing import TYPE_CHECKING

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, HfFileSystem
from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.hf_api import RepoFile

from pipeline.errors import ConfigError
from pipeline.record_file import MAX_RECORD_BYTES
from pipeline.sets.record import FILE_NAME, SetRecord, parse_set_record, to_json
from pipeline.sets.set_settings import PushSettings
from pipeline.sharing.remote_folder import Place, paths_of, transport_errors, unreachable

if TYPE_CHECKING:
    from pipeline.sharing.remote_folder import SetFile

ADDRESS = re.compile(r"^hf://datasets/(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[^@]+))?/?$")
SCHEME = "hf://"
BRANCH = "main"


def is_hub(url: str) -> bool:
    """Whether a URL is on the hub."""
    return url.startswith(SCHEME)


def open_hub(url: str) -> Place:
    """Opens a data set of the hub for reading, at the current commit of its revision.

    Raises:
        ConfigError: if the URL is not that of a data set.
        DataError: if the hub cannot be reached, or has no such data set.
    """
    repo, revision = _address(url)
    try:
        commit = HfApi().dataset_info(repo, revision=revision).sha
        return Place(url, HfFileSystem(skip_instance_cache=True), f"datasets/{repo}@{commit}")
    except hub_errors() as error:
        raise unreachable(url, error) from error


def hub_errors() -> tuple[type[Exception], ...]:
    """Returns the errors of the hub's client, which has no classes of its own for invalid names and failed uploads."""
    return (*transport_errors(), RuntimeError, ValueError)


def push(settings: PushSettings, record: SetRecord, files: "dict[str, SetFile]") -> list[str]:
    """Uploads a set to a data set of the hub, in one commit.

    Returns: The files that were uploaded.

    Raises:
        ConfigError: if the repository contains another set.
        DataError: if the hub cannot be reached or refuses.
    """
    repo, revision = _address(settings.url)
    branch = revision or BRANCH
    api = HfApi()
    try:
        api.create_repo(repo, repo_type="dataset", private=not settings.public, exist_ok=True)
        if branch != BRANCH:
            api.create_branch(repo, repo_type="dataset", branch=branch, exist_ok=True)
        remote = _files_there(api, repo, branch)
        old = _set_there(settings, record, remote)
        changed = [name for name, file in files.items() if remote.get(name) != file.sha256]
        obsolete = paths_of(old) & remote.keys() - files.keys() if old else set()
        operations = [CommitOperationAdd(name, str(files[name].path)) for name in changed]
        # A commit is atomic on the hub, so here the record needs no special order.
        operations.append(CommitOperationAdd(FILE_NAME, to_json(record).encode()))
        api.create_commit(
            repo,
            [*operations, *(CommitOperationDelete(name) for name in sorted(obsolete))],
            commit_message=f"{record.name}: logits of {record.teacher.name}",
            repo_type="dataset",
            revision=branch,
        )
    except hub_errors() as error:
        raise unreachable(settings.url, error) from error
    return changed


def _files_there(api: HfApi, repo: str, revision: str) -> dict[str, str | None]:
    """Returns the SHA-256 by path for large files. The hub stores no hash of the others."""
    try:
        entries = list(api.list_repo_tree(repo, recursive=True, repo_type="dataset", revision=revision))
    except (RepositoryNotFoundError, RevisionNotFoundError):
        return {}
    return {e.path: e.lfs.sha256 if e.lfs else None for e in entries if isinstance(e, RepoFile)}


def _set_there(settings: PushSettings, record: SetRecord, remote: dict[str, str | None]) -> SetRecord | None:
    # Somebody's other data must not be overwritten. Without files in the set's folder there is nothing to lose.
    if FILE_NAME not in remote:
        taken = sorted(name for name in remote if name.startswith(f"{record.shards[0].folder}/"))
        if taken:
            advice = "Choose a repository for only this set"
            raise ConfigError(f"{settings.url}: contains {taken[0]}, but no set. {advice}.")
        return None
    content = open_hub(settings.url).read(FILE_NAME, MAX_RECORD_BYTES)
    old = parse_set_record(content or b"", f"{settings.url}/{FILE_NAME}")
    if old.fingerprint != record.fingerprint and not settings.replace:
        raise ConfigError(
            f"{settings.url}: contains another set, {old.name!r} of {old.teacher.name}. Choose another repository "
            "or revision, or use --replace."
        )
    return old


def _address(url: str) -> tuple[str, str | None]:
    match = ADDRESS.match(url)
    if match is None:
        raise ConfigError(f"{url}: not a data set of the hub. Write hf://datasets/OWNER/NAME or …/NAME@REVISION.")
    return match["repo"], match["revision"]
