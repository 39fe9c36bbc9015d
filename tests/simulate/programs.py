"""Programs: workflows as data, drawn from a seed, run by one generic body, and changed as a deploy changes code.

A statement is a dict with its kind and a name of its own. A deploy is another program under the same workflow name,
made from the first by small edits.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import Any

import msgspec

from holdfast import Context, Holdfast, StepInfo, effect
from tests.simulate.provider import MISDEEDS, Plain, Provider

Statement = dict[str, Any]
MODES = ("manual", "keyed", "lookup")
UNDO_MODES = (*MODES, None)  # None: a bare function
SIGNAL = "go"


class Given(msgspec.Struct):
    n: int = 0


class GivenMore(msgspec.Struct):
    """What a careless deploy makes of the input: a field more, and living instances do not have it."""

    more: str
    n: int = 0


@dataclass
class Program:
    name: str
    body: list[Statement]
    given: Any = Given
    healthy: bool = False


# -- drawing


class Drawer:
    def __init__(self, rng: Random, features: frozenset[str]) -> None:
        self.rng = rng
        self.features = features
        self.undo_modes = Random(f"{rng.getstate()[1][:4]}/undo modes")  # apart, so that the rest is drawn as without
        self.count = 0

    def has(self, feature: str, chance: float = 1.0) -> bool:
        return feature in self.features and self.rng.random() < chance

    def name(self, kind: str) -> str:
        self.count += 1
        return f"{kind}{self.count}"

    def program(self, name: str, children: list[str]) -> Program:
        body = self.statements(self.rng.randint(2, 5), depth=0, children=children)
        if self.rng.random() < 0.4:
            body.append(self.end())
        if body[-1]["k"] == "restart":  # which is refused while anything may have to be undone
            for statement in statements_of(body):
                statement["undo"] = False
        return Program(name, body)

    def healthy(self, name: str) -> Program:
        body: list[Statement] = []
        for _ in range(3):
            body.append({"k": "step", "name": self.name("s"), "fails": 0, "attempts": 3})
        body.insert(2, {"k": "sleep", "name": self.name("z"), "seconds": 3.0})
        return Program(name, body, healthy=True)

    def end(self) -> Statement:
        if self.has("restart", 0.2):
            return {"k": "restart", "name": self.name("again"), "epochs": 2}
        what = "plain"
        if self.has("body_raises", 0.4):
            what = self.rng.choice(sorted(MISDEEDS))
        return {"k": "raise", "name": self.name("r"), "what": what}

    def statements(self, count: int, depth: int, children: list[str]) -> list[Statement]:
        return [self.statement(depth, children) for _ in range(count)]

    def statement(self, depth: int, children: list[str]) -> Statement:
        rng = self.rng
        kinds = ["step"] * 3 + ["effect"] * 5 + ["sleep", "wait", "value"]
        if "transactions" in self.features:
            kinds.append("tx")
        if depth == 0:
            kinds += ["gather", "try", "try", "parallel"]
            if "races" in self.features:
                kinds.append("race")
            if children and "children" in self.features:
                kinds += ["child"]
        kind = rng.choice(kinds)
        if kind == "step":
            made: Statement = {"k": "step", "name": self.name("s"), "attempts": rng.randint(1, 3)}
            made["fails"] = rng.choice((0, 0, 0, 1, 2))
            made["undo"] = rng.random() < 0.4
            made["sync"] = rng.random() < 0.3
            made["here"] = made["sync"] and rng.random() < 0.3
            if self.has("handler_raises", 0.15):
                made["bad"] = rng.choice(sorted(MISDEEDS))
            self.undo_raises(made)
            if self.has("mutation", 0.3):
                made["mutates"] = True
            return made
        if kind == "effect":
            return self.effect()
        if kind == "sleep":
            return {"k": "sleep", "name": self.name("z"), "seconds": rng.choice((0.0, 1.0, 5.0, 20.0, 60.0))}
        if kind == "wait":
            return {"k": "wait", "name": SIGNAL, "timeout": rng.choice((None, 3.0, 20.0, 60.0)), "key": self.name("w")}
        if kind == "value":
            return {"k": "value", "name": rng.choice(("now", "random", "uuid"))}
        if kind == "tx":
            made = {"k": "tx", "name": self.name("t"), "fails": rng.choice((0, 0, 1)), "attempts": rng.randint(1, 3)}
            if self.has("handler_raises", 0.3):
                made["bad"] = rng.choice(sorted(MISDEEDS))
            return made
        if kind == "child":
            return {"k": "child", "name": self.name("c"), "of": rng.choice(children), "undo": False}
        if kind == "race":
            return {"k": "race", "name": self.name("q"), "seconds": rng.choice((1.0, 5.0, 20.0)), "key": self.name("w")}
        if kind == "parallel":
            return {"k": "parallel", "name": self.name("p"), "branches": [self.effect(), self.effect()]}
        branches = [self.statements(rng.randint(1, 2), depth + 1, children) for _ in range(2)]
        if kind == "gather":
            return {"k": "gather", "name": self.name("g"), "branches": branches}
        return {"k": "try", "name": self.name("y"), "body": branches[0]}

    def effect(self) -> Statement:
        rng = self.rng
        made: Statement = {
            "k": "effect", "name": self.name("e"), "mode": rng.choice(MODES), "undo": rng.random() < 0.5,
            "amount": rng.randint(1, 99), "timeout": rng.choice((1.0, 2.0, 4.0)), "attempts": rng.randint(1, 3),
            "sync": rng.random() < 0.25,
        }  # fmt: skip
        if self.has("mutation", 0.3):
            made["mutates"] = rng.choice(("handler", "body"))
        self.undo_raises(made)
        return made

    def undo_raises(self, made: Statement) -> None:
        if made["undo"] and self.has("handler_raises", 0.2):
            made["undo_bad"] = self.rng.choice(sorted(MISDEEDS))
        if made["undo"] and "undo_modes" in self.features:
            made["undo_mode"] = self.undo_modes.choice(UNDO_MODES)


DEPLOYS = ("add", "remove", "rename", "mode", "raise", "return", "input", "reorder", "undo")


def redrawn(program: Program, rng: Random, features: frozenset[str]) -> Program:
    """The program after a deploy."""
    kinds = [kind for kind in DEPLOYS if f"deploy_{kind}" in features]
    if not kinds:
        return program
    made = Program(program.name, copy.deepcopy(program.body), program.given)
    body = made.body
    drawer = Drawer(rng, frozenset())
    drawer.count = 500 + rng.randrange(100)
    for _ in range(rng.randint(1, 2)):
        kind = rng.choice(kinds)
        at = rng.randrange(len(body) + 1)
        named = [s for s in statements_of(body) if s["k"] in ("step", "effect")]
        if kind == "add":
            added = rng.choice(("step", "sleep"))
            new: Statement = {"k": "step", "name": drawer.name("n"), "fails": 0, "attempts": 3}
            if added == "sleep":
                new = {"k": "sleep", "name": drawer.name("z"), "seconds": 30.0}
            body.insert(at, new)
        elif kind == "remove" and len(body) > 1:
            del body[rng.randrange(len(body))]
        elif kind == "rename" and named:
            rng.choice(named)["name"] = drawer.name("m")
        elif kind == "mode":
            effects = [s for s in statements_of(body) if s["k"] == "effect"]
            if effects:
                changed = rng.choice(effects)
                changed["mode"] = rng.choice([mode for mode in MODES if mode != changed["mode"]])
        elif kind == "undo":
            undone = [s for s in statements_of(body) if s.get("undo")]
            if undone:
                changed = rng.choice(undone)
                changed["undo_mode"] = rng.choice([mode for mode in UNDO_MODES if mode != changed.get("undo_mode")])
        elif kind == "raise":
            body.insert(at, {"k": "raise", "name": drawer.name("r"), "what": "plain"})
        elif kind == "return":
            body.insert(at, {"k": "return", "name": drawer.name("r")})
        elif kind == "input":
            made.given = GivenMore
        elif kind == "reorder" and len(body) > 1:
            first = rng.randrange(len(body) - 1)
            body[first], body[first + 1] = body[first + 1], body[first]
    return made


def drawn_versions(seed: int, features: frozenset[str]) -> list[list[Program]]:
    """The programs of a seed, before and after its deploy."""
    drawer = Drawer(Random(f"{seed}/programs"), features)
    kid = drawer.program("kid", [])
    first = [kid, *(drawer.program(name, ["kid"]) for name in ("one", "two")), drawer.healthy("neighbour")]
    rng = Random(f"{seed}/deploys")
    return [first, [program if program.healthy else redrawn(program, rng, features) for program in first]]


def statements_of(body: list[Statement]) -> list[Statement]:
    found = []
    for statement in body:
        found.append(statement)
        if statement["k"] == "try":
            found += statements_of(statement["body"])
        elif statement["k"] == "gather":
            for branch in statement["branches"]:
                found += statements_of(branch)
        elif statement["k"] == "parallel":
            found += statement["branches"]
    return found


def shown(program: Program) -> str:
    def line(statement: Statement) -> str:
        more = {k: v for k, v in statement.items() if k not in ("k", "name", "body", "branches") and v}
        inner = ""
        if "body" in statement:
            inner = " [" + "; ".join(map(line, statement["body"])) + "]"
        if "branches" in statement:
            parts = [b if isinstance(b, list) else [b] for b in statement["branches"]]
            inner = " [" + " | ".join("; ".join(map(line, part)) for part in parts) + "]"
        return f"{statement['k']} {statement['name']} {more or ''}{inner}"

    return f"{program.name}({program.given.__name__}): " + "; ".join(map(line, program.body))


# -- running


class Returned(Exception):
    """Ends a program at its `return`. An author's own `except Exception` must let it pass."""


