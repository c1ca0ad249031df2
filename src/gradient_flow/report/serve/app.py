"""The application: the page, its data, and the news that there is more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import cache
from typing import Any, Final

import orjson
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

from gradient_flow.errors import GradientFlowError
from gradient_flow.record.run_folder import ITSELF
from gradient_flow.report.data import layer_data, page_data
from gradient_flow.report.live_run import LiveRun
from gradient_flow.report.serve.live_runs import LiveRuns
from gradient_flow.report.serve.run_ids import ALSO_ITSELF

INTERVAL: Final = 0.5
"""Seconds between two looks at a file: news comes at most twice a second."""
HEARTBEAT: Final = 15.0
"""Seconds of silence after which a comment is sent, so that nothing between here and the browser hangs up."""
_MOST: Final = {"columns": 4000, "cells": 2_000_000}


def application(live: LiveRuns) -> Starlette:
    """Everything that is served of a folder."""

    async def page(_request: Request) -> Response:
        return HTMLResponse(await run_in_threadpool(_page))

    async def runs(_request: Request) -> Response:
        entries, settings = await run_in_threadpool(live.facts)
        return _json({"runs": entries, "settings": settings}, BackgroundTask(live.judge_listed))

    async def settings(_request: Request) -> Response:
        return _json({"settings": await run_in_threadpool(live.settings)})

    async def run(request: Request) -> Response:
        run_id = _run_id(request)
        limits = {name: _limit(request, name, most) for name, most in _MOST.items()}
        wanted = {name: value for name, value in limits.items() if value is not None}

        def answer() -> bytes:
            return orjson.dumps(page_data(live.digest(run_id), live=True, **wanted))

        return _json(await _found(answer), BackgroundTask(live.refine, run_id))

    async def layer(request: Request) -> Response:
        run_id, name = _run_id(request), request.query_params.get("name", "")
        columns = _limit(request, "columns", _MOST["columns"]) or 1000

        def answer() -> bytes:
            digest = live.digest(run_id)
            digest.update()
            return orjson.dumps(layer_data(digest, name, columns=columns))

        return _json(await _found(answer), BackgroundTask(live.refine, run_id))

    async def events(request: Request) -> Response:
        run_id = _run_id(request)
        digest: LiveRun = await _found(lambda: live.digest(run_id))
        size = request.query_params.get("size", "")
        known = size.isascii() and size.isdigit() and len(size) < 17
        stage = sum(request.query_params.get(name) == "true" for name in ("judged", "complete"))
        shown = (int(size), stage, "") if known else None
        return StreamingResponse(_news(request, live, run_id, digest, shown), media_type="text/event-stream")

    paths: list[tuple[str, Callable[[Request], Any]]] = [
        ("/", page),
        ("/api/runs", runs),
        ("/api/settings", settings),
        ("/api/run/{id}/events", events),
        ("/api/run/{id}/layer", layer),
        ("/api/run/{id}", run),
        ("/api/run/", run),
    ]
    routes = [Route(path, endpoint, methods=["GET"]) for path, endpoint in paths]
    return Starlette(routes=routes, exception_handlers={HTTPException: _problem, GradientFlowError: _problem})


@cache
def _page() -> str:
    from gradient_flow.report.html import render_page

    return render_page(None)


async def _news(
    request: Request, live: LiveRuns, run_id: str, digest: LiveRun, sent: tuple[int, int, str] | None
) -> AsyncIterator[bytes]:
    """A line whenever there is more to show than was `sent`; ends when the reader has gone, or the server stops."""
    yield b": listening\n\n"
    told_end = False
    quiet = 0.0
    while not live.stopping.is_set() and not await request.is_disconnected():
        problem = await run_in_threadpool(_take_in, digest)
        # How far it is: the verdict comes some time after the curves, and all of the map after it.
        state = digest.run.size, digest.judged + digest.complete, problem
        news = []
        if problem and (sent is None or sent[2] != problem):
            news.append(_event("problem", {"error": problem}))  # it may pass: a run that has just begun
        elif sent is not None and (state[0] != sent[0] or state[1] > sent[1]):
            last = {"size": state[0], "last_step": digest.run.last_step, "complete": digest.complete}
            news.append(_event("changed", last))
        sent = state
        if not problem:
            live.refine(run_id)
        if (digest.run.end is not None and digest.complete) != told_end:  # also to say it again of a resumed run
            told_end = not told_end
            if told_end:
                news.append(_event("ended", {"size": state[0], "last_step": digest.run.last_step}))
        quiet += INTERVAL
        if not news and quiet >= HEARTBEAT:
            news.append(b": still here\n\n")
        for each in news:
            yield each
            quiet = 0.0
        await asyncio.sleep(INTERVAL)


def _take_in(digest: LiveRun) -> str:
    """Read what is new, if there is anything; what is wrong with the file, or nothing."""
    try:
        if digest.run.has_news():
            digest.update()
    except (GradientFlowError, OSError) as problem:
        return str(problem)
    return ""


def _event(name: str, data: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), orjson.dumps(data))


def _run_id(request: Request) -> str:
    run_id = str(request.path_params.get("id", ITSELF))
    return ITSELF if run_id in ALSO_ITSELF else run_id


def _limit(request: Request, name: str, most: int) -> int | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) >= 1):
        raise HTTPException(422, f"`{name}` must be an integer ≥ 1, got {text!r}.")
    return min(int(text), most)


async def _found(answer: Callable[[], Any]) -> Any:
    try:
        return await run_in_threadpool(answer)
    except KeyError as missing:
        raise HTTPException(404, f"There is no {missing.args[0]!r} here.") from missing


def _json(data: Any, then: BackgroundTask | None = None) -> Response:
    content = data if isinstance(data, bytes) else orjson.dumps(data)
    return Response(content, media_type="application/json", background=then)


def _problem(_request: Request, problem: Exception) -> Response:
    status, text = (problem.status_code, problem.detail) if isinstance(problem, HTTPException) else (422, str(problem))
    return Response(orjson.dumps({"error": text}), status, media_type="application/json")
