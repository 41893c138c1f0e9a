"""The command ``distill results``."""

import typer

from distill.apps.results.config import ResultsConfig
from distill.commands.options import command_line, needs_teacher_libraries, takes
from pipeline import console


@takes(ResultsConfig)
def results(config: ResultsConfig) -> None:
    """Fine-tune, dump and train task by task, beside baselines, and write the tables: RESULTS.md."""
    from distill.apps.results.run import planned
    from distill.apps.results.run import results as compare

    if config.plan:
        lines = planned(config)
        if config.json_output:
            console.print_json(lines)
        else:
            console.print_text("".join(f"{line}\n" for line in lines))
        return
    needs_teacher_libraries()
    found = compare(config, command_line())
    if config.json_output:
        console.print_json(found)
    else:
        console.print_text((config.output_dir / "RESULTS.md").read_text(encoding="utf-8"))
    failed = [task for task, told in found["tasks"].items() if _failed(told)]
    if failed:
        console.warn(f"not all is there: {', '.join(failed)}; what failed is tried again by the same command")
        raise typer.Exit(1)


def _failed(told: dict[str, object]) -> bool:
    systems = told["systems"]
    assert isinstance(systems, dict)
    return "failed" in told or any("failed" in cell for cell in systems.values())
