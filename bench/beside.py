"""`ontologia bench` on both databases: a PostgreSQL server of its own is started for it.

Whatever words are given go to the command. `python -m bench.beside --size full
--write-results bench/RESULTS.md` is what the figures of the project are taken from.
"""

from __future__ import annotations

import subprocess
import sys

from ontologia.testing.servers import Postgres


def main() -> int:
    with Postgres(durable=True) as server:
        words = ["bench", *sys.argv[1:], "--datastore-uri", server.uri]
        return subprocess.run([sys.executable, "-m", "ontologia", *words], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
