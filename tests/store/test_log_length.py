"""SQLite's write-ahead log is brought to its full length before a worker's first turns."""

from pathlib import Path

import apsw

from holdfast.store.sqlite import CHECKPOINT_PAGES, SqliteStore, connect, lengthen_log
from tests.store.support import an_instance, put, row_of


def tables(connection: apsw.Connection) -> set[str]:
    return {name for (name,) in connection.execute("select name from sqlite_schema where type = 'table'")}


async def test_the_log_is_long_before_it_is_needed_and_holds_nothing_new(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = SqliteStore(f"sqlite:///{path}")
    await store.open(migrate=True)
    one = an_instance(store)
    await put(store, one)
    other = connect(str(path))  # another process's connection, reading all along
    other.execute("begin; select count(*) from holdfast_instances").fetchall()
    before, size = tables(other), path.stat().st_size
    await store.warm_up()
    log = Path(f"{path}-wal")
    long = log.stat().st_size
    assert long >= CHECKPOINT_PAGES * 4096
    await store.warm_up()
    two = an_instance(store)
    await put(store, two)
    assert log.stat().st_size == long, "a commit wrote over what was there"
    other.execute("rollback")
    assert tables(other) == before
    assert path.stat().st_size == size
    assert other.execute("pragma integrity_check").fetchall() == [("ok",)]
    other.close()
    assert (await row_of(store, one))["status"] == (await row_of(store, two))["status"] == "pending"
    await store.close()


def test_a_log_cut_off_by_a_crash_is_read_to_its_last_commit(tmp_path: Path) -> None:
    """The filler is never committed: whoever opens the file after a crash finds it as it was."""
    path = tmp_path / "crashed.db"
    connection = connect(str(path))
    connection.execute("create table kept (n)")
    lengthen_log(str(path))
    connection.execute("insert into kept values (1)")
    copy = tmp_path / "copy.db"  # what is on disk at this moment, as a crash would leave it
    copy.write_bytes(path.read_bytes())
    Path(f"{copy}-wal").write_bytes(Path(f"{path}-wal").read_bytes())
    connection.close()
    found = connect(str(copy))
    assert found.execute("select n from kept").fetchall() == [(1,)]
    assert tables(found) == {"kept"}
    found.close()
