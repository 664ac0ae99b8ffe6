"""Dated items from files: dates, periods, series without leaks, and one sentence for each kind of bad input."""

import datetime
import re

import numpy as np
import pytest

from structsparse.base.errors import UserError
from structsparse.corpora.known.dated import dated
from structsparse.corpora.series import parsed, period_name, period_of, read_series

OPTIONS = {
    "corpus": None, "planted": {},
    "text": "text", "date": "date", "date_format": None, "response": "number", "classes": None,
    "effects": [], "series": [], "lag": 0, "response_series": None, "period": "year", "until": None, "min_documents": 1,
    "min_words": 0, "test": 1, "dev": 1, "join_dev": True, "tokens": "words", "lower": True,
}  # fmt: skip


def read(path, **options):
    return dated(train=str(path), **{**OPTIONS, **options})


def table(folder, lines, name="texts.csv"):
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path


YEARS = ["date,text,number", *(f"{year}-0{k}-15,word{k} and more,{k}.5" for year in range(2001, 2006) for k in (1, 6))]


def lines_of(*changes):
    """The table of YEARS with some lines changed: (number, line)."""
    lines = [*YEARS]
    for number, line in changes:
        lines[number] = line
    return lines


# --- what is read


def test_a_table_becomes_items_in_order_of_time(tmp_path):
    shuffled = [YEARS[0], *YEARS[:0:-1]]
    corpus = read(table(tmp_path, shuffled))
    assert corpus.periods == ("2001", "2002", "2003", "2004", "2005")
    assert corpus.period.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert sorted(corpus.response.tolist()) == [1.5] * 5 + [6.5] * 5
    assert corpus.parts()["train"].tolist() == list(range(8))
    assert corpus.parts()["dev"].tolist() == [6, 7]
    assert corpus.parts()["test"].tolist() == [8, 9]
    assert corpus.documents.texts[0] in ("word1 and more", "word6 and more")


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("a.tsv", [line.replace(",", "\t") for line in YEARS]),
        ("a.jsonl", [f'{{"date": "{y}", "text": "a b", "number": {y}}}' for y in range(2000, 2005)]),
    ],
)
def test_other_tables_are_read_as_well(name, lines, tmp_path):
    assert len(read(table(tmp_path, lines, name)).periods) == 5


def test_periods_without_items_keep_their_place(tmp_path):
    lines = [line for line in YEARS if not line.startswith(("2002", "2003"))]
    corpus = read(table(tmp_path, lines))
    assert corpus.periods == ("2001", "2002", "2003", "2004", "2005")
    assert np.bincount(corpus.period).tolist() == [2, 0, 0, 2, 2]
    corpus = read(table(tmp_path, [line for line in YEARS if not line.startswith("2004")]), join_dev=False)
    assert corpus.parts()["dev"].tolist() == [4, 5], "dev is the last period with items before test"
    assert corpus.train_periods == 2


def test_later_periods_are_not_read(tmp_path):
    whole, early = read(table(tmp_path, YEARS)), read(table(tmp_path, YEARS), until=2004)
    assert early.periods == whole.periods[:-1]
    assert early.names == whole.names[:8]
    assert early.parts()["test"].tolist() == [6, 7]
    with pytest.raises(UserError, match=r"no item lies in data.until=1999 or before; the first is in 2001"):
        read(table(tmp_path, YEARS), until="1999")


def test_a_folder_has_dates_in_its_file_names(tmp_path):
    for year in (1999, 2000, 2001, 2003):
        inner = tmp_path / "texts" / str(year)
        inner.mkdir(parents=True)
        (inner / f"Meeting={year}-05-04_Uploaded={year}0606.txt").write_text(f"we met in {year}")
    corpus = read(tmp_path / "texts", response=None)
    assert corpus.periods == ("1999", "2000", "2001", "2002", "2003")
    assert corpus.response is None
    by_upload = read(tmp_path / "texts", response=None, date=r"Uploaded=(\d{8})", period="month")
    assert by_upload.periods[0] == "1999-06"


def test_effects_are_numbers_or_indicators_of_several_values(tmp_path):
    lines = [
        f"{y}-01-01,text,1.{y},{'D' if y % 2 else 'R'},{y / 10},{'a; b' if y % 2 else 'b'}" for y in range(2001, 2006)
    ]
    corpus = read(table(tmp_path, ["date,text,number,party,size,tags", *lines]), effects=["party", "size", "tags"])
    assert corpus.effects == ("party=D", "party=R", "size", "tags=a", "tags=b")
    assert corpus.values[0].tolist() == [1, 0, 200.1, 1, 1]
    assert corpus.values[1].tolist() == [0, 1, 200.2, 0, 1]


