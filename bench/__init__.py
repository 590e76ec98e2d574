"""How fast it is. A figure means something only beside the others of its run.

`python -m bench` keeps the goals (`goals/`): Ontologia beside "bare", the least work with apsw or psycopg and
orjson that gives the same answer from the same tables. `python -m bench imports` runs a part.

`python -m bench.beside` compares (`beside/`): Ontologia beside bare and beside what a user would pick
instead. `python -m bench.beside --size full --write-results bench/RESULTS.md` writes the project's figures.

Both need a clone with both distributions installed, `make .venv/.ready`; the other projects come with
`pip install -e '.[dev,bench]'`. `make bench` does all of it.
"""
