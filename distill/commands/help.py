"""``--help``: commands and flags by topic, never truncated on narrow screens, and examples. Also mistyped flags."""

import copy
import re
from collections import defaultdict
from difflib import get_close_matches
from typing import Any

from typer.core import TyperCommand

from pipeline.errors import own_words

EXAMPLES = {
    "finetune-teacher": (
        "distill finetune-teacher --task mrpc --model-name-or-path bert-base-uncased --output-dir teachers/mrpc",
        "distill finetune-teacher --objective mlm --corpus wikipedia --model-name-or-path MiniLM-L6 --output-dir mlm",
    ),
    "augment": ("distill augment --task mrpc --method tinybert",),
    "teacher-dump": (
        "distill teacher-dump --task mnli --plan",
        "distill teacher-dump --task mnli",
        "distill teacher-dump --manifest tickets.yaml --data data --model-name-or-path teachers/tickets",
        "distill teacher-dump --corpus wikipedia --signal mlm",
    ),
    "import": (
        "distill import answers.jsonl --task sst2 --teacher some-llm",
        "distill import collected --extend sst2 --name sst2-2",
    ),
    "train-student": (
        "distill train-student --task mnli",
        "distill train-student --set mnli --set mnli-other --mix weighted:0.7,0.3",
        "distill train-student --tasks mrpc,stsb,rte --output-dir runs/together",
    ),
    "cascade": (
        "distill cascade --stage runs/small --stage runs/large --where 'source_row % 10 = 0' --output-dir runs/cascade",
    ),
    "sweep": (
        "distill sweep --task mrpc --grid embedding=cbow,cmow,hybrid --grid head=linear,mlp --seeds 3",
        "distill sweep --grid tasks=mrpc,rte,mrpc+rte --seeds 3",
    ),
    "pretrain-student": ("distill pretrain-student --set wikipedia --max-steps 1000",),
    "quickstart": (
        "distill quickstart messages.csv --text message --label category --model-name-or-path MiniLM-L6",
        "distill quickstart messages.csv --text message --label category --model-name-or-path none",
    ),
    "sql": ('distill sql "select split, count(*) from mnli group by all"',),
}


# Flags whose value may be omitted, and the value they then get.
ALONE = {"--ray": "local"}


class Command(TyperCommand):
    """A command whose help is plain text: brackets stay as they are, and a long flag has its own line."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Reads the arguments. A flag without its optional value gets the value that it implies."""
        pairs = zip(args, [*args, "--"][1:], strict=True)
        # In click a flag with an optional value would take the next argument, so its default is inserted here.
        given = [f"{arg}={ALONE[arg]}" if arg in ALONE and follows.startswith("-") else arg for arg, follows in pairs]
        try:
            return super().parse_args(ctx, given)
        except Exception as error:
            self._suggest(ctx, error)
            raise

    def _suggest(self, ctx: Any, error: Any) -> None:
        """Changes the message about an unknown flag, or value of a flag, to suggest the most similar one."""
        # click lists all similar names by alphabet, older ones included. typer's versions have different clicks, so
        # their errors are recognised by attributes.
        if getattr(error, "possibilities", None):
            shown = [_without_aliases(parameter) for parameter in self.get_params(ctx)]
            names = [name for parameter in shown for name in (*parameter.opts, *parameter.secondary_opts)]
            similar = get_close_matches(error.option_name, names, n=1)
            error.message = f"No such option: {error.option_name}" + "".join(f". Did you mean {n}?" for n in similar)
            error.possibilities = None
        elif " is not one of " in getattr(error, "message", ""):
            message = own_words(error.message)  # typer checks values by pydantic
            value, *known = re.findall(r"'([^']*)'", message)
            similar = get_close_matches(value, known, n=1)
            error.message = message + "".join(f" Did you mean {name}?" for name in similar)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes the examples, then arguments and flags, those of a panel together."""
        panels: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
        for parameter in self.get_params(ctx):
            record = _without_aliases(parameter).get_help_record(ctx)
            if record is not None:
                is_argument = parameter.param_type_name == "argument"
                panels["Arguments" if is_argument else getattr(parameter, "rich_help_panel", None) or "Options"].append(
                    record
                )
        if self.name in EXAMPLES:
            with formatter.section("Examples"):
                for line in EXAMPLES[self.name]:
                    formatter.write(f"  {line}\n")
        for title, records in panels.items():
            with formatter.section(title):
                formatter.write_dl(records)


def _without_aliases(parameter: Any) -> Any:
    """Returns a parameter with only the first of its long names. Older names are accepted and not shown."""
    long = [spelling for spelling in parameter.opts if spelling.startswith("--")]
    shown = copy.copy(parameter)
    shown.opts = [spelling for spelling in parameter.opts if spelling not in long[1:]]
    return shown