def test_classes_become_codes(tmp_path):
    lines = [f"{y}-01-01,text,{'rise' if y % 2 else 'fall'}" for y in range(2001, 2006)]
    corpus = read(table(tmp_path, ["date,text,number", *lines]), classes=["fall", "rise"])
    assert corpus.response.tolist() == [1, 0, 1, 0, 1]
    assert corpus.classes == ("fall", "rise")


def test_periods_of_all_units_follow_each_other():
    day = datetime.date(2019, 12, 25).toordinal()
    for unit, names in {
        "year": ("2019", "2020"), "quarter": ("2019Q4", "2020Q1"), "month": ("2019-12", "2020-01"),
        "week": ("2019-W52", "2020-W01"), "day": ("2019-12-25", "2020-01-04"),
    }.items():  # fmt: skip
        first, last = period_of(day, unit), period_of(day + 10, unit)
        assert (period_name(first, unit), period_name(last, unit)) == names
        assert last - first == (10 if unit == "day" else 1)
    for k in range(400):
        assert period_of(day + k + 1, "week") - period_of(day + k, "week") == (1 if (day + k) % 7 == 0 else 0)


def test_dates_have_a_few_forms():
    expected = datetime.date(2004, 3, 1).toordinal()
    assert {parsed(text, None, "x") for text in ("2004-03-01", "20040301", "2004-03")} == {expected}
    assert parsed("2004", None, "x") == datetime.date(2004, 1, 1).toordinal()
    assert parsed("1.3.2004", "%d.%m.%Y", "x") == expected


# --- series


def rates(folder, lines=None, name="rate.csv"):
    return table(
        folder,
        ["DATE,VALUE", *(lines or [f"{y}-0{m}-01,{y % 100 + m / 10}" for y in range(2000, 2007) for m in (1, 5)])],
        name,
    )


def test_a_series_is_joined_by_the_last_value_known(tmp_path):
    corpus = read(table(tmp_path, YEARS), series=[str(rates(tmp_path))])
    assert corpus.effects == ("rate",)
    np.testing.assert_allclose(corpus.values[:4, 0], [1.1, 1.5, 2.1, 2.5])
    late = read(table(tmp_path, YEARS), series=[str(rates(tmp_path))], lag=60)
    np.testing.assert_allclose(late.values[:4, 0], [0.5, 1.1, 1.5, 2.1])


def test_the_future_of_a_series_changes_nothing(tmp_path):
    """A leak would be seen: values after a date are replaced by others, and what is joined stays the same."""
    plain = read(table(tmp_path, YEARS), series=[str(rates(tmp_path))])
    days = [datetime.date(2001, 1, 15), datetime.date(2003, 6, 15), datetime.date(2005, 6, 15)]
    for day in days:
        lines = (tmp_path / "rate.csv").read_text().splitlines()[1:]
        changed = [line if datetime.date.fromisoformat(line[:10]) <= day else f"{line[:10]},1e6" for line in lines]
        other = read(table(tmp_path, YEARS), series=[str(rates(tmp_path, changed, "other.csv"))])
        before = [k for k, name in enumerate(plain.names) if datetime.date.fromisoformat(day_of(tmp_path, name)) <= day]
        np.testing.assert_array_equal(plain.values[before], other.values[before])
        if day is not days[-1]:
            assert (other.values == 1e6).any(), "the test can see a leak"


def day_of(folder, name):
    return (folder / "texts.csv").read_text().splitlines()[int(name.rpartition(" ")[2]) - 1][:10]


def test_responses_that_become_known_after_the_origin_are_not_trained_on(tmp_path):
    """The response is the change over 300 days: that of 2004-06 is known in 2005, the period of test."""
    options = {"response": None, "response_series": {"file": str(rates(tmp_path)), "days": 300}}
    corpus = read(table(tmp_path, YEARS), **options)
    assert corpus.response[0] == pytest.approx(1.5 - 1.1)
    trained = [day_of(tmp_path, corpus.names[k]) for k in corpus.parts()["train"]]
    assert trained[-1] == "2004-01-15"
    assert any("not trained on" in line for line in corpus.describe())
    short = read(table(tmp_path, YEARS), response=None, response_series={"file": str(rates(tmp_path)), "days": 700})
    assert any("left out, whose response lies after the end" in line for line in short.describe())


# --- bad input


