"""Several processes want the same values: each value has one holder."""

from __future__ import annotations

from contextlib import ExitStack

from ontologia import Entity, Field, Session
from tests.integration.processes import Process

VALUES = 15
PROGRAM = """
from tests.integration.test_unique_races import VALUES, Seat

session = Session(sys.argv[1], entity_types=[Seat])
say("ready")
listen()
won = []
for number in range(VALUES):
    session.ensure(Seat(id=f"{sys.argv[2]}-{number}", place=number))
    try:
        session.commit()
        won.append(number)
    except UniqueViolationError:
        session.discard()
session.close()
report(won)
"""


class Seat(Entity):
    id: Field[str]
    place: Field[int] = Field(unique=True)


def test_of_several_processes_one_gets_each_value(uri: str) -> None:
    Session(uri, entity_types=[Seat]).close()
    with ExitStack() as stack:
        processes = [stack.enter_context(Process(PROGRAM, uri, name)) for name in "abc"]
        for process in processes:
            process.hear("ready")
        for process in processes:
            process.tell()
        won = [process.report() for process in processes]

    assert sorted(number for each in won for number in each) == list(range(VALUES))
    with Session(uri) as session:
        seats = session.query().entities(Seat).collect()
    assert sorted(seat.place for seat in seats) == list(range(VALUES))
