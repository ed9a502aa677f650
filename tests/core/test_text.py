import pytest

from asyncrl.core.text import without_passwords


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://ann:s3/cr:et@host:5432/db", "postgresql://ann:***@host:5432/db"),
        ("postgresql://:secret@host/db", "postgresql://:***@host/db"),
        ("tracking.uri='mysql+pymysql://ann:secret@host'", "tracking.uri='mysql+pymysql://ann:***@host'"),
        (
            "postgresql://host/db?user=ann&password=secret&sslmode=require",
            "postgresql://host/db?user=ann&password=***&sslmode=require",
        ),
        ('uri: "a://b:secret@c" and d://e:secret@f', 'uri: "a://b:***@c" and d://e:***@f'),
        ("postgresql://ann@host:5432/db", "postgresql://ann@host:5432/db"),
        ("http://127.0.0.1:5000", "http://127.0.0.1:5000"),
        ("sqlite:////runs/mlflow.db", "sqlite:////runs/mlflow.db"),
    ],
)
def test_an_address_is_shown_without_its_password(text: str, shown: str) -> None:
    assert without_passwords(text) == shown
