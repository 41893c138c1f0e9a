from pipeline.training.joint import entry_of, joint_scores, joint_settings


def test_settings_that_differ_or_that_one_task_alone_has_bear_its_name() -> None:
    settings = {"a": {"seed": 1, "rows": 5, "mix": None}, "b": {"seed": 1, "rows": 6, "rows.dev": 3, "mix": None}}
    assert joint_settings(settings) == {"seed": 1, "mix": None, "a.rows": 5, "b.rows": 6, "b.rows.dev": 3}
    assert joint_settings({"b": settings["b"], "a": settings["a"]}) == joint_settings(settings)
    assert joint_settings({"a": settings["a"]}) == settings["a"]


def test_the_mean_is_that_of_first_metrics_on_first_splits() -> None:
    scores = {
        "a": {"dev": {"accuracy": 0.5, "f1": 0.0}, "other": {"accuracy": 0.0}},
        "b": {"dev": {"pearson": 0.75}},
        "no dev": {},
        "no gold": {"dev": dict[str, float]()},
    }
    joint = joint_scores(scores)
    assert next(iter(joint.items())) == ("tasks", {"mean": 0.625})
    assert list(joint) == ["tasks", "a/dev", "a/other", "b/dev", "no gold/dev"]
    assert joint_scores({"no dev": {}}) == {}
    entry = {"epoch": 2, "loss": 0.1, "metrics": joint}
    assert entry_of("a", entry) == {"epoch": 2, "loss": 0.1, "metrics": scores["a"]}
    assert entry_of("no dev", entry)["metrics"] == {}
