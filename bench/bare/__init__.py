"""Bare: the least work that gives the same answer from the same tables, with apsw or psycopg and orjson."""
