"""What readers, datasets and loaders make of unusual values and wrong arguments: the values, or a clear error."""

import numpy as np
import pytest

import weft
import weft.data as data
from weft.data.csv_files import parse_csv

pytestmark = pytest.mark.unit


# ---- images ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize("suffix", [".png", ".tiff", ".pgm"])
def test_images_of_16_bits_keep_their_upper_8(tmp_path, mode, suffix):
    image = pytest.importorskip("PIL.Image")
    values = np.arange(0, 65536, 4096, dtype=np.uint16).reshape(4, 4) + 255
    path = tmp_path / f"x{suffix}"
    if suffix == ".pgm":
        path.write_bytes(b"P5 4 4 65535\n" + values.astype(">u2").tobytes())
    else:
        image.fromarray(values).save(path)
    found = data.read_image(path, mode=mode)
    assert found.dtype == np.uint8 and all((one == values >> 8).all() for one in found)


def test_pixels_whose_range_is_not_known_are_refused(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for dtype in (np.float32, np.int32):
        image.fromarray(np.full((2, 2), 1000, dtype)).save(tmp_path / "x.tiff")
        with pytest.raises(data.DataError, match=r"x.tiff.*32 bits"):
            data.read_image(tmp_path / "x.tiff")


def test_hidden_folders_are_no_classes_and_empty_ones_an_error(tmp_path):
    image = pytest.importorskip("PIL.Image")
    picture = image.fromarray(np.zeros((2, 2), np.uint8))
    for name in ("cat/1.png", "dog/2.png", ".checkpoints/3.png", "dog/._2.png", "cat/.thumbs/1.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        picture.save(tmp_path / name)
    found = data.ImageFolder(tmp_path)
    assert found.classes == ["cat", "dog"] and [number for _, number in found.samples] == [0, 1]
    (tmp_path / "bird").mkdir()
    with pytest.raises(data.MissingDataError, match=r"nothing in \['bird'\]"):
        data.ImageFolder(tmp_path)


# ---- tables ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("write_statistics", [True, False])
def test_a_column_of_a_parquet_stream_has_one_dtype(tmp_path, write_statistics):
    """Whether a value is missing in the same row group or in another one."""
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {
        "whole": [1, 2, 3, 4], "gap": [1, 2, None, 4], "flag": [True, False, None, True], "real": [1.0, 2.0, None, 4.0],
        "pair": [[1, 2], [3, 4], [5, None], [7, 8]], "ragged": [[1], [], [2, 3], [4]],
        "narrow": pa.array([1, None, 3, 4], pa.uint8()),
    }  # fmt: skip
    path = tmp_path / "x.parquet"
    parquet.write_table(pa.table(columns), path, row_group_size=2, write_statistics=write_statistics)
    table = data.read_parquet(path)
    rows = list(data.ParquetStream(path))
    kinds = {name: {np.asarray(row[name]).dtype for row in rows} for name in columns}
    assert kinds == {
        "whole": {np.dtype(np.int64)}, "gap": {np.dtype(np.float64)}, "flag": {np.dtype(bool), np.dtype(object)},
        "real": {np.dtype(np.float64)}, "pair": {np.dtype(np.float64)}, "ragged": {np.dtype(np.int64)},
        "narrow": {np.dtype(np.float64)},
    }  # fmt: skip
    assert [type(row["flag"]) for row in rows] == [bool, bool, type(None), bool]
    for name in columns:
        for row, value in zip(rows, table[name], strict=True):
            np.testing.assert_array_equal(row[name], value)
            assert np.asarray(row[name]).dtype == np.asarray(value).dtype
    assert [row["gap"] for row in data.ParquetStream(path, ["gap"])][:2] == [1.0, 2.0]


def test_whole_numbers_that_a_float_has_not_are_refused_where_one_is_missing(tmp_path):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "x.parquet"
    parquet.write_table(pa.table({"id": [2**60 + 1, None]}), path)
    for read in (data.read_parquet, lambda path: list(data.ParquetStream(path))):
        with pytest.raises(data.DataError, match=r"column 'id' of int64 with missing values"):
            read(path)
    parquet.write_table(pa.table({"id": [2**60 + 1, 7]}), path)
    assert data.read_parquet(path)["id"].tolist() == [2**60 + 1, 7]


def test_csv_numbers_are_the_same_with_and_without_a_dtype():
    for text in ("1_0", "\u0661", "0x1p3"):  # Python's float takes the first two
        content = f"x\n{text}\n".encode()
        assert parse_csv(content)["x"].tolist() == [text]
        with pytest.raises(data.DataError, match="line 2"):
            parse_csv(content, dtypes={"x": float})
    content = b"a,b,c,d\n1 ,2.5 ,NA ,x \n 3, nan ,4 , y\n"
    for dtypes in (None, {"a": int, "b": float, "c": float}):
        table = parse_csv(content, dtypes=dtypes)
        assert table["a"].dtype == np.int64 and table["a"].tolist() == [1, 3]
        np.testing.assert_array_equal(table["b"], [2.5, np.nan])
        np.testing.assert_array_equal(table["c"], [np.nan, 4])
        assert table["d"].tolist() == ["x ", "y"]


@pytest.mark.parametrize("options", [{"encoding": "foo"}, {"delimiter": ";;"}, {"delimiter": ""}])
def test_csv_options_that_there_are_not(options):
    ((name, value),) = options.items()
    with pytest.raises(weft.RangeError, match=f"{name}={value!r}"):
        parse_csv(b"x\n1\n", **options)


def test_characters_of_several_texts(tmp_path):
    tokenizer = data.CharTokenizer(["ab", "cd", "a"])
    assert tokenizer.characters == ["a", "b", "c", "d"] and tokenizer.encode("dab").tolist() == [3, 0, 1]
    tokenizer.save(tmp_path / "v.json")
    assert data.CharTokenizer.load(tmp_path / "v.json").characters == tokenizer.characters


# ---- items and batches ----------------------------------------------------------------------------------------------


def test_arrays_without_rows_are_refused(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.ones(3), scale=np.float32(2))
    with pytest.raises(weft.ShapeError, match=r"a scalar \(array scale\)"):
        data.open_arrays(tmp_path / "x.npz")
    assert len(data.open_arrays(tmp_path / "x.npz", "x")) == 3
    for kind in (data.TensorDataset, data.ArrayDataset):
        with pytest.raises(weft.ShapeError, match="one at least"):
            kind()
    with pytest.raises(weft.ShapeError, match="scalar"):
        data.TensorDataset(weft.ones(3), weft.tensor(1.0))


@pytest.mark.parametrize(
    ("items", "given"),
    [
        ([{"x": 1}, {"y": 2}], r"keys \['x'\] and \['y'\]"),
        ([{"x": 1}, {"x": 2, "y": 3}], r"keys \['x', 'y'\] and \['x'\]"),
        ([{"x": 1}, (1,)], "types dict, tuple"),
        ([(1,), 2], "types int, tuple"),
        ([1, None], "types NoneType, int"),
        ([1.5, "a"], "types float, str"),
        ([1, "a"], "types int, str"),
    ],
)
def test_items_that_are_not_alike(items, given):
    with pytest.raises(weft.WeftError, match=f"default_collate: given items .*{given}"):
        data.default_collate(items)


def test_mixed_numbers_are_alike():
    assert data.default_collate([1, np.float32(2.5)]).tolist() == [1, 2.5]
    assert data.default_collate([1.5, np.int64(2), True]).tolist() == [1.5, 2, 1]
    assert data.default_collate([1, np.array(2)]).tolist() == [1, 2]
    assert data.default_collate([2**62 + 1, 1]).tolist() == [2**62 + 1, 1]


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(-100, np.uint8), (300, np.uint8), (0.5, np.int64), (np.nan, np.int32), (2, bool), (1e9, np.float16)],
)
def test_padding_with_a_value_that_the_sequence_has_not(value, dtype):
    with pytest.raises(weft.DTypeError, match=f"value=.* for sequences of {np.dtype(dtype)}"):
        data.PadCollate(value=value)([np.ones(2, dtype), np.ones(1, dtype)])


