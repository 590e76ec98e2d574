"""What `import ontologia` costs, each time in a process of its own.

Measured inside the process, so the start of the interpreter does not count, and with compiled
modules in a cache of its own, as they are where packages are installed.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

from bench.goals.figures import Count, Figure, Ratio
from bench.processes import environment

_ROUNDS = 15
_TIMED = "import time; start = time.perf_counter()\n{}\nprint(time.perf_counter() - start)"
_MODEL = """
import pydantic
class Customer(pydantic.BaseModel):
    id: str
    name: str
    tier: str = "standard"
    profile: dict[str, object] = pydantic.Field(default_factory=dict)
"""
_IMPORT = "import ontologia"
_MODEL_AND_CONNECTION = f"""{_MODEL}
import apsw, orjson
orjson.dumps(Customer(id="c1", name="Ada").model_dump())
apsw.Connection(":memory:").close()
"""
_ENTITY_AND_SESSION = """
from ontologia import Entity, Field, Session
class Customer(Entity):
    id: Field[str] = Field(primary_key=True)
    name: Field[str]
    tier: Field[str] = Field(default="standard", index=True)
    profile: Field[dict[str, object]] = Field(default_factory=dict)
with Session(":memory:") as session:
    session.ensure(Customer(id="c1", name="Ada"))
"""
# Whether a module is looked for counts, not whether it is installed here.
_LOOKED_FOR = """
import sys
class Watch:
    @staticmethod
    def find_spec(name, path=None, target=None):
        found.append(name)
found = []
sys.meta_path.insert(0, Watch)
from ontologia import Entity, Event, Field, Session, on_event  # names are imported when they are used
print(*found)
"""
_OPTIONAL = {"psycopg", "psycopg_pool", "h11", "starlette", "uvicorn"}
_FACES = {"typer", "click", "rich", "ontologia.cli", "ontologia.web"}


def figures() -> Iterator[Figure]:
    title = "import ontologia, beside pydantic and one model class"
    yield _compare(Ratio(title, 1.5), _MODEL, _IMPORT)
    title = "  and one class, one session in memory, one commit"
    yield _compare(Ratio(title), _MODEL_AND_CONNECTION, _ENTITY_AND_SESSION)
    yield from _modules(_run(_LOOKED_FOR).split())


def _run(program: str) -> str:
    """What a process prints."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout


def _compare(figure: Ratio, bare: str, ours: str) -> Ratio:
    for number in range(_ROUNDS + 1):
        times = [float(_run(_TIMED.format(program))) for program in (bare, ours)]
        if number:  # the first round compiles
            figure.bare.append(times[0])
            figure.ours.append(times[1])
    return figure


def _modules(looked_for: list[str]) -> Iterator[Count]:
    assert "pydantic" in looked_for
    for title, unwanted in (
        ("optional dependencies that it imports", _OPTIONAL),
        ("modules of the command line and the web that it imports", _FACES),
    ):
        found = [n for n in looked_for if n in unwanted or n.partition(".")[0] in unwanted]
        yield Count(title, len(found), 0, detail="".join(found[:1]))
    ours = [name for name in looked_for if name.partition(".")[0] == "ontologia"]
    title = "modules of its own that it imports"
    yield Count(title, len(ours), detail=f"of {len(looked_for)} in all")
