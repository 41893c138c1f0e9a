"""docs/operate.md: its manifests name paths, flags and metrics that are there."""

import re
from pathlib import Path
from typing import Any

import yaml

from distill.apps.app_settings import ServeSettings
from distill.apps.serve.app import GET
from distill.apps.serve.prometheus import COUNTERS, GAUGE, HISTOGRAMS, KINDS
from pipeline.settings import flag_name

PAGE = (Path(__file__).parents[4] / "docs" / "operate.md").read_text(encoding="utf-8")
DEPLOYMENT, RULES = (
    yaml.safe_load(text) for text in re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
)


def test_the_deployment_asks_for_what_the_server_has() -> None:
    pod = DEPLOYMENT["spec"]["template"]
    assert pod["metadata"]["labels"] == DEPLOYMENT["spec"]["selector"]["matchLabels"]
    (container,) = pod["spec"]["containers"]
    flags = {word for word in container["args"] if word.startswith("--")}
    assert flags <= {flag_name(name) for name in ServeSettings.model_fields}
    ports = {port["containerPort"] for port in container["ports"]}
    assert ports == {ServeSettings.model_fields["port"].default}
    probes = [value["httpGet"] for name, value in container.items() if name.endswith("Probe")]
    assert len(probes) == 3
    assert all(probe["path"] in GET and probe["port"] in ports for probe in probes)


def test_alerts_are_about_metrics_that_there_are() -> None:
    rules: list[dict[str, Any]] = [rule for group in RULES["groups"] for rule in group["rules"]]
    known = {*COUNTERS, GAUGE, *(f"{name}_{part}" for name in HISTOGRAMS for part in ("bucket", "sum", "count"))}
    text = " ".join(rule["expr"] for rule in rules)
    assert {*re.findall(r"te_\w+", text)} <= known
    assert {*re.findall(r'err="(\w+)"', text)} <= {kind.lower() for kind in KINDS}
    assert all(f"`{rule['alert']}`" in PAGE for rule in rules)
