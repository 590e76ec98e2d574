"""An OpenAPI description of the commands that there are, with every answer that is given.

What a payload holds is between a client and the handler: a command is described by its docstring.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from ontologia import __version__
from ontologia.commands import CommandTarget, Registry
from ontologia.web import problems
from ontologia.web.problems import MEDIA_TYPE, Kind

Json = dict[str, Any]
_REFERENCE = "#/components"
_OF_COMMANDS = (
    problems.MALFORMED,
    problems.UNAUTHORIZED,
    problems.FORBIDDEN,
    problems.NOT_FOUND,
    problems.SLOW,
    problems.VETO,
    problems.CONFLICT,
    problems.TOO_LARGE,
    problems.MEDIA,
    problems.INVALID,
    problems.INTERNAL,
    problems.UNAVAILABLE,
)
_HEADERS: dict[int, tuple[str, str]] = {
    401: ("WWW-Authenticate", "What to send: a bearer token."),
    503: ("Retry-After", "Seconds after which it may go better."),
}


def description(registry: Registry, *, secured: bool) -> Json:
    """The description of a server with these commands; `secured` if it asks for a token."""
    commands = registry.commands.items()
    of_heads = (problems.MALFORMED, *(() if secured else (problems.FORBIDDEN,)))
    paths = {f"/commands/{quote(name, safe='')}": _command(name, at) for name, at in commands}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Commands",
            "version": __version__,
            "description": "Each command is carried out at once, as a whole or not at all.",
        },
        "paths": {"/health": _health(of_heads), "/openapi.json": _self(of_heads), **paths},
        "components": {
            "schemas": {"Command": _BODY, "Health": _HEALTH, "Problem": _PROBLEM},
            "responses": {str(s): _response(s, kinds) for s, kinds in _by_status().items()},
            **(
                {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}}
                if secured
                else {}
            ),
        },
        **({"security": [{"token": []}]} if secured else {}),
    }


def _command(name: str, target: CommandTarget) -> Json:
    told = inspect.getdoc(getattr(target.model_cls, target.method_name)) or ""
    summary, _, rest = told.partition("\n\n")
    success = {
        "description": "What the command answered.",
        "headers": {
            "Idempotency-Replayed": {
                "description": "It is the answer that this key was given before.",
                "schema": {"const": "true"},
            }
        },
        "content": {"application/json": {"schema": {}}},
    }
    operation: Json = {
        "operationId": name,
        "summary": " ".join(summary.split()) or name,
        "tags": [target.model_cls.__model_key__],
        "parameters": [_KEY],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": _reference("schemas", "Command")}},
        },
        "responses": {"200": success, **_refer(_OF_COMMANDS)},
    }
    return {"post": operation | ({"description": rest} if rest else {})}


def _health(of_heads: Iterable[Kind]) -> Json:
    success = {
        "description": "The server works, and the database answers.",
        "content": {"application/json": {"schema": _reference("schemas", "Health")}},
    }
    failures = _refer((*of_heads, problems.INTERNAL, problems.UNAVAILABLE))
    # With or without the token: who has it is told more.
    return {
        "get": {
            "operationId": "health",
            "summary": "Whether the server works",
            "security": [],
            "responses": {"200": success, **failures},
        }
    }


def _self(of_heads: Iterable[Kind]) -> Json:
    success = {
        "description": "This description.",
        "content": {"application/json": {"schema": {"type": "object"}}},
    }
    failures = _refer((*of_heads, problems.UNAUTHORIZED, problems.INTERNAL))
    return {
        "get": {
            "operationId": "description",
            "summary": "This description",
            "responses": {"200": success, **failures},
        }
    }


def _refer(kinds: Iterable[Kind]) -> Json:
    return {str(each.status): _reference("responses", str(each.status)) for each in kinds}


def _reference(where: str, name: str) -> Json:
    return {"$ref": f"{_REFERENCE}/{where}/{name}"}


def _by_status() -> dict[int, list[Kind]]:
    found: dict[int, list[Kind]] = {}
    for kind in _OF_COMMANDS:
        found.setdefault(kind.status, []).append(kind)
    return found


def _response(status: int, kinds: list[Kind]) -> Json:
    types = {"enum": [kind.type for kind in kinds]}
    of_this_kind = {"properties": {"type": types, "status": {"const": status}}}
    schema: Json = {"allOf": [_reference("schemas", "Problem"), of_this_kind]}
    response: Json = {
        "description": "; ".join(kind.title for kind in kinds) or HTTPStatus(status).phrase,
        "content": {MEDIA_TYPE: {"schema": schema}},
    }
    if status in _HEADERS:
        name, told = _HEADERS[status]
        header: Json = {"description": told, "required": True, "schema": {"type": "string"}}
        response["headers"] = {name: header}
    return response


_KEY: Json = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "Asked for again under the same key, the command is not carried out again.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
}
_NAME: Json = {"type": ["string", "null"], "minLength": 1}
_BODY: Json = {
    "type": "object",
    "properties": {
        "payload": {"type": "object", "description": "What the handler is told."},
        "model_key": _NAME | {"description": "The model of the record that it is about."},
        "model_id": _NAME | {"description": "The id of that record."},
    },
    "required": ["payload"],
    "additionalProperties": False,
}
_HEALTH: Json = {
    "type": "object",
    "properties": {
        "status": {"const": "ok"},
        "queue": {"type": ["string", "null"], "description": "Where events go."},
        "worker": {"type": ["object", "null"], "description": "What the worker has done."},
        "outbox": {
            "type": "object",
            "description": "With a queue elsewhere: how many committed events wait for it, `lag`.",
        },
    },
    "required": ["status"],
}
_PROBLEM: Json = {
    "type": "object",
    "description": "RFC 9457.",
    "properties": {
        "type": {"type": "string", "description": "The kind of problem, as a URI."},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What happened."},
        "hint": {"type": "string", "description": "What helps."},
        "instance": {"type": "string", "description": "This one; the log has 5xx under it."},
    },
    "required": ["type", "title", "status", "detail", "instance"],
}
