"""Commands over HTTP: `create_app(env, token=...)` is an ASGI application (extra `web`)."""

from __future__ import annotations

from importlib import import_module

from ontologia.errors import ConfigError


def _check_packages() -> None:
    for package in ("starlette", "uvicorn", "h11"):
        try:
            import_module(package)
        except ImportError as error:
            raise ConfigError(
                f"HTTP needs the package {package}, which cannot be imported: {error}",
                hint="pip install 'ontologia[web]'",
            ) from error


_check_packages()  # before what needs them
from ontologia.web.app import create_app

__all__ = ["create_app"]