@pytest.mark.parametrize(
    ("value", "dtype"), [(-100, np.int8), (0.1, np.float32), (-np.inf, np.float16), (np.nan, np.float64), (1, bool)]
)
def test_padding_with_a_value_that_it_has(value, dtype):
    found = data.PadCollate(value=value)([np.zeros(2, dtype), np.zeros(1, dtype)])
    np.testing.assert_array_equal(found.numpy()[1], np.array([0, value], dtype))


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 2.5}, {"timeout": 1}, {"timeout": -1, "num_workers": 1}, {"persistent_workers": True},
        {"num_workers": 1.5}, {"num_workers": "2"}, {"num_workers": 1, "prefetch_factor": 0.5},
        {"num_workers": 1, "timeout": "1"},
    ],
)  # fmt: skip
def test_wrong_options_of_a_loader(options):
    name = next(iter(options.keys() - {"num_workers"}), "num_workers")
    with pytest.raises(weft.RangeError, match=f"DataLoader: given {name}="):
        data.DataLoader(range(4), **options)


def test_a_loader_stays_what_it_was_made():
    loader = data.DataLoader(range(4), 2)
    for name in ("batch_size", "dataset", "sampler", "batch_sampler", "drop_last", "transform", "device"):
        before = getattr(loader, name)
        with pytest.raises(weft.RangeError, match=f"DataLoader: given another {name}"):
            setattr(loader, name, None)
        assert getattr(loader, name) is before
