"""A built workflow is drawn with what draws charts, whatever its steps are called."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast import Workflow, effect
from holdfast.engine.built_chart import chart_of
from holdfast.engine.charts.mermaid import mermaid
from holdfast.engine.charts.svg import svg

names = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs"), exclude_characters="#"), min_size=1)


def test_steps_are_drawn_in_their_order_with_routes_branches_and_loops() -> None:
    order = (
        Workflow("order")
        .step("reserve", lambda: 1)
        .effect("pay.now", lambda: 1)
        .parallel("notify", {"crm": lambda: 1, "mail": effect(lambda: 2)})
        .route("risk", choose=lambda: "high", routes={"high": Workflow("x").step("review", lambda: 1), "low": None})
        .loop("poll", lambda: 1, until=lambda info: True)
    )
    drawn = mermaid(chart_of(order))
    states = [line.split(chr(34))[1] for line in drawn.splitlines() if "state " in line and " as " in line]
    assert states == [
        "reserve", "pay_now (effect)", "notify (parallel)", "crm", "mail (effect)", "risk (route)", "risk#58; high",
        "review", "(end)", "poll (loop)", "(end)",
    ]  # fmt: skip
    labels = [line.rpartition(" : ")[2] for line in drawn.splitlines() if " : " in line]
    assert sorted(labels) == ["again", "done", "done", "done", "done", "done", "done", "high", "low"]
    assert svg(chart_of(order)).startswith("<svg")


@given(st.lists(names.filter(lambda name: len(name) <= 200 and name != "r"), min_size=1, max_size=5, unique=True))
def test_any_names_that_a_builder_takes_can_be_drawn(given_: list[str]) -> None:
    order = Workflow("order")
    for name in given_:
        order.step(name, lambda: 1)
    ways = {name: Workflow("x").step(name, lambda: 1) for name in given_}
    order.parallel("p" * 199, {name: lambda: 1 for name in given_}).route("r", choose=lambda: "", routes=ways)
    assert mermaid(chart_of(order)).startswith("stateDiagram-v2")


def test_a_workflow_without_steps_is_a_picture_of_its_end() -> None:
    assert "(end)" in mermaid(chart_of(Workflow("empty")))
