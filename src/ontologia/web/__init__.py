"""Commands over HTTP, and the console: ASGI applications (extra `web`).

`create_app(env, token=...)` carries out commands, `console(session, identify=...)` shows a store.
"""

from __future__ import annotations

from importlib import import_module

from ontologia.errors import ConfigError


def _check_packages() -> None:
    for package in ("starlette", "uvicorn", "h11", "jinja2"):
        try:
            import_module(package)
        except ImportError as error:
            raise ConfigError(
                f"HTTP needs the package {package}, which cannot be imported: {error}",
                hint="pip install 'ontologia[web]'",
            ) from error


_check_packages()  # before what needs them
from ontologia.web.app import create_app
from ontologia.web.console import User, console

__all__ = ["User", "console", "create_app"]
