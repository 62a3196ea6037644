"""The admin API: look at the running router, and change its fleet, objective and policy.

It is an application of its own, for a port of its own. With a token every route but the page itself asks for
`Authorization: Bearer TOKEN`. Without one, only requests that name this machine as their host are answered, so that a
web page elsewhere cannot reach it through a browser; for the same reason every change must come as JSON.
"""

from __future__ import annotations

import ipaddress
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from msgspec import Meta

from bidroute.errors import BidrouteError, ConfigError
from bidroute.router.fleet_admin import FleetAdmin, NoSuchError
from bidroute.router.keys import BearerKeys
from bidroute.router.metrics import CONTENT_TYPE, RouterMetrics
from bidroute.router.page import PAGE_HEADERS, page_html

_LARGEST_BODY_BYTES = 64 * 1024
_FLEET = web.AppKey("fleet", FleetAdmin)
_METRICS = web.AppKey("metrics", RouterMetrics)

Slots = Annotated[int, Meta(ge=1, le=1_000_000)]
Tokens = Annotated[int, Meta(ge=1, le=1_000_000_000_000)]


class Resize(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of a resize; what is left out stays."""

    batch_slots: Slots | None = None
    kv_tokens: Tokens | None = None


class ObjectiveChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of a change of objective: a preset, or term=weight pairs."""

    objective: Annotated[str, Meta(min_length=1, max_length=1000)]


class PolicyChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of a change of policy."""

    policy: Annotated[str, Meta(min_length=1, max_length=100)]


def build_admin_app(fleet: FleetAdmin, metrics: RouterMetrics, token: str | None = None) -> web.Application:
    """The application; `token` None leaves it open to this machine only.

    Raises ConfigError for an empty token, which would look like protection and be none.
    """
    if token is not None and not token.strip():
        raise ConfigError("the admin token is empty; give one of some length, or none to allow only this machine")
    app = web.Application(
        middlewares=[_answer_errors, _require_token(token) if token else _require_this_machine],
        client_max_size=_LARGEST_BODY_BYTES,
    )
    app[_FLEET], app[_METRICS] = fleet, metrics
    app.add_routes(
        [
            web.get("/", _page),
            web.get("/metrics", _metrics),
            web.get("/admin/state", _state),
            web.get("/admin/explain/{id}", _explain),
            web.post("/admin/workers", _add_worker),
            web.post("/admin/workers/{name}/drain", _drain_worker),
            web.post("/admin/workers/{name}/resize", _resize_worker),
            web.delete("/admin/workers/{name}", _remove_worker),
            web.patch("/admin/objective", _set_objective),
            web.patch("/admin/policy", _set_policy),
        ]
    )
    return app


# --- who may ask ------------------------------------------------------------------------------------------------


def _require_token(token: str) -> Middleware:
    keys = BearerKeys((token,))

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        # The page holds no data: a browser must be able to load it before its user can give the token.
        if request.path != "/" and not keys.know(request.headers.get("Authorization")):
            answer = _error(401, "the admin token is missing or wrong; send Authorization: Bearer TOKEN")
            answer.headers["WWW-Authenticate"] = "Bearer"
            return answer
        return await handler(request)

    return check


@web.middleware
async def _require_this_machine(request: web.Request, handler: Handler) -> web.StreamResponse:
    if not _is_loopback(request.host):
        return _error(403, "without an admin token only localhost is answered; set a token to allow others")
    return await handler(request)


def _is_loopback(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


# --- answers ----------------------------------------------------------------------------------------------------


@web.middleware
async def _answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except NoSuchError as problem:
        return _error(404, str(problem))
    except BidrouteError as problem:
        return _error(400, str(problem))
    except web.HTTPRequestEntityTooLarge:
        return _error(413, f"the body is too large; expected {_LARGEST_BODY_BYTES} bytes at most")
    except web.HTTPException as problem:
        return _error(problem.status, f"{request.method} {request.path}: {problem.reason}")


def _error(status: int, message: str) -> web.Response:
    return _json({"error": {"message": " ".join(message.split()), "code": status}}, status)


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(value),
        status=status,
        content_type="application/json",
        headers={"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"},
    )


async def _body(request: web.Request, kind: Any) -> Any:
    """The request's JSON body as `kind`. Raises ConfigError with one line for anything else."""
    if request.content_type != "application/json":
        raise ConfigError(f"content type {request.content_type!r}; expected application/json")
    try:
        return msgspec.json.decode(await request.read() or b"{}", type=kind)
    except msgspec.ValidationError as problem:
        raise ConfigError(f"body: {problem}".replace("`", "")) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise ConfigError("body: not valid JSON; expected one object") from None


# --- routes -----------------------------------------------------------------------------------------------------


async def _page(_request: web.Request) -> web.Response:
    return web.Response(text=page_html(), content_type="text/html", headers=PAGE_HEADERS)


async def _metrics(request: web.Request) -> web.Response:
    metrics = request.app[_METRICS]
    metrics.observe_state(request.app[_FLEET].state())
    return web.Response(body=await metrics.render_in_steps(), headers={"Content-Type": CONTENT_TYPE})


async def _state(request: web.Request) -> web.Response:
    return _json(request.app[_FLEET].state())


async def _explain(request: web.Request) -> web.Response:
    return _json(request.app[_FLEET].explain(request.match_info["id"]))


async def _add_worker(request: web.Request) -> web.Response:
    name = await request.app[_FLEET].add_worker(await _body(request, dict[str, Any]))
    return _json({"name": name}, 201)


async def _drain_worker(request: web.Request) -> web.Response:
    await _body(request, dict[str, Any])
    name = request.match_info["name"]
    await request.app[_FLEET].drain_worker(name)
    return _json({"name": name, "status": "draining"})


async def _resize_worker(request: web.Request) -> web.Response:
    change: Resize = await _body(request, Resize)
    if change.batch_slots is None and change.kv_tokens is None:
        raise ConfigError("resize: nothing to change; give batch_slots, kv_tokens or both")
    name = request.match_info["name"]
    await request.app[_FLEET].resize_worker(name, change.batch_slots, change.kv_tokens)
    return _json({"name": name})


async def _remove_worker(request: web.Request) -> web.Response:
    now = request.query.get("now", "false")
    if now not in ("true", "false"):
        raise ConfigError(f"now={now!r}; expected true or false")
    name = request.match_info["name"]
    await request.app[_FLEET].remove_worker(name, now=now == "true")
    return _json({"name": name, "status": "removed" if now == "true" else "leaving"})


async def _set_objective(request: web.Request) -> web.Response:
    change: ObjectiveChange = await _body(request, ObjectiveChange)
    await request.app[_FLEET].set_objective(change.objective)
    return _json({"objective": request.app[_FLEET].state().objective})


async def _set_policy(request: web.Request) -> web.Response:
    change: PolicyChange = await _body(request, PolicyChange)
    await request.app[_FLEET].set_policy(change.policy)
    return _json({"policy": request.app[_FLEET].state().policy})
