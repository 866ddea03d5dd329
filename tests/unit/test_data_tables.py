"""Readers of tables: CSV, arrays of NumPy, Parquet and Arrow."""

import contextlib
import io
import pickle
import zipfile

import numpy as np
import pytest

import weft
import weft.data as data
from weft.data.csv_files import parse_csv

pytestmark = pytest.mark.unit


def test_csv_infers_dtypes(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("a,b,c,d,e,f\n1,1.5,true,x,9223372036854775808,1_000\n-2,NA,False,,2,3\n\n+3,inf,TRUE,y,3,4\n")
    table = data.read_csv(path)
    assert table["a"].tolist() == [1, -2, 3] and table["a"].dtype == np.int64
    np.testing.assert_array_equal(table["b"], [1.5, np.nan, np.inf])
    assert table["c"].tolist() == [True, False, True]
    assert table["d"].tolist() == ["x", "", "y"]
    assert table["e"].dtype == np.float64 and table["f"].tolist() == ["1_000", "3", "4"]
    assert list(data.read_csv(path, columns=["c", "a"])) == ["c", "a"]
    assert data.read_csv(path, dtypes={"a": "float32", "d": str})["a"].dtype == np.float32
    rows = table.dataset(target="d", features=["a", "c"])
    assert rows[0][0].tolist() == [1.0, 1.0] and [rows[k][1] for k in range(3)] == [1, 0, 2]
    assert rows.arrays[0].dtype == np.float32
    loaded = next(iter(data.DataLoader(rows, 3, device="cpu")))
    assert loaded[0].tolist() == [[1, 1], [-2, 0], [3, 1]]
    headless = parse_csv(b"1;2\n3;4\n", header=False, delimiter=";")
    assert headless["1"].tolist() == [2, 4]


def test_csv_spaces_behind_delimiters():
    table = parse_csv(b'a, b, c, d, e\n1, 2, 3.5, "x, y", true\n4, 5, , z, false\n')
    assert list(table) == ["a", "b", "c", "d", "e"]
    assert table["b"].tolist() == [2, 5] and table["b"].dtype == np.int64
    np.testing.assert_array_equal(table["c"], [3.5, np.nan])
    assert table["d"].tolist() == ["x, y", "z"] and table["e"].dtype == bool
    spaced = parse_csv(b"1  2\n3 x 4\n", header=False, delimiter=" ")
    assert spaced["1"].tolist() == ["", "x"] and spaced["2"].tolist() == [2, 4]


@pytest.mark.parametrize(
    ("content", "options", "match"),
    [
        (b"", {}, "an empty file"),
        (b"a,b\n1,2\n3\n", {}, "1 values in line 3; expected 2"),
        (b"a,a\n1,2\n", {}, "two columns 'a' in line 1"),
        (b'a\n"x\n', {}, "line 2"),
        (b'a\n"x"y\n', {}, "line 2"),
        (b"a\n1\n\xff\n", {}, "not utf-8 in line 3"),
        (b"a\n1\nx\n", {"dtypes": {"a": int}}, "'x' in column 'a', line 3; expected a value of int64"),
        (b"a\n1\n300\n", {"dtypes": {"a": "uint8"}}, "'300' in column 'a', line 3"),
        (b"a\n1\n", {"columns": ["b"]}, "column 'b'"),
        (b"a\n1\n", {"dtypes": {"b": int}}, "column 'b'"),
        (b"a\n2020-01-01\n", {"dtypes": {"a": "datetime64[D]"}}, "dtype datetime64"),
    ],
)
def test_csv_errors_have_line_numbers(content, options, match):
    with pytest.raises(weft.WeftError, match=match):
        parse_csv(content, **options)


def test_tables():
    table = data.Table({"x": np.arange(3), "kind": np.array(["b", "a", "b"], object)})
    assert table.rows == 3 and len(table) == 2 and table.encode("kind")[0].tolist() == [1, 0, 1]
    with pytest.raises(data.DataError, match="'a' in row 1"):
        table.encode("kind", ["b"])
    with pytest.raises(data.DataError, match="column 'kind'"):
        table.features()
    with pytest.raises(weft.RangeError, match="column 'y'"):
        table["y"]
    with pytest.raises(weft.ShapeError, match="lengths"):
        data.Table({"x": np.arange(3), "y": np.arange(2)})
    assert table.dataset("x", features=[])[2][1] == 2


def test_numpy_files_are_memory_mapped(tmp_path):
    x, y = np.arange(12.0).reshape(4, 3), np.arange(4)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "both.npz", x=x, y=y, f=np.asfortranarray(x), none=np.empty((0, 2)))
    np.savez_compressed(tmp_path / "packed.npz", x=x, y=y)
    assert isinstance(data.load_arrays(tmp_path / "x.npy")["array"], np.memmap)
    stored = data.load_arrays(tmp_path / "both.npz")
    assert all(isinstance(stored[name], np.memmap) for name in "xyf")
    for name, expected in (("x", x), ("y", y), ("f", x), ("none", np.empty((0, 2)))):
        np.testing.assert_array_equal(stored[name], expected)
    np.testing.assert_array_equal(data.load_arrays(tmp_path / "packed.npz")["x"], x)
    np.testing.assert_array_equal(data.load_arrays(tmp_path / "both.npz", mmap=False)["f"], x)
    rows = data.open_arrays(tmp_path / "both.npz", "x", "y")
    again = pickle.loads(pickle.dumps(rows))
    assert len(pickle.dumps(rows)) < 1000 and isinstance(again.arrays[0].base, np.memmap)
    np.testing.assert_array_equal(again.arrays[0], x)
    part = data.ArrayDataset(rows.arrays[0][1::2, 1:])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(part)).arrays[0], x[1::2, 1:])
    loaded = [batch[0].tolist() for batch in data.DataLoader(rows, 3)]
    assert loaded == [x[:3].tolist(), x[3:].tolist()]
    named = data.open_arrays(tmp_path / "packed.npz")
    assert next(iter(data.DataLoader(named, 4)))["y"].tolist() == [0, 1, 2, 3]
    with pytest.raises(data.DataError, match=r"names \['z'\]"):
        data.open_arrays(tmp_path / "both.npz", "z")
    with pytest.raises(weft.ShapeError, match="lengths"):
        data.ArrayDataset(x, y[:2])


