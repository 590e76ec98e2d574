"""From a view to a page: templates, how values are shown, and links that keep place and time.

All that was stored is text to a page: templates escape it, characters that would hide or turn
around others are written out, and JSON is rendered here, number by number as it was stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import cached_property
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import jinja2
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse

from ontologia import codec
from ontologia.clock import to_text
from ontologia.runtime.session import core_of
from ontologia.runtime.views.times import commit_or_time

if TYPE_CHECKING:
    from ontologia.runtime.session import Session
    from ontologia.web.console.access import Login, User
    from ontologia.web.console.app import Console

HIDDEN = "hidden here"
"""What is shown of a value that `redact` names."""
_LONGEST_JSON = 20_000  # characters of one value on a page
_INDENT = "  "

NAVIGATION: tuple[tuple[str, tuple[tuple[str, str, str], ...]], ...] = (
    (
        "Queue",
        (
            ("overview", "Overview", "o"),
            ("events", "Events", "e"),
            ("dead_letters", "Dead letters", "d"),
            ("handlers", "Handlers", "h"),
            ("later", "Later", "l"),
            ("sessions", "Sessions", "s"),
        ),
    ),
    (
        "State",
        (
            ("types", "Types and objects", "t"),
            ("commits", "Commits", "c"),
        ),
    ),
    (
        "Operations",
        (
            ("audit", "Audit", "a"),
            ("health", "Health", "x"),
            ("preflight", "Before deploy", "p"),
        ),
    ),
)
"""Pages of the navigation, by the names of their routes, with the key after `g`. Those that have no
route are left out."""


class PageRequest:
    """One request of somebody who is signed in; what a page function is given. Runs in a thread."""

    def __init__(
        self, console: Console, request: Request, login: Login, form: dict[str, list[str]]
    ) -> None:
        self.console = console
        self.request = request
        self.login = login
        self.form = form
        """Of a POST: its fields."""

    @property
    def user(self) -> User:
        """Who sent it."""
        return self.login.user

    @cached_property
    def namespace(self) -> str:
        """The namespace that is looked at: `?namespace=`, or the console's."""
        return self.value("namespace") or self.console.session.namespace

    @cached_property
    def session(self) -> Session:
        """A session of that namespace, for views."""
        return self.console.session_of(self.namespace)

    @cached_property
    def head(self) -> int:
        """The number of the last commit."""
        return self.session.head

    @cached_property
    def as_of(self) -> int | None:
        """The commit as of which the page is asked for, `?as_of=` a number or time; None is now."""
        text = self.query("as_of")
        if text is None:
            return None
        return min(commit_or_time(text).commit(self.session), self.head)

    @cached_property
    def as_of_time(self) -> datetime | None:
        """The time that is looked at: as it was asked for, or when that commit was made."""
        text = self.query("as_of")
        if text is None or self.as_of is None:
            return None
        named = commit_or_time(text).named
        if isinstance(named, datetime):
            return named.astimezone(UTC)
        commit = self.session.get_commit(self.as_of)
        return None if commit is None else commit["created_at"]

    @cached_property
    def moment(self) -> int | datetime | None:
        """What views of the queue are asked for: that commit, or that time; None is now."""
        if self.as_of is None or isinstance(commit_or_time(self.query("as_of") or "").named, int):
            return self.as_of or self._before_all
        return self.as_of_time

    @property
    def _before_all(self) -> datetime | None:
        """Just before the first commit, if commit 0 was asked for."""
        first = self.session.get_commit(1) if self.as_of == 0 else None
        return None if first is None else first["created_at"] - timedelta(microseconds=1)

    @cached_property
    def now(self) -> datetime:
        """The time by the session's clock."""
        return core_of(self.session).clock.now()

    @property
    def may_change(self) -> bool:
        """Whether the user may use the verbs of an operator here."""
        return self.user.role == "operator" and not self.console.read_only

    def query(self, name: str) -> str | None:
        """A parameter of the query; None if it is not there, or empty."""
        return self.request.query_params.get(name, "").strip() or None

    def values(self, name: str) -> list[str]:
        """All values of a field of the form that was sent, else of a parameter of the query."""
        given = self.request.query_params.getlist(name)
        return self.form.get(name, []) if self.request.method == "POST" else given

    def value(self, name: str) -> str | None:
        """The first of them; None if there is none, or it is empty."""
        return next(iter(self.values(name)), "") or None

    @cached_property
    def done(self) -> list[dict[str, Any]]:
        """The commits of operators that `?done=` names: what was done a moment ago."""
        numbers = self.request.query_params.getlist("done")[:2]
        found = (self.session.get_commit(int(each)) for each in numbers if _is_number(each))
        redacted = self.console.rendering.redacted
        return [
            each | {"metadata": redacted(each["metadata"])}
            for each in found
            if each is not None and "operator" in each["metadata"]
        ]

    def has(self, name: str) -> bool:
        """Whether there is a page of that name."""
        return self.console.has_route(name)

    def link(self, name: str, /, **query: Any) -> str:
        """The URL of a page, by the name of its route; keeps namespace and time.

        `namespace=None` or `as_of=None` leaves them out; other parameters that are None, too.
        """
        kept: dict[str, Any] = {}
        if self.namespace != self.console.session.namespace:
            kept["namespace"] = self.namespace
        kept["as_of"] = self.query("as_of")
        kept |= query
        given = {key: value for key, value in kept.items() if value is not None}
        path = self.request.scope.get("root_path", "") + self.console.path_of(name)
        return f"{path}?{urlencode(given, doseq=True)}" if given else path

    def here(self, **query: Any) -> str:
        """The URL of this page with other parameters; None leaves one out."""
        params = self.request.query_params
        given: dict[str, Any] = {key: params.getlist(key) for key in params} | query
        given = {key: value for key, value in given.items() if value is not None}
        path = self.request.scope.get("root_path", "") + self.request.scope["path"].removeprefix(
            self.request.scope.get("root_path", "")
        )
        return f"{path}?{urlencode(given, doseq=True)}" if given else path


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 19


