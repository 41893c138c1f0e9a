"""Every command and program of the README and of docs/, run as written; every link and flag in them.

The hub is replaced by folders of the same names with the layout of the real repositories.
"""

import re
import shlex
from pathlib import Path

import pytest
import s3fs
import typer

from distill.commands import app
from tests.helpers.offline_hub import write_answers, write_hub, write_tickets
from tests.helpers.terminal import Terminal

ROOT = Path(__file__).parents[1]
PAGES = [  # in the order of reading: a page may use what those before it have made
    "README.md",
    "docs/teacher.md",
    "docs/students.md",
    "docs/probabilities.md",
    "docs/engine.md",
    "docs/augmentation.md",
    "docs/pretraining.md",
    "docs/sql.md",
    "docs/sharing.md",
    "docs/format.md",
]
DOCUMENTS = sorted(path.relative_to(ROOT).as_posix() for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str, *languages: str) -> list[tuple[str, str]]:
    """Languages and contents of a page's blocks of these languages, in order."""
    found = re.findall(r"^```(\w*)\n(.*?)^```", text_of(page), re.MULTILINE | re.DOTALL)
    return [(language, content) for language, content in found if language in languages]


def commands(page: str) -> list[str]:
    return [line for _, content in blocks(page, "bash") for line in content.strip().splitlines()]


class Reader(Terminal):
    """Runs the commands of the pages, in their order."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        super().__init__(folder, environment)
        self.printed: dict[str, list[str]] = {}

    def read(self, page: str) -> list[str]:
        """What the programs in Python of a page print, once all its commands and the pages before it were run."""
        for earlier in PAGES[: PAGES.index(page) + 1]:
            if earlier not in self.printed:
                for line in commands(earlier):
                    self.line(line)
                self.printed[earlier] = [self.python(code) for _, code in blocks(earlier, "python")]
        return self.printed[page]


@pytest.fixture(scope="module")
def reader(s3_server: str, tmp_path_factory: pytest.TempPathFactory) -> Reader:
    """Works in a folder with the hub, the custom task and an S3 with the bucket of the pages."""
    folder = tmp_path_factory.mktemp("docs")
    write_hub(folder)
    [(_, manifest)] = blocks("docs/teacher.md", "yaml")
    (folder / "tickets.yaml").write_text(manifest)
    write_tickets(folder / "data", {"train": 90, "validation": 30})
    write_tickets(folder / "more-data", {"train": 120, "validation": 30})
    write_answers(folder / "data", folder / "answers.jsonl")
    (folder / "emails.txt").write_text("a man eats soup outside\nnobody sleeps\na woman is eating\n")
    keys = {"key": "docs", "secret": "docs"}
    s3fs.S3FileSystem(endpoint_url=s3_server, skip_instance_cache=True, **keys).mkdir("team-a")
    return Reader(
        folder,
        {
            "AWS_ACCESS_KEY_ID": keys["key"],
            "AWS_SECRET_ACCESS_KEY": keys["secret"],
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": s3_server,
        },
    )


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_every_command_and_program_of_a_page_runs_as_written(page: str, reader: Reader) -> None:
    printed = reader.read(page)
    assert len(printed) == len(blocks(page, "python"))
    assert all(output.strip() for output in printed)


def test_every_page_with_something_to_run_is_run() -> None:
    assert {page for page in DOCUMENTS if blocks(page, "bash", "python")} <= set(PAGES)


@pytest.mark.parametrize("page", DOCUMENTS)
def test_links_lead_to_pages_and_headings_that_are_there(page: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        if not target.startswith(("http://", "https://")):
            path, _, heading = target.partition("#")
            there = (ROOT / page).parent / path if path else ROOT / page
            assert there.exists(), target
            assert not heading or heading in anchors(there), target


def test_the_site_has_every_page() -> None:
    in_nav = re.findall(r"^ +- (?:[^:\n]+: )?([\w/-]+\.md)$", text_of("mkdocs.yml"), re.MULTILINE)
    generated = {"commands.md", "python.md"}
    pages = {page.removeprefix("docs/") for page in DOCUMENTS if page.startswith("docs/")}
    assert set(in_nav) == pages | generated
    assert len(in_nav) == len(set(in_nav))


def anchors(path: Path) -> list[str]:
    """Headings of a page as the names that links give them."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


@pytest.mark.parametrize("page", DOCUMENTS)
def test_commands_and_flags_that_are_told_of_exist(page: str) -> None:
    spans = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text_of(page))
    told = [line for _, content in blocks(page, "bash", "sh") for line in content.strip().splitlines()]
    told += [span for span in spans if span.startswith("distill ")]
    for line in told:
        name, flags = called(line)
        assert flags <= flags_of(name), line
    everywhere = set().union(*map(flags_of, COMMANDS))
    assert {span.split()[0] for span in spans if span.startswith("--")} <= everywhere | OTHERS


COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
OTHERS = {"--draw", "--version"}  # of tests.benchmarks.growth; of no command, but of distill itself


def called(line: str) -> tuple[str, set[str]]:
    """The command of a line that begins with ``distill``, or ``--help``, and the flags it is given."""
    program, name, *others = shlex.split(line)
    assert program == "distill", line
    return name, {word.split("=")[0] for word in others if word.startswith("--")}


def flags_of(name: str) -> set[str]:
    if name == "--help":
        return set()
    assert name in COMMANDS, name
    return {"--help"} | {
        flag for parameter in COMMANDS[name].params for flag in (*parameter.opts, *parameter.secondary_opts)
    }


def test_the_two_commands_are_targets_of_the_makefile() -> None:
    two = blocks("README.md", "")[0][1].split()
    assert two == ["make", "demo", "make", "test"]
    assert all(re.search(rf"^{target}:", text_of("Makefile"), re.MULTILINE) for target in ("demo", "test"))


def test_files_that_the_map_names_are_there() -> None:
    spans = re.findall(r"(?<!`)`([\w./]+)`(?!`)", text_of("docs/architecture.md"))
    paths = [span for span in spans if "/" in span]
    assert len(paths) > 30
    assert [path for path in paths if not (ROOT / path).exists()] == []
