"""The HTTP interface of a run: forecasts, new values, health, metrics, and its OpenAPI description.

One thread owns the run: it stores posted values, in the order of arrival, and makes the forecasts.
A post is answered when its values are on disk; the forecast follows, one for all posts that wait.
A request for forecasts waits until they know every value that was accepted before it.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, TypeVar

from fastapi import Depends, FastAPI, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import ClientDisconnect

from fuels.errors import FuelsError
from fuels.report.prometheus import TEXT
from fuels.serving import answers
from fuels.serving.answers import Forecasts, Health, MissingError, Problem
from fuels.serving.live import Accepted, LiveRun, NotStoredError
from fuels.serving.posted import Row, first_problem, panel_from_csv, panel_from_json
from fuels.version import __version__

JSON, CSV = "application/json", "text/csv"
PATIENCE = 8  # times the largest body: more is not even read
LOCAL = ("localhost", "127.0.0.1", "[::1]")
Result = TypeVar("Result")
Horizon = Annotated[int | None, Query(description="steps ahead; default: all")]
Levels = Annotated[list[float] | None, Query(description="intervals, in percent; default: all")]
# How posted values are described: the body is read in pieces, within the limit.
ROWS = {
    "type": "object",
    "required": ["values"],
    "additionalProperties": False,
    "properties": {"values": {"type": "array", "minItems": 1, "items": Row.model_json_schema()}},
}
BODY = {
    "requestBody": {
        "required": True,
        "content": {
            JSON: {"schema": ROWS},
            CSV: {
                "schema": {"type": "string"},
                "example": "client,time,value\na,2024-01-01T00:00,5",
            },
        },
    }
}


def refused(*codes: int) -> dict[int | str, dict[str, Any]]:
    """How refusals are described."""
    return {code: {"model": Problem} for code in (401, *codes)}


def create_app(
    live: LiveRun, worker: ThreadPoolExecutor, *, token: str | None, most_bytes: int
) -> FastAPI:
    """The application around a run; without a token, only requests to this machine's own name."""
    described = [] if token is None else [Depends(HTTPBearer(auto_error=False))]  # `guard` checks
    app = FastAPI(
        title="fuels", version=__version__, docs_url=None, redoc_url=None, dependencies=described
    )

    async def on_worker(work: Callable[..., Result], *given: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(worker, work, *given)

    def authorised(request: Request) -> bool:
        given = request.headers.get("authorization", "").encode()
        return token is None or hmac.compare_digest(given, f"Bearer {token}".encode())

    async def up_to_date() -> None:
        await on_worker(live.refresh)

    @app.middleware("http")
    async def guard(
        request: Request, call_next: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        if token is None:
            if host_of(request) not in LOCAL:  # a page in a browser may have been led here
                return problem(403, "without a token, the Host of a request must be this machine")
        elif request.url.path != "/health" and not authorised(request):
            return problem(401, "a valid token is needed: Authorization: Bearer TOKEN")
        return await call_next(request)

    @app.get(
        "/forecasts", response_model=Forecasts, responses=refused(400, 503), tags=["forecasts"]
    )
    async def all_forecasts(
        horizon: Horizon = None,
        level: Levels = None,
    ) -> Response:
        """The newest forecasts of all clients."""
        await up_to_date()
        return Response(answers.forecasts(live, None, horizon, level), media_type=JSON)

    @app.get(
        "/forecasts/{client:path}",
        response_model=Forecasts,
        responses=refused(400, 404, 503),
        tags=["forecasts"],
    )
    async def forecasts_of_client(
        client: str,
        horizon: Horizon = None,
        level: Levels = None,
    ) -> Response:
        """The newest forecasts of one client."""
        await up_to_date()
        return Response(answers.forecasts(live, client, horizon, level), media_type=JSON)

    @app.post(
        "/values",
        response_model=Accepted,
        responses=refused(400, 413, 415, 507),
        openapi_extra=BODY,
        tags=["values"],
    )
    async def post_values(request: Request) -> Accepted:
        """Give new values; late, revised and repeated ones are handled as by `fuels forecast`.

        They are on disk when the answer comes. Refused values change nothing.
        """
        try:
            kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind not in (JSON, CSV):
                raise HTTPException(415, f"the Content-Type must be {JSON} or {CSV}")
            if request.headers.get("content-encoding", "identity") != "identity":
                raise HTTPException(415, "the body must not be compressed")
            body = await read_body(request, most_bytes)
            read = panel_from_json if kind == JSON else panel_from_csv
            accepted = await on_worker(lambda: live.take(read(body, live.settings, live.models)))
        except Exception:
            live.counts.refused += 1
            raise
        worker.submit(live.refresh)
        return accepted

    @app.get("/monitor", responses=refused(404), tags=["operation"])
    async def monitored() -> Response:
        """Past forecasts compared with what happened, as `fuels monitor --json`."""
        found = await on_worker(live.monitored)
        if found is None:
            raise MissingError("there are no past forecasts to compare with what happened yet")
        return JSONResponse(found)

    @app.get(
        "/health", response_model=Health, responses={503: {"model": Health}}, tags=["operation"]
    )
    async def health(request: Request) -> Response:
        """Whether the newest forecast could be made; without the token, only that."""
        found = answers.health(live)
        status = 503 if found.problem else 200
        if not authorised(request):
            found = Health(status=found.status, newest_value=None, problem="")
        return JSONResponse(found.model_dump(), status)

    @app.get("/metrics", response_class=PlainTextResponse, responses=refused(), tags=["operation"])
    async def metrics() -> Response:
        """For Prometheus."""
        return Response(await on_worker(answers.metrics, live), media_type=TEXT)

    @app.exception_handler(FuelsError)
    async def on_error(_: Request, error: FuelsError) -> Response:
        if isinstance(error, MissingError):
            return problem(404 if live.latest is not None else 503, str(error))
        return problem(507 if isinstance(error, NotStoredError) else 400, str(error))

    @app.exception_handler(StarletteHTTPException)
    async def on_refusal(_: Request, error: StarletteHTTPException) -> Response:
        said = {404: "no such page: see /openapi.json", 405: "the method is not allowed here"}
        return problem(error.status_code, said.get(error.status_code, str(error.detail)))

    @app.exception_handler(RequestValidationError)
    async def on_wrong_parameter(_: Request, error: RequestValidationError) -> Response:
        return problem(422, first_problem(error.errors()))

    @app.exception_handler(Exception)
    async def on_bug(_: Request, error: Exception) -> Response:
        return problem(500, "an internal error: see the log of the server")

    return app


def problem(status: int, text: str) -> Response:
    """A refusal, in one sentence."""
    more = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return JSONResponse({"error": text}, status, more)


def host_of(request: Request) -> str:
    """The host that the request names, without its port."""
    host = request.headers.get("host", "").lower()
    return host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]


async def read_body(request: Request, most: int) -> bytes:
    """The body of a request, of at most so many bytes.

    A longer one is read to its end, but not kept, so that the sender gets to know; up to a limit.
    """
    body, size = bytearray(), 0
    try:
        async for piece in request.stream():
            size += len(piece)
            if size <= most:
                body += piece
            elif size > PATIENCE * most:
                break
    except ClientDisconnect:
        raise HTTPException(400, "the body ended early") from None
    if size > most:
        raise HTTPException(413, f"the body is larger than {most / 1e6:g} MB: post less at once")
    return bytes(body)