@pytest.mark.parametrize(
    ("lines", "options", "message"),
    [
        (lines_of((3, "03/04/2002,a,1")), {}, r"line 4, column 'date': the date '03/04/2002', expected YYYY-MM-DD"),
        (lines_of((3, "2002-02-30,a,1")), {}, r"line 4, column 'date': the date '2002-02-30'"),
        (YEARS, {"date_format": "%d.%m.%Y"}, r"line 2.*expected as data.date_format=%d.%m.%Y"),
        (lines_of((3, "2002-01-01,a,much")), {}, r"line 4: the response is 'much', expected a number"),
        (lines_of((3, "2002-01-01,a,nan")), {}, r"line 4: the response is 'nan', expected a number"),
        (["date,text", "2001-01-01,a"], {}, r"line 2: has no 'number' \(date, text\)"),
        (YEARS[:3], {}, r"the items lie in 1 period, expected at least 3"),
        (YEARS[:7], {"test": 2}, r"3 periods leave 1 to train on, expected at least 2"),
        (YEARS, {"min_documents": 3}, r"2001 has 2 items, expected at least data.min_documents=3"),
        (lines_of((9, "1000-01-01,a,1")), {"period": "day"}, r"10 items in 3\d\d,\d\d\d periods \(data.period=day\)"),
        (YEARS, {"period": "decade"}, r"data.period is 'decade', expected one of year"),
        (["date,text,number", *(f"{y},a,1" for y in range(2000, 2005))], {"period": "month"}, r"tells the year alone"),
        (YEARS, {"lag": -30}, r"data.lag is -30.*used before it was known"),
        (YEARS, {"min_words": 100}, r"every text has fewer than data.min_words=100 words"),
        (YEARS, {"test": 0}, r"data.test is 0, expected a number of periods"),
        (YEARS, {"classes": ["a", "b"]}, r"line 2: the response '1.5', expected one of data.classes, a, b"),
        (YEARS, {"classes": ["a", "b", "c"]}, r"expected two classes"),
        (YEARS, {"response_series": {"file": "x", "days": 3}}, r"set one of them to null"),
        (["date,text,number"], {}, r"has no items, expected rows with dates"),
    ],
)  # fmt: skip
def test_bad_items_are_refused_in_one_sentence(lines, options, message, tmp_path):
    with pytest.raises(UserError, match=message) as refused:
        read(table(tmp_path, lines), **options)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["2002-01-01,1", "2006-01-01,2"], r"its values begin on 2002-01-01, so none is known on 2001-01-15.*line 2\)"),
        (["2000-12-01,1", "2001-12-01,2"], r"its last value before 2003-01-15 is that of 2001-12-01, more than 400"),
        (["2000-12-01,1", "2001-12-01,."], r"rate.csv, line 3: the value '.', expected a number; leave out"),
        (["2000-12-01,1", "2001-12-01,NaN"], r"rate.csv, line 3: the value 'NaN', expected a number; leave out"),
        (["2000-12-01,1", "2000-12-01,2"], r"two values for 2000-12-01"),
        (["12/01/2000,1"], r"rate.csv, line 2: the date '12/01/2000'"),
    ],
)
def test_bad_series_are_refused_in_one_sentence(lines, message, tmp_path):
    with pytest.raises(UserError, match=message) as refused:
        read(table(tmp_path, YEARS), series=[str(rates(tmp_path, lines))])
    assert "\n" not in str(refused.value)


def test_bad_folders_are_refused(tmp_path):
    (tmp_path / "texts").mkdir()
    with pytest.raises(UserError, match="has no files, expected texts with dates"):
        read(tmp_path / "texts", response=None)
    (tmp_path / "texts" / "notes.txt").write_text("a")
    with pytest.raises(UserError, match=r"notes.txt: its name has no date that matches"):
        read(tmp_path / "texts", response=None)
    with pytest.raises(UserError, match="expected a regular expression with a group"):
        read(tmp_path / "texts", response=None, date="(")
    (tmp_path / "texts" / "notes.txt").rename(tmp_path / "texts" / "2001.txt")
    with pytest.raises(UserError, match=r"has no columns; set data.response=null"):
        read(tmp_path / "texts")


def test_a_series_of_three_columns_is_refused(tmp_path):
    with pytest.raises(UserError, match="3 columns, expected two"):
        read_series(table(tmp_path, ["a,b,c", "2001-01-01,2,3"]))
    with pytest.raises(UserError, match="has no values"):
        read_series(table(tmp_path, ["a,b"]))


def test_messages_name_files_and_lines(tmp_path):
    with pytest.raises(UserError) as refused:
        read(table(tmp_path, lines_of((5, "2003-13-01,a,1"))))
    assert re.match(rf"{re.escape(str(tmp_path))}/texts.csv, line 6, column 'date': ", str(refused.value))
