"""Who gets in: nobody by default; logins, hosts, and what every answer says to browsers."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from ontologia import OntologiaConfig
from ontologia.errors import ConfigError
from ontologia.testing import ManualClock
from ontologia.web import console
from ontologia_conformance.backends import SQLite
from tests.integration.console.world import (
    HOST,
    SAME_ORIGIN,
    TOKEN,
    Browser,
    ada,
    browsing,
    field,
    opened,
)


@pytest.fixture(scope="session")
def backend(sqlite: SQLite) -> SQLite:
    """Logins are kept in the process."""
    return sqlite


@pytest.fixture
def store(open_session):
    return open_session()


@pytest.fixture
def desk(store):
    """A console with a login page, and a browser that is not signed in."""
    app = opened(store, identify=None, token=TOKEN)
    with browsing(app) as browser:
        browser.console = app
        yield browser
    app.close()


@pytest.mark.req("NEW-216")
def test_it_is_closed_by_default(store):
    with pytest.raises(ConfigError, match="closed by default"):
        console(store)


def test_nobody_sees_a_page_without_a_login(desk):
    answer = desk.get("/?namespace=shop")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/login?next=%2F%3Fnamespace%3Dshop"
    assert desk.get("/live").status_code == 401


def test_the_token_signs_in_and_a_name_is_asked_for(desk):
    assert desk.sign_in(given="wrong").status_code == 403
    assert "your name" in desk.sign_in(name=" ").text
    assert desk.get("/").status_code == 303
    answer = desk.sign_in()
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    page = desk.get("/")
    assert page.status_code == 200
    assert "ada@console" in page.text
    assert TOKEN not in page.text


@pytest.mark.req("NEW-216")
def test_a_login_url_opens_once(desk):
    path = desk.console.login_path()
    asked = desk.get(path)
    code = field(asked, "code")
    assert code in path
    assert desk.get(path).status_code == 200  # looking at it does not use it
    assert desk.post("/login", {"code": code, "name": "ada"}).status_code == 303
    with browsing(desk.console) as other:
        assert "used already" in other.get(path).text
        assert other.post("/login", {"code": code, "name": "eve"}).status_code == 403
        assert other.get("/").status_code == 303


def test_a_login_url_and_a_login_end_with_time(place):
    from ontologia import Session

    clock = ManualClock()
    with Session(place("sqlite"), config=OntologiaConfig(clock=clock)) as session:
        app = opened(session, identify=None, token=TOKEN)
        path = app.login_path()
        with browsing(app) as browser:
            browser.sign_in()
            assert browser.get("/").status_code == 200
            clock.advance(seconds=timedelta(minutes=15).total_seconds())
            assert "too old" in browser.get(path).text
            clock.advance(seconds=timedelta(hours=12).total_seconds())
            assert browser.get("/").status_code == 303
        app.close()


def test_a_cookie_is_worth_nothing_after_signing_out(desk):
    desk.sign_in()
    stolen = dict(desk.cookies)
    token = field(desk.get("/"), "form_token")
    assert desk.post("/logout", {"form_token": "0" * 64}).status_code == 403
    assert desk.post("/logout", {"form_token": token}).status_code == 303
    with browsing(desk.console) as thief:
        thief.cookies.update(stolen)
        assert thief.get("/").status_code == 303


def test_a_cookie_of_another_console_is_not_known(desk, store):
    other = opened(store, identify=None, token=TOKEN)
    with browsing(other) as browser:
        browser.sign_in()
        [value] = dict(browser.cookies).values()
    desk.cookies.set(desk.console.access.cookie, value)
    assert desk.get("/").status_code == 303


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost@evil.example", "127.0.0.1.evil.example", "", "a b"]
)
def test_a_foreign_host_is_refused(desk, host):
    desk.sign_in()
    answer = desk.get("/", headers={"Host": host})
    assert answer.status_code == 421
    assert "content-security-policy" in answer.headers


@pytest.mark.parametrize("host", ["localhost:8000", "127.0.0.1", "[::1]:80"])
def test_this_machine_has_its_names(desk, host):
    assert desk.get("/login", headers={"Host": host}).status_code == 200


def test_other_names_are_given(store):
    app = opened(store, identify=None, token=TOKEN, hosts=["ops.example"])
    with browsing(app, "https://ops.example") as browser:
        assert browser.get("/login").status_code == 200
        assert browser.get("/login", headers={"Host": "localhost"}).status_code == 421


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Origin": HOST},
        {"Sec-Fetch-Site": "same-origin", "Origin": "http://127.0.0.1:9"},
    ],
)
def test_a_form_of_another_site_signs_nobody_in(desk, headers):
    answer = desk.post("/login", {"token": TOKEN, "name": "eve"}, headers=headers)
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(
    "wanted", ["//evil.example", "https://evil.example", "/\\evil.example", "/a\r\nX: y", "x"]
)
def test_signing_in_leads_to_no_other_site(desk, wanted):
    answer = desk.post("/login", {"token": TOKEN, "name": "ada", "next": wanted})
    assert answer.headers["location"] == "/"
    assert "x" not in answer.headers


@pytest.mark.req("NEW-216")
def test_every_answer_tells_browsers_what_they_may_do(desk):
    answers = [desk.get("/"), desk.get("/login"), desk.get("/nothing"), desk.get("/live")]
    answers += [desk.post("/login", {}), desk.get("/static/x/console.css"), desk.get("/static/x/y")]
    desk.sign_in()
    answers += [desk.get("/"), desk.request("DELETE", "/"), desk.get("/?as_of=x")]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in policy
        assert "require-trusted-types-for 'script'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] in ("no-store",)


@pytest.mark.parametrize("path", ["/static/x/../app.py", "/static/x/%2e%2e%2fapp.py", "/static/x/"])
def test_nothing_but_static_files_is_read(desk, path):
    assert desk.get(path).status_code == 404


def test_a_form_is_bounded_and_a_form(desk):
    desk.sign_in()
    large = desk.request("POST", "/logout", content=b"a=" + b"x" * 2**20, headers=SAME_ORIGIN)
    assert large.status_code == 415
    form = SAME_ORIGIN | {"Content-Type": "application/x-www-form-urlencoded"}
    assert (
        desk.request("POST", "/logout", content=b"x" * (2**20 + 1), headers=form).status_code == 413
    )
    many = "&".join(f"a{n}=" for n in range(1_001)).encode()
    assert desk.request("POST", "/logout", content=many, headers=form).status_code == 400


def test_it_is_mounted_anywhere(store):
    app = opened(store)
    with browsing(Starlette(routes=[Mount("/ops", app)])) as browser:
        page = browser.get("/ops/")
        assert page.status_code == 200
        links = [each.split('"')[0] for each in page.text.split('href="')[1:]]
        assert links
        assert all(each.startswith(("/ops/", "#")) for each in links), links
        assert browser.get(next(each for each in links if each.endswith(".css"))).status_code == 200


def test_who_is_not_known_to_the_application_sees_nothing(store):
    app = opened(store, identify=lambda scope: ada(scope) if scope["path"] == "/known" else None)
    with browsing(app) as browser:
        assert browser.get("/").status_code == 401


def test_identify_may_be_async_and_its_errors_stay_here(store):
    async def identify(scope):
        raise ValueError("the secret of the application")

    app = opened(store, identify=identify)
    with browsing(app) as browser:
        answer = browser.get("/")
        assert answer.status_code == 500
        assert "secret" not in answer.text
        assert isinstance(browser, Browser)


def test_a_cookie_of_another_application_does_not_hide_the_login(desk):
    desk.sign_in()
    [(name, value)] = dict(desk.cookies).items()
    desk.cookies.clear()
    headers = {"Cookie": f'foo={{"a":1}}; bad name=x; {name}={value}'}
    assert desk.get("/", headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("proto", "secure"),
    [("https, http", True), ("HTTPS", True), ("http, https", False), ("", False)],
)
def test_a_cookie_is_for_tls_alone_if_the_first_proxy_has_it(desk, proto, secure):
    sent = SAME_ORIGIN | {"X-Forwarded-Proto": proto}
    answer = desk.post("/login", {"token": TOKEN, "name": "ada"}, headers=sent)
    assert ("Secure" in answer.headers["set-cookie"]) == secure


def test_the_path_of_a_cookie_is_quoted(store):
    console_app = opened(store, identify=None, token=TOKEN)
    with browsing(Starlette(routes=[Mount("/a b;c", console_app)])) as browser:
        answer = browser.post("/a%20b%3Bc/login", {"token": TOKEN, "name": "ada"})
        assert "Path=/a%20b%3Bc;" in answer.headers["set-cookie"]
        token = field(browser.get("/a%20b%3Bc/"), "form_token")
        answer = browser.post("/a%20b%3Bc/logout", {"form_token": token})
        assert "Path=/a%20b%3Bc;" in answer.headers["set-cookie"]
    console_app.close()


@pytest.mark.parametrize("name", ["ada\u3164", "a\u200dda", "ada\u115f"])
def test_a_name_with_a_character_that_cannot_be_seen_is_refused(desk, name):
    answer = desk.sign_in(name)
    assert (answer.status_code, "cannot be shown" in answer.text) == (400, True)


@pytest.mark.parametrize("path", ["/login", "/logout"])
def test_a_client_that_goes_away_in_its_form_is_no_error(desk, caplog, path):
    desk.sign_in()
    cookies = "; ".join(f"{name}={value}" for name, value in dict(desk.cookies).items())
    headers = SAME_ORIGIN | {
        "Host": "127.0.0.1:8000",
        "Cookie": cookies,
        "Content-Type": "application/x-www-form-urlencoded",
        "Content-Length": "9",
    }
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": [(key.lower().encode(), each.encode()) for key, each in headers.items()],
    }
    sent = []

    async def receive():
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    asyncio.run(desk.console(scope, receive, send))
    assert sent[0]["status"] == 400
    assert not caplog.records
