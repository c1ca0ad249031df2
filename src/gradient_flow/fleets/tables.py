"""The digests as tables that SQL can ask: DuckDB in memory, over the Parquet files of a store."""

from __future__ import annotations

import glob
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from gradient_flow.errors import InputError, MissingExtraError
from gradient_flow.fleets.digest import OPEN
from gradient_flow.fleets.store import COLUMNS, TABLES, Store, arrow

NAMES: Final = ("runs", "issues", "layers", "settings")
"""What can be asked for."""
_MEMORY: Final = "384MB"
"""What DuckDB may take; what needs more goes through files."""


class Kept(NamedTuple):
    """What a digest was made from."""

    size: int
    changed: int
    rules: str
    digest: int


class Tables:
    """A connection with `runs`, `issues`, `layers` and `settings`. A context manager."""

    def __init__(self, store: Store) -> None:
        self._duckdb = duckdb()
        self._store = store
        spilled = Path(tempfile.gettempdir(), f"gradient-flow-{os.getpid()}.duckdb")
        self._connection = self._duckdb.connect(config={"memory_limit": _MEMORY, "temp_directory": str(spilled)})
        self._parts: list[str] = []
        self._present: Mapping[str, str] = {}

    def close(self) -> None:
        """Let go of the connection."""
        self._connection.close()

    def __enter__(self) -> Tables:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def kept(self) -> dict[str, Kept]:
        """Of each run, what its newest digest was made from."""
        self._load()
        rows = self._connection.execute("SELECT run, size, changed, rules, digest FROM newest").fetchall()
        return {name: Kept(*rest) for name, *rest in rows}

    def open_runs(self) -> set[str]:
        """The runs whose file had no end when it was read."""
        self._load()
        return {name for (name,) in self.rows(f"SELECT run FROM newest WHERE state = '{OPEN}'")}

    def show(self, present: Mapping[str, str]) -> None:
        """Make the tables of the runs that are there. `present`: name → state, where the digest cannot tell."""
        self._load()
        self._present = present
        pyarrow = arrow()
        listed = pyarrow.table(
            {"run": pyarrow.array(list(present), "string"), "now": pyarrow.array(list(present.values()), "string")}
        )
        runs, issues, layers = (
            ", ".join(f'"{name}"' for name in COLUMNS[table]) for table in ("runs", "issues", "layers")
        )
        self._connection.register("listed", listed)
        shown = runs.replace('"state"', "coalesce(nullif(now, ''), state) AS state", 1)
        self._connection.execute(f"""
            CREATE OR REPLACE TABLE runs AS SELECT {shown}, part FROM newest JOIN listed USING (run) ORDER BY run;
            CREATE OR REPLACE TABLE issues AS
                SELECT {issues} FROM all_issues SEMI JOIN runs USING (run, part) ORDER BY run, place;
            CREATE OR REPLACE VIEW layers AS SELECT {layers} FROM all_layers SEMI JOIN runs USING (run, part);
            CREATE OR REPLACE VIEW settings AS
                SELECT run, entry.key AS name, entry.value AS value, try_cast(entry.value AS DOUBLE) AS number
                FROM (SELECT run, unnest(map_entries(settings)) AS entry FROM runs);
        """)
        self._connection.unregister("listed")

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """The rows of a query of our own."""
        found: list[tuple[Any, ...]] = self._connection.execute(query, list(values)).fetchall()
        return found

    def ask(self, query: str) -> Any:
        """The answer to a query of a user, as an Arrow table."""
        if not isinstance(query, str) or not query.strip():
            raise InputError(f"`query` must be SQL, such as SELECT run, cause FROM runs; got {query!r}.")
        try:
            return self._answer(query)
        except self._duckdb.IOException:  # another process has put the parts together meanwhile
            self.show(self._present)
        except self._duckdb.Error as problem:
            raise self._unanswered(problem) from problem
        try:
            return self._answer(query)
        except self._duckdb.Error as problem:
            raise self._unanswered(problem) from problem

    def _answer(self, query: str) -> Any:
        relation = self._connection.sql(query)
        return arrow().table({}) if relation is None else relation.to_arrow_table()

    def _unanswered(self, problem: Exception) -> InputError:
        tables = "\n".join(f"  {table}({', '.join(self.columns(table))})" for table in NAMES)
        return InputError(f"`query` cannot be answered. {problem}\n\nThere are\n{tables}")

    def columns(self, table: str) -> list[str]:
        """The columns of a table."""
        shown = {"settings": ["run", "name", "value", "number"]}
        return shown.get(table) or list(COLUMNS[table])

    def compact(self, present: Sequence[str]) -> None:
        """Put the parts together to one, without what has been superseded or is gone."""
        with self._store.alone() as alone:
            if not alone:
                return
            self._load()
            if not self._parts:
                return
            old, pyarrow = self._parts, arrow()
            self._connection.register("listed", pyarrow.table({"run": pyarrow.array(list(present), "string")}))
            self._connection.execute(
                "CREATE OR REPLACE TEMP TABLE kept AS SELECT run, part FROM newest SEMI JOIN listed USING (run)"
            )
            self._connection.unregister("listed")
            # Newer than the parts it replaces, older than any that comes after them.
            part = f"{max(old).partition('-')[0]}-z{time.time_ns()}-{os.getpid()}"
            for table in TABLES:
                columns = ", ".join(f'"{name}"' for name in COLUMNS[table])
                new = self._store.path(part, table)
                unfinished = new.with_name(f".{new.name}.{os.getpid()}.0.unfinished")
                query = f"SELECT {columns} FROM all_{table} SEMI JOIN kept USING (run, part)"
                self._connection.execute(f"COPY ({query}) TO {_quoted(unfinished)} (FORMAT parquet, COMPRESSION zstd)")
                os.replace(unfinished, new)
            self._store.remove(old)

    def _load(self) -> None:
        """Views over the parts that there are now."""
        self._parts = self._store.parts()
        for table in TABLES:
            # A bracket in a path would be a pattern.
            paths = [glob.escape(str(self._store.path(part, table))) for part in self._parts]
            files = ", ".join(map(_quoted, paths))
            columns = ", ".join(f'"{name}"' for name in COLUMNS[table])
            source = (
                f"SELECT {columns}, split_part(parse_filename(filename), '.', 1) AS part "
                f"FROM read_parquet([{files}], filename = true, union_by_name = true)"
                if files
                else _empty(table)
            )
            self._connection.execute(f"CREATE OR REPLACE VIEW all_{table} AS {source}")
        self._connection.execute("""
            CREATE OR REPLACE VIEW newest AS SELECT * FROM all_runs
            QUALIFY row_number() OVER (PARTITION BY run ORDER BY digested DESC, part DESC) = 1
        """)


def duckdb() -> Any:
    """DuckDB, or what to install."""
    try:
        import duckdb
    except ImportError as missing:
        raise MissingExtraError("fleet") from missing
    return duckdb


_TYPES: Final = {
    "string": "VARCHAR",
    "int64": "BIGINT",
    "float64": "DOUBLE",
    "bool_": "BOOLEAN",
    "map": "MAP(VARCHAR, VARCHAR)",
}


def _empty(table: str) -> str:
    columns = ", ".join(f'CAST(NULL AS {_TYPES[kind]}) AS "{name}"' for name, kind in COLUMNS[table].items())
    return f"SELECT {columns}, '' AS part WHERE false"


def _quoted(path: str | Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"