def test_damaged_numpy_files(tmp_path):
    path = tmp_path / "file"
    for name, content in {
        "objects": _saved(np.array([{}], object)),
        "empty": b"",
        "text": b"hello",
        "cut": _saved(np.arange(10))[:-4],
        "archive": b"PK\x03\x04" + b"x" * 50,
    }.items():
        path.write_bytes(content)
        with pytest.raises(data.DataError, match=r"a \.npy or \.npz file"):
            data.load_arrays(path)
        assert name
    rng, content = np.random.default_rng(0), _saved(np.arange(10))
    for _ in range(300):
        mutated = bytearray(content)
        mutated[rng.integers(80)] = rng.integers(256)
        path.write_bytes(bytes(mutated))
        with contextlib.suppress(weft.WeftError):
            data.load_arrays(path, mmap=bool(rng.integers(2)))


def _saved(array):
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def test_archives_with_other_members(tmp_path):
    with zipfile.ZipFile(tmp_path / "other.npz", "w") as archive:
        archive.writestr("readme.txt", "no array")
    with pytest.raises(data.DataError):
        data.load_arrays(tmp_path / "other.npz")


def test_parquet_and_arrow(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.feather
    import pyarrow.parquet

    table = pa.table({"x": [1, 2, 3], "y": [0.5, None, 2.5], "s": ["a", "b", "c"], "v": [[1.0, 2.0]] * 3,
                      "ok": [True, False, True]})  # fmt: skip
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet", row_group_size=2)
    pyarrow.feather.write_feather(table, str(tmp_path / "t.arrow"), compression="uncompressed")
    with pa.ipc.new_stream(str(tmp_path / "t.stream"), table.schema) as writer:
        writer.write_table(table)
    for found in (
        data.read_parquet(tmp_path / "t.parquet"),
        data.read_arrow(tmp_path / "t.arrow"),
        data.read_arrow(tmp_path / "t.stream"),
    ):
        assert found["x"].tolist() == [1, 2, 3] and found["s"].tolist() == ["a", "b", "c"]
        np.testing.assert_array_equal(found["y"], [0.5, np.nan, 2.5])
        assert found["v"].shape == (3, 2) and found["ok"].dtype == bool
    assert list(data.read_parquet(tmp_path / "t.parquet", ["s"])) == ["s"]
    stream = data.ParquetStream(tmp_path / "t.parquet", ["x", "v"])
    batches = list(data.DataLoader(stream, 2, num_workers=1))
    assert len(stream) == 3 and [batch["x"].tolist() for batch in batches] == [[1, 2], [3]]
    assert batches[0]["v"].shape == (2, 2)
    with pytest.raises(weft.RangeError, match="column 'z'"):
        data.read_parquet(tmp_path / "t.parquet", ["z"])
    for name in ("t.parquet", "t.arrow"):
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:40])
        with pytest.raises(data.DataError, match="damaged or foreign"):
            (data.read_parquet if name == "t.parquet" else data.read_arrow)(tmp_path / name)