def _failure(statement: Statement) -> BaseException:
    return MISDEEDS[statement["bad"]]() if statement.get("bad") else Plain("not yet")


class Author:
    """The authors' code of one simulated process: what bodies and handlers do, told from the statements."""

    def __init__(self, provider: Provider, clock: Callable[[], int]) -> None:
        self.provider = provider
        self.ledger = provider.ledger
        self.clock = clock
        self.tries: dict[tuple[str, str], int] = {}  # of the whole seed: the outside forgets nothing

    def register(self, hf: Holdfast, program: Program) -> None:
        async def body(ctx: Context, given: Any) -> Any:
            return await self.run(ctx, program, given)

        body.__annotations__["given"] = program.given
        hf.workflow(program.name)(body)

    async def run(self, ctx: Context, program: Program, given: Any) -> Any:
        results: list[Any] = []
        try:
            for statement in program.body:
                results.append(await self.do(ctx, statement, given))
        except Returned:
            pass
        return len(results)

    async def do(self, ctx: Context, statement: Statement, given: Any) -> Any:
        return await getattr(self, "do_" + statement["k"])(ctx, statement, given)

    # -- statements

    async def do_step(self, ctx: Context, statement: Statement, given: Any) -> Any:
        basket = {"items": [1, 2], "n": given.n}
        options: dict[str, Any] = {"max_attempts": statement["attempts"], "backoff": timedelta(seconds=1)}
        if statement.get("undo"):
            options["compensate"] = self.undo(statement)
        if statement.get("here"):
            options["thread"] = False
        answer = await ctx.step(statement["name"], self.step(statement), basket, **options)
        if statement.get("mutates"):  # what the handler did to it must not be seen here, nor differ in replay
            await ctx.step(statement["name"] + "-seen", self.step({"name": "seen", "fails": 0}), basket)
        return answer

    def step(self, statement: Statement) -> Callable[..., Any]:
        async def work(basket: Any, info: StepInfo) -> Any:
            await asyncio.sleep(0.01)
            return self.worked(statement, basket, info)

        def work_now(basket: Any, info: StepInfo) -> Any:
            return self.worked(statement, basket, info)

        return work_now if statement.get("sync") else work

    def worked(self, statement: Statement, basket: Any, info: StepInfo) -> Any:
        place = (info.instance_id, info.step)
        tries = self.tries[place] = self.tries.get(place, 0) + 1
        if statement.get("mutates"):
            basket["items"].append(99)
        if tries <= statement["fails"]:
            raise _failure(statement)
        if statement.get("undo"):
            self.ledger.did.append(place)
        return {"done": statement["name"]}

    def undo(self, statement: Statement) -> Any:
        """What undoes an effect is one itself, also as a bare function; what undoes a step is one where it says so."""
        mode = statement.get("undo_mode")
        if mode is None and statement["k"] == "step":
            return self.undo_step(statement)
        refund = {"k": "effect", "mode": mode or "manual", "undoes": True, "timeout": statement.get("timeout", 2.0)}
        give_back = self.pay(refund | {"sync": statement.get("sync")})
        if mode is None:
            return give_back
        return effect(give_back, **self.options(refund | {"attempts": statement["attempts"], "undo": False}))

    def undo_step(self, statement: Statement) -> Callable[..., Any]:
        async def give_back(result: Any, info: StepInfo) -> None:
            await asyncio.sleep(0.01)
            rng = Random(f"{info.instance_id}/{info.step}/{info.attempt}")
            if rng.random() < self.provider.more.get("undo_fails", 0.0):
                raise MISDEEDS[statement["undo_bad"]]() if statement.get("undo_bad") else Plain("not yet")
            self.provider.refund(info)

        return give_back

    async def do_effect(self, ctx: Context, statement: Statement, given: Any) -> Any:
        order = {"amount": statement["amount"], "n": given.n}
        asked = ctx.effect(statement["name"], self.pay(statement), order, **self.options(statement))
        if statement.get("mutates") == "body":
            order["amount"] = 10_000
        return await asked

    def options(self, statement: Statement) -> dict[str, Any]:
        options: dict[str, Any] = {
            "mode": statement["mode"], "timeout": statement["timeout"], "max_attempts": statement["attempts"],
            "backoff": timedelta(seconds=1),
        }  # fmt: skip
        if statement["mode"] == "lookup":
            options["lookup"] = self.provider.find
        if statement["undo"]:
            options["compensate"] = self.undo(statement)
        return options

    def pay(self, statement: Statement) -> Callable[..., Any]:
        # What was sent is looked at as text, before the author's hand changes it.
        async def pay(order: Any, info: StepInfo) -> dict[str, Any]:
            sent = copy.deepcopy(order)
            if statement.get("mutates") == "handler":
                order["amount"] *= 100
            return await self.provider.call(info, statement, sent)

        def pay_now(order: Any, info: StepInfo) -> dict[str, Any]:
            sent = copy.deepcopy(order)
            if statement.get("mutates") == "handler":
                order["amount"] *= 100
            return self.provider.call_now(info, statement, sent)

        return pay_now if statement["sync"] else pay

    async def do_parallel(self, ctx: Context, statement: Statement, given: Any) -> Any:
        branches = {
            s["name"]: effect(self.pay(s), {"amount": s["amount"], "n": given.n}, **self.options(s))
            for s in statement["branches"]
        }
        return await ctx.parallel(statement["name"], branches)

    async def do_tx(self, ctx: Context, statement: Statement, given: Any) -> Any:
        def book(tx: Any, info: StepInfo) -> int:
            place = (info.instance_id, info.step)
            tries = self.tries[place] = self.tries.get(place, 0) + 1
            tx.execute("create table if not exists bookings (place text)")
            tx.execute("insert into bookings values (?)", (f"{info.step} {info.idempotency_key}",))
            if tries <= statement["fails"]:
                raise _failure(statement)
            return tries

        await ctx.transaction(statement["name"], book, max_attempts=statement["attempts"], backoff=timedelta(seconds=1))

    async def do_sleep(self, ctx: Context, statement: Statement, given: Any) -> Any:
        place = (ctx.instance_id, f"{ctx.epoch}/{statement['name']}")
        began = self.ledger.naps.setdefault(place, self.clock())
        await ctx.sleep(statement["name"], statement["seconds"])
        if self.clock() < began + round(statement["seconds"] * 1_000_000):
            self.ledger.early.append((ctx.instance_id, statement["name"]))

    async def do_wait(self, ctx: Context, statement: Statement, given: Any) -> Any:
        said = await ctx.wait_for_signal(statement["name"], timeout=statement["timeout"], key=statement["key"])
        self.hear(ctx, said)

    def hear(self, ctx: Context, said: Any) -> None:
        if said is not None:
            self.ledger.heard.add((ctx.instance_id, said["id"]))

    async def do_race(self, ctx: Context, statement: Statement, given: Any) -> Any:
        """The loser is cancelled, and what comes later belongs to whoever waits then."""
        signal: Any = ctx.wait_for_signal(SIGNAL, key=statement["key"])
        nap: Any = ctx.sleep(statement["name"], statement["seconds"])
        await asyncio.wait({signal, nap}, return_when=asyncio.FIRST_COMPLETED)
        if signal.done():
            self.hear(ctx, signal.result())
            nap.cancel()
            return "signal"
        signal.cancel()
        self.hear(ctx, await ctx.wait_for_signal(SIGNAL, key=statement["key"], timeout=30.0))
        return "nap"

    async def do_child(self, ctx: Context, statement: Statement, given: Any) -> Any:
        return await ctx.child(statement["name"], statement["of"], {"n": given.n})

    async def do_value(self, ctx: Context, statement: Statement, given: Any) -> Any:
        return str(getattr(ctx, statement["name"])())

    async def do_gather(self, ctx: Context, statement: Statement, given: Any) -> Any:
        async def branch(statements: list[Statement]) -> None:
            for one in statements:
                await self.do(ctx, one, given)

        branches: list[Awaitable[None]] = [branch(statements) for statements in statement["branches"]]
        for answer in await asyncio.gather(*branches, return_exceptions=True):
            if isinstance(answer, BaseException):
                raise answer

    async def do_try(self, ctx: Context, statement: Statement, given: Any) -> Any:
        try:
            for one in statement["body"]:
                await self.do(ctx, one, given)
        except Returned:
            raise
        except Exception as error:
            return type(error).__name__

    async def do_raise(self, ctx: Context, statement: Statement, given: Any) -> Any:
        raise Plain("the program says so") if statement["what"] == "plain" else MISDEEDS[statement["what"]]()

    async def do_return(self, ctx: Context, statement: Statement, given: Any) -> Any:
        raise Returned

    async def do_restart(self, ctx: Context, statement: Statement, given: Any) -> Any:
        if ctx.epoch < statement["epochs"]:
            ctx.restart({"n": given.n})
