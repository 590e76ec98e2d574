"""How fast it is, as ratios: `python -m bench` runs everything, `python -m bench imports` a part.

Every figure sets Ontologia beside "bare", the least work with apsw and orjson that gives the same
answer from the same file, in the same run. That both give the same answer is checked first.
On PostgreSQL bare is psycopg, and two other queues run beside it on the same server.
"""
