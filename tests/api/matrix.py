"""Who may use which route, as a table to read: `python -m tests.api.matrix` writes access_matrix.md again."""

from __future__ import annotations

from pathlib import Path

from holdfast.api.endpoints import ANYONE, PUBLIC, Endpoint
from holdfast.api.server import table
from holdfast.engine.access import ROLES, capabilities_of

FILE = Path(__file__).with_name("access_matrix.md")
CALLERS = (*ROLES, "agent")  # an agent with the role admin
HEAD = """# Who may use which route

Made from the app's table by `python -m tests.api.matrix`, and compared with it by test_access.py, which also asks every
route as each of these. `agent` is an agent with the role admin. A key with scopes may do what stands under its roles,
and only what its scopes name. Without a valid key only the public routes answer.

"""


def may(caller: str, endpoint: Endpoint) -> bool:
    if endpoint.capability in (PUBLIC, ANYONE):
        return True
    kind, role = ("agent", "admin") if caller == "agent" else ("service", caller)
    return endpoint.capability in capabilities_of(kind, [role])


def render() -> str:
    rows = [["route", "asks for", *CALLERS], ["---"] * (2 + len(CALLERS))]
    for endpoint in sorted(table(), key=lambda one: (one.path, one.method)):
        marks = ["yes" if may(caller, endpoint) else "" for caller in CALLERS]
        rows.append([f"`{endpoint.operation}`", endpoint.capability, *marks])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.ljust(width, "-" if cell == "---" else " ") for cell, width in zip(row, widths, strict=True)]
        lines.append(f"| {' | '.join(cells)} |")
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    FILE.write_text(render())
