"""The scale of clients, declared for all of them or one by one in a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuels.errors import FuelsError
from fuels.sharing.declared_scale import check_scale, declared_scales


def test_two_numbers_hold_for_every_client(tmp_path: Path) -> None:
    check_scale("")
    check_scale("120,45")
    check_scale("scale.csv")
    assert declared_scales("120,45", ["a", "b"], tmp_path) == [(120.0, 45.0)] * 2
    for text in ("12", "12,0", "12,nan", "mean.txt"):
        with pytest.raises(FuelsError, match=r"privacy\.scale must be MEAN,STD"):
            check_scale(text)


def test_a_file_has_a_row_for_each_client(tmp_path: Path) -> None:
    (tmp_path / "scale.csv").write_text("client,mean,std\n07,3,1.5\nb,10,2\nc,1,1\n")
    assert declared_scales("scale.csv", ["b", "07"], tmp_path) == [(10.0, 2.0), (3.0, 1.5)]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("client,mean,std\na,1,2\n", "client b needs a row with its mean"),
        ("client,mean,std\na,1,2\nb,,1\n", "client b needs a row with its mean"),
        ("client,mean,std\na,1,2\nb,1,0\n", "client b needs a row with its mean"),
        ("client,mean,std\na,1,2\na,1,2\nb,1,1\n", "a client has two rows"),
        ("client,mean\na,1\n", "not a CSV file with the columns client, mean, std"),
        ("client,mean,std\na,much,2\n", "not a CSV file with the columns client, mean, std"),
        ("", "not a CSV file with the columns client, mean, std"),
        (None, r"scale\.csv: cannot be read"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(
    tmp_path: Path, content: str | None, said: str
) -> None:
    if content is not None:
        (tmp_path / "scale.csv").write_text(content)
    with pytest.raises(FuelsError, match=said):
        declared_scales("scale.csv", ["a", "b"], tmp_path)
