"""How fast it is, as ratios: `python -m bench` runs everything, `python -m bench imports` a part.

Every figure sets Ontologia beside "bare", the least work with apsw and orjson that gives the same
answer from the same file, in the same run. That both give the same answer is checked first.
On PostgreSQL bare is psycopg. Goals are kept here; `ontologia bench`, which is part of the package,
sets it beside what a user would pick instead, and `python -m bench.beside` runs that on both databases.
"""