class Rendering:
    """The templates, with the console's filters."""

    def __init__(self, redact: Iterable[str]) -> None:
        self.redact = frozenset(each.casefold() for each in redact)
        self.environment = jinja2.Environment(
            loader=jinja2.PackageLoader("ontologia.web.console", "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            finalize=_shown,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        filters: dict[str, Any] = self.environment.filters
        filters.update(
            time=time,
            age=age,
            seconds=seconds,
            count=count,
            json=self.json,
            inline=self.inline,
            exact=exact,
            shorten=shorten,
            brief=brief,
        )

    def render(self, template: str, **context: Any) -> str:
        """The text of a page."""
        return self.environment.get_template(template).render(context)

    def hides(self, path: str) -> bool:
        """Whether the values under a dotted path of keys are hidden; a key may have dots itself."""
        whole = f".{path.casefold()}."
        return any(f".{key}." in whole for key in self.redact)

    def hides_key(self, key: str) -> bool:
        """Whether the values of a key are hidden."""
        return key.casefold() in self.redact

    def redacted(self, value: Any) -> Any:
        """The same value without what `redact` names."""
        if isinstance(value, dict):
            return {
                key: HIDDEN if self.hides_key(key) else self.redacted(each)
                for key, each in value.items()
            }
        return [self.redacted(each) for each in value] if isinstance(value, list) else value

    def json(self, value: Any, longest: int = _LONGEST_JSON) -> Markup:
        """A JSON value over several lines, coloured; of a long one the beginning."""
        parts: list[str] = []
        left = longest
        for kind, text in _tokens(self.redacted(value), ""):
            clipped = text[:left]
            left -= len(clipped)
            shown = str(escape(visible(clipped)))
            parts.append(f'<span class="{kind}">{shown}</span>' if kind else shown)
            if left <= 0:
                whole = len(codec.encode_checked(value))
                parts.append(f'<span class="cut">… ({whole:,} characters in all)</span>')
                break
        return Markup('<pre class="json"><code>{}</code></pre>').format(Markup("".join(parts)))  # noqa: S704

    def inline(self, value: Any, longest: int = 120) -> Markup:
        """A JSON value in one line, clipped."""
        text = codec.encode_checked(self.redacted(value))
        if isinstance(value, str):
            text = value
        return Markup("<code>{}</code>").format(_clipped(text, longest))


def page(
    request: PageRequest,
    template: str,
    *,
    title: str,
    status: int = 200,
    past: bool = False,
    live: bool = True,
    **context: Any,
) -> HTMLResponse:
    """Render a page that extends `base.html`.

    `past` says that the view did look at `request.as_of`; `live`, that the page is fetched again
    when something changes.
    """
    console = request.console
    text = console.rendering.render(
        template,
        page=request,
        user=request.user,
        title=title,
        label=console.label,
        namespace=request.namespace,
        namespaces=console.namespaces(),
        navigation=_navigation(request),
        link=request.link,
        here=request.here,
        has=request.has,
        static=console.static_url(request.request),
        now=request.now,
        head=request.head,
        as_of=request.as_of,
        as_of_time=request.as_of_time,
        past=past,
        live=live and request.as_of is None,
        read_only=console.read_only,
        may_change=request.may_change and request.as_of is None,
        theme=theme_of(request.request),
        **context,
    )
    return HTMLResponse(text, status)


def theme_of(request: Request) -> str | None:
    """The theme that the user switched to; None follows the system."""
    found = request.cookies.get("ontologia_theme")
    return found if found in ("light", "dark") else None


def _navigation(request: PageRequest) -> list[tuple[str, list[tuple[str, str, str]]]]:
    groups = [
        (title, [each for each in pages if request.has(each[0])]) for title, pages in NAVIGATION
    ]
    return [each for each in groups if each[1]]


# -- values ---------------------------------------------------------------------------------------


_HIDING = (
    *(code for code in range(0x20) if code not in (0x09, 0x0A)),
    *range(0x7F, 0xA0),
    *(0xAD, 0x61C, 0x180E, 0xFEFF),
    *range(0x200B, 0x2010),
    *range(0x2028, 0x202F),
    *range(0x2060, 0x2070),
    *range(0xFFF9, 0xFFFC),
    *range(0xE0000, 0xE0080),
    *(0x115F, 0x1160, 0x3164, 0xFFA0),  # fillers of Hangul: blank letters
)
"""Characters that cannot be seen, or that hide, or turn around, those beside them."""
_WRITTEN_OUT = {code: f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}" for code in _HIDING}


def visible(text: str) -> str:
    """Text whose every character can be seen: others are written as escapes."""
    return text.translate(_WRITTEN_OUT)


def _shown(value: Any) -> Any:
    """What templates print of an expression."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def exact(value: str) -> Markup:
    """Text in an attribute that comes back as it is: `<input type="hidden" value=…>`."""
    return escape(value)


def shorten(text: str, longest: int = 80) -> Markup:
    """The beginning of a text; all of it, up to a bound, when pointed at."""
    return _clipped(text, longest)


def brief(id_: str) -> str:
    """The ends of an id: those of UUIDs made in one moment begin alike."""
    return f"{id_[:8]}…{id_[-6:]}" if len(id_) > 24 else id_


def _clipped(text: str, longest: int) -> Markup:
    if len(text) <= longest:
        return escape(visible(text))
    return Markup('<span title="{}">{}…</span>').format(
        visible(text[:1_000]), visible(text[: longest - 1])
    )


def time(when: datetime | None) -> Markup:
    """A time in UTC, to the second; all of it in `datetime`."""
    if when is None:
        return Markup('<span class="none">never</span>')
    utc = when.astimezone(UTC)
    return Markup('<time datetime="{}" title="{} UTC">{}</time>').format(
        to_text(utc), f"{utc:%Y-%m-%d %H:%M:%S.%f}", f"{utc:%Y-%m-%d %H:%M:%S}"
    )


def age(when: datetime | None, now: datetime) -> Markup:
    """How long ago, or in how long: `3 min ago`; the time itself when pointed at."""
    if when is None:
        return Markup('<span class="none">-</span>')
    utc = when.astimezone(UTC)
    length = now - utc
    text = f"{_span(length)} ago" if length >= timedelta(0) else f"in {_span(-length)}"
    return Markup('<time datetime="{}" title="{} UTC">{}</time>').format(
        to_text(utc), f"{utc:%Y-%m-%d %H:%M:%S.%f}", text
    )


def seconds(length: timedelta | float | None) -> str:
    """A length of time: `340 ms`, `2.1 s`, `3 min`."""
    if length is None:
        return "-"
    if not isinstance(length, timedelta):
        length = timedelta(seconds=length)
    return _span(length)


def _span(length: timedelta) -> str:
    total = length.total_seconds()
    if total < 1:
        return f"{total * 1_000:.0f} ms"
    if total < 10:
        return f"{total:.1f} s"
    for unit, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if total >= unit:
            return f"{total // unit:,.0f} {name}"
    return f"{total:.0f} s"


def count(number: object) -> str:
    """A number with its thousands apart; a `Count` with its bound."""
    return f"{number:,}" if isinstance(number, int) else str(number)


def _tokens(value: Any, indent: str) -> Iterator[tuple[str, str]]:
    """A JSON value as (class, text), over several lines."""
    inner = indent + _INDENT
    if isinstance(value, dict) and value:
        yield from _members(
            "{}", indent, ((key, value[key]) for key in sorted(value)), lambda key: key
        )
    elif isinstance(value, list) and value:
        yield "", "[\n"
        for number, each in enumerate(value):
            yield "", inner
            yield from _tokens(each, inner)
            yield "", ",\n" if number < len(value) - 1 else f"\n{indent}]"
    elif isinstance(value, str):
        yield ("hid" if value == HIDDEN else "s"), codec.encode_checked(value)
    elif value is None or isinstance(value, bool):
        yield "b", codec.encode_checked(value)
    elif isinstance(value, int | float):
        yield "n", codec.encode_checked(value)
    else:
        yield "", codec.encode_checked(value)


def _members(
    ends: str, indent: str, members: Iterable[tuple[str, Any]], name: Callable[[str], str]
) -> Iterator[tuple[str, str]]:
    inner = indent + _INDENT
    yield "", f"{ends[0]}\n"
    first = True
    for key, each in members:
        yield "", inner if first else f",\n{inner}"
        first = False
        yield "k", codec.encode_checked(name(key))
        yield "", ": "
        yield from _tokens(each, inner)
    yield "", f"\n{indent}{ends[1]}"


def static_files() -> dict[str, tuple[bytes, str]]:
    """What `static/` has, by name: the bytes, and their media type."""
    kinds = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
    found: dict[str, tuple[bytes, str]] = {}
    folder = files("ontologia.web.console") / "static"
    for part in (folder, folder / "vendor"):
        for each in part.iterdir():
            kind = kinds.get(each.name[each.name.rfind(".") :])
            if kind is not None and each.is_file():
                found[each.name] = (each.read_bytes(), f"{kind}; charset=utf-8")
    return found
