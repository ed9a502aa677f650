import pytest

from asyncrl.core.text import exact, without_passwords


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


@pytest.mark.parametrize(
    ("number", "shown"),
    [(300.0, "300"), (2.5, "2.5"), (1e-5, "1e-05"), (1e12, "1e+12"), (0.21291256928910002, "0.21291256928910002")],
)
def test_a_number_is_shown_short_where_nothing_of_it_is_lost(number: float, shown: str) -> None:
    assert exact(number) == shown
    assert float(shown) == number
