"""The address of a SQLite database in a file, as SQLAlchemy reads it, by which MLflow reaches databases.

SQLAlchemy takes what follows a question mark for options, and from 2.1 on ``%`` for the beginning of an encoded byte. It is asked
only about paths with these, because its import takes a while.
"""

from pathlib import Path


def sqlite_file(uri: str) -> Path | None:
    """The file of a SQLite database; None if the URI is that of something else."""
    scheme, separator, path = uri.partition(":///")
    if not separator or scheme not in ("sqlite", "sqlite+pysqlite"):
        return None
    path = path.partition("?")[0]
    if "%" in path:
        from sqlalchemy import make_url

        path = make_url(uri).database or path
    return Path(path).absolute()


def sqlite_uri(file: Path) -> str:
    """The URI of a SQLite database in a file."""
    if not {"%", "?"} & set(str(file)):
        return f"sqlite:///{file}"
    from sqlalchemy import URL

    # MLflow would make a folder of the encoded name for an address that begins with "sqlite:".
    return URL.create("sqlite+pysqlite", database=str(file)).render_as_string()
