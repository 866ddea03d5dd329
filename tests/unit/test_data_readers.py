"""Readers: IDX, CIFAR, CSV, NumPy, Parquet, images, text, datasets of other libraries; what damaged files give."""

import csv
import gzip
import io
import math
import pickle
import struct

import numpy as np
import pytest

import weft
import weft.data as data
from weft.data.cifar import parse_binary, parse_python
from weft.data.csv_files import parse_csv
from weft.data.idx import parse_idx

pytestmark = pytest.mark.unit


def idx_bytes(array, code=8):
    head = struct.pack(f">BBBB{array.ndim}I", 0, 0, code, array.ndim, *array.shape)
    return head + array.astype(array.dtype.newbyteorder(">")).tobytes()


# ---- IDX ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "dtype"), [(8, "u1"), (9, "i1"), (0x0B, "i2"), (0x0C, "i4"), (0x0D, "f4"), (0x0E, "f8")]
)
def test_idx_has_all_dtypes_and_shapes(code, dtype):
    for shape in ((), (0,), (3,), (2, 3, 4)):
        array = (np.arange(math.prod(shape)) - 2).reshape(shape).astype(dtype)
        for content in (idx_bytes(array, code), gzip.compress(idx_bytes(array, code))):
            found = parse_idx(content)
            assert found.dtype == array.dtype and found.dtype.isnative
            np.testing.assert_array_equal(found, array)


def test_mnist(tmp_path):
    images, labels = np.arange(40, dtype=np.uint8).reshape(5, 2, 4), np.array([0, 9, 3, 3, 1], np.uint8)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx_bytes(images))
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx_bytes(labels)))
    found = data.MNIST(tmp_path)
    assert found.arrays[0].shape == (5, 1, 2, 4) and found[1][1] == 9 and found.arrays[1].dtype == np.int64
    assert next(iter(data.DataLoader(found, 5, device="cpu")))[0].shape == (5, 1, 2, 4)
    with pytest.raises(data.MissingDataError, match="t10k-images"):
        data.MNIST(tmp_path, "test")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        data.MNIST(tmp_path / "other")
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx_bytes(np.array([0, 9, 10, 3, 1], np.uint8)))
    with pytest.raises(data.DataError, match="label 10 at sample 2; expected labels from 0 to 9"):
        data.MNIST(tmp_path)
    with pytest.raises(weft.RangeError, match="split='valid'"):
        data.MNIST(tmp_path, "valid")


def test_a_huge_claim_allocates_nothing():
    claim = struct.pack(">BBBB4I", 0, 0, 14, 4, *[2**32 - 1] * 4)
    with pytest.raises(data.DataError, match="bytes of elements"):
        parse_idx(claim + b"123")
    with pytest.raises(data.DataError, match="damaged gzip"):
        parse_idx(gzip.compress(claim)[:-6])


# ---- CIFAR ----------------------------------------------------------------------------------------------------------


def cifar_bytes(count=3, head=1):
    rng = np.random.default_rng(0)
    return rng.integers(0, 10, (count, head + 3072)).astype(np.uint8).tobytes()


def cifar_pickle(count=3, key=b"labels", protocol=2):
    content = {
        b"batch_label": b"training batch 1 of 5",
        key: [k % 10 for k in range(count)],
        b"data": np.random.default_rng(1).integers(0, 256, (count, 3072)).astype(np.uint8),
        b"filenames": [b"one.png"] * count,
    }
    return content, pickle.dumps(content, protocol=protocol)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_the_python_form_of_cifar(protocol):
    content, text = cifar_pickle(protocol=protocol)
    if protocol in (0, 1):
        pytest.importorskip("numpy")
    images, labels = parse_python(text)
    np.testing.assert_array_equal(images.reshape(3, -1), content[b"data"])
    assert labels.tolist() == content[b"labels"]


def test_python_2_wrote_cifar():
    """As the published files are: protocol 2 of Python 2, whose strings are bytes and whose arrays come from
    numpy.core.multiarray."""
    array = np.arange(3072, dtype=np.uint8)[None]
    text = (
        b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85U\x01b"
        b"\x87Rq\x05(K\x01K\x01M\x00\x0c\x86cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07(K\x03U\x01|NNNJ\xff\xff\xff"
        b"\xffJ\xff\xff\xff\xffK\x00tb\x89T" + struct.pack("<I", 3072) + array.tobytes() + b"tb"
        b"U\x06labelsq\x08]q\x09K\x07au."
    )
    assert pickle.loads(text, encoding="bytes")[b"labels"] == [7]  # it is what it claims to be
    images, labels = parse_python(text)
    np.testing.assert_array_equal(images.reshape(1, -1), array)
    assert labels.tolist() == [7]


def test_a_pickle_cannot_run_anything(tmp_path):
    marker = tmp_path / "ran"

    class Attack:
        def __reduce__(self):
            return open, (str(marker), "w")

    for content in ({b"data": Attack()}, Attack(), [Attack()]):
        with pytest.raises(data.DataError, match=r"it needs (_?io)\.open, and Weft runs no code of files"):
            parse_python(pickle.dumps(content))
    assert not marker.exists()


def test_pickles_of_python_2_in_text():
    """Protocol 0 of Python 2: numbers and quoted strings in lines."""
    array = np.arange(3072, dtype=np.uint8)[None]
    quoted = "".join(f"\\x{one:02x}" if one < 32 or one > 126 or chr(one) in "\\'" else chr(one) for one in array[0])
    text = (
        "(dp1\nS'data'\np2\ncnumpy.core.multiarray\n_reconstruct\np3\n(cnumpy\nndarray\np4\n(I0\ntp5\nS'b'\ntRp6\n(I1\n"
        "(I1\nL3072L\ntp7\ncnumpy\ndtype\np8\n(S'u1'\nI0\nI1\ntRp9\n(I3\nS'|'\nNNNI-1\nI-1\nI0\ntbI00\nS'"
        f"{quoted}'\ntbsS'labels'\n(lp10\nI7\nasS'note'\nS'a\\n\\t\\'\\\\'\nsS'real'\nF0.5\nsS'word'\nV\\u00e9\ns."
    ).encode("latin1")
    note = pickle.loads(text, encoding="bytes")
    assert note[b"labels"] == [7] and note[b"note"] == b"a\n\t'\\" and note[b"word"] == "\xe9"  # it is what it claims
    images, labels = parse_python(text)
    np.testing.assert_array_equal(images.reshape(1, -1), array)
    assert labels.tolist() == [7]


def test_pickles_that_nest_or_share_take_no_time():
    good = cifar_pickle(protocol=2)[1]
    put, get = ([code + struct.pack("<I", 1_000 + k) for k in range(61)] for code in (b"r", b"j"))
    shared = b"]" + put[0] + b"".join(b"0(" + get[k] * 2 + b"l" + put[k + 1] for k in range(60))  # 2^60 lists, counted
    for bomb in (shared, b"]" * 200_000 + b"a" * 199_999, b"(" * 200_000 + b"t" * 200_000):
        images, _ = parse_python(good[:-2] + b"X\4\0\0\0bomb" + bomb + b"u.")
        assert len(images) == 3  # what is not asked for is not looked at
        with pytest.raises(data.DataError, match="something else than a dict"):
            parse_python(b"\x80\2" + bomb + b".")


def test_pickles_cannot_repeat_arrays():
    """One string, and many arrays that each decode it."""
    state = b"(K\1M\x10\x27\x85h\2\x89h\1tb"
    text = b"X\x10\x27\0\0" + b"a" * 10_000 + b"q\1"
    dtype = b"cnumpy\ndtype\nX\2\0\0\0u1\x89\x88\x87Rq\2"
    start = b"cnumpy._core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85C\1b\x87R"
    one = b"\x80\2" + text + b"0" + dtype + b"0](" + (start + state)
    with pytest.raises(data.DataError, match="something else than a dict"):
        parse_python(one + b"e.")
    with pytest.raises(data.DataError, match="copies the same values over and over"):
        parse_python(one + (start + state) * 200 + b"e.")


def test_cifar_folders(tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for number in range(1, 6):
        (folder / f"data_batch_{number}.bin").write_bytes(cifar_bytes(2))
    (tmp_path / "test_batch").write_bytes(cifar_pickle()[1])
    assert len(data.CIFAR10(tmp_path)) == 10 and data.CIFAR10(tmp_path)[0][0].shape == (3, 32, 32)
    assert len(data.CIFAR10(tmp_path, "test")) == 3
    (folder / "data_batch_3.bin").unlink()
    with pytest.raises(data.MissingDataError, match=r"data_batch_3\.bin"):
        data.CIFAR10(tmp_path)
    (tmp_path / "train.bin").write_bytes(cifar_bytes(4, head=2))
    (tmp_path / "test").write_bytes(cifar_pickle(key=b"fine_labels")[1])
    assert len(data.CIFAR100(tmp_path)) == 4 and len(data.CIFAR100(tmp_path, "test")) == 3
    with pytest.raises(data.DataError, match="records of 3073 bytes"):
        parse_binary(cifar_bytes()[:-1])
    with pytest.raises(data.DataError, match="label 99 at sample 1"):
        parse_binary(cifar_bytes()[:3073] + b"\x63" + cifar_bytes()[3074:])


# ---- mutations ------------------------------------------------------------------------------------------------------

MUTATIONS = 10_000


def mutations(content, seed):
    """Damaged copies of a file: bytes changed, removed, added, repeated, exchanged; the file cut."""
    rng = np.random.default_rng(seed)
    for _ in range(MUTATIONS):
        mutated = bytearray(content)
        for _ in range(rng.integers(1, 4)):
            kind, place = rng.integers(6), int(rng.integers(len(mutated) + 1))
            near = int(rng.integers(min(len(mutated), 48) + 1))  # headers are short
            place = near if rng.random() < 0.7 else place
            if kind == 0 and place < len(mutated):
                mutated[place] = int(rng.integers(256))
            elif kind == 1 and place < len(mutated):
                mutated[place] ^= 1 << int(rng.integers(8))
            elif kind == 2:
                del mutated[place : place + int(rng.integers(1, 9))]
            elif kind == 3:
                mutated[place:place] = rng.bytes(int(rng.integers(1, 9)))
            elif kind == 4:
                del mutated[place:]
            else:
                other = int(rng.integers(len(mutated) + 1))
                mutated[place:place] = mutated[other : other + 8]
            if not mutated:
                break
        yield bytes(mutated)


def survives(content, read, oracle, seed=0):
    """`read` of each mutated file gives what `oracle`, an independent reading of the same bytes, gives, or a WeftError.
    Returns how many of them were read."""
    count = 0
    for mutated in mutations(content, seed):
        try:
            found = read(mutated)
        except weft.WeftError:
            continue
        expected = oracle(mutated)
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert one.shape == other.shape and one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)
        count += 1
    return count


def plain_idx(content):
    _, code, axes = struct.unpack_from(">HBB", content)
    shape = struct.unpack_from(f">{axes}I", content, 4)
    forms = {8: ("u1", "B"), 9: ("i1", "b"), 11: ("i2", "h"), 12: ("i4", "i"), 13: ("f4", "f"), 14: ("f8", "d")}
    dtype, form = forms[code]
    values = np.array([one[0] for one in struct.iter_unpack(f">{form}", content[4 + 4 * axes :])], dtype)
    return [values.reshape(shape)]


def test_idx_survives_mutations():
    array = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    content = idx_bytes(array, 0x0B)
    assert survives(content, lambda one: [parse_idx(one)], plain_idx) > 300
    # A compressed file has a checksum: what is read is what was written (the name in its header may change).
    packed = gzip.compress(content, mtime=0)
    assert survives(packed, lambda one: [parse_idx(one)], lambda one: [array], 1) > 30


def test_cifar_survives_mutations():
    content = cifar_bytes(2)

    def records(mutated):
        rows = [mutated[k : k + 3073] for k in range(0, len(mutated), 3073)]
        images = np.array([list(row[1:]) for row in rows], np.uint8).reshape(-1, 3, 32, 32)
        return [images, np.array([row[0] for row in rows], np.int64)]

    assert survives(content, parse_binary, records) > 300


class ArraysOnly(pickle._Unpickler):
    """Python's own unpickler, for bytes that are known to call nothing but what makes arrays."""

    def find_class(self, module, name):
        assert (module, name) in {
            ("numpy", "dtype"), ("numpy", "ndarray"), ("_codecs", "encode"),
            ("numpy._core.multiarray", "_reconstruct"), ("numpy.core.multiarray", "_reconstruct"),
        }  # fmt: skip
        return super().find_class(module, name)


def unpickled(content):
    found = ArraysOnly(io.BytesIO(content), encoding="bytes").load()
    found = {key.decode("latin1") if isinstance(key, bytes) else key: value for key, value in found.items()}
    return [found["data"].reshape(-1, 3, 32, 32), np.array(found["labels"], np.int64)]


@pytest.mark.parametrize("protocol", [2, 4])
def test_cifar_pickles_survive_mutations(protocol):
    assert survives(cifar_pickle(2, protocol=protocol)[1], parse_python, unpickled) > 100


def plain_csv(content):
    text = io.StringIO(content.decode().removeprefix("\ufeff"), newline="")
    rows = [row for row in csv.reader(text, skipinitialspace=True) if row]
    columns = list(zip(*rows[1:], strict=True)) if len(rows) > 1 else [() for _ in rows[0]]
    return [np.array([*column, None], object)[:-1] for column in columns]


def as_text(table, texts):
    """Columns as the texts they were read from, after checking that numbers are those of the texts."""
    result = []
    for column, text in zip(table.values(), texts, strict=True):
        if column.dtype.kind in "if":
            for value, one in zip(column.tolist(), text, strict=True):
                assert value == float(one) if one.strip() and one.lower() not in ("na", "nan", "n/a", "null") else True
                assert value == value or one.strip(" \t") in ("", "NA", "N/A", "NaN", "nan", "null")
            column = text
        elif column.dtype.kind == "b":
            assert [str(value).lower() for value in column.tolist()] == [one.lower() for one in text]
            column = text
        result.append(column)
    return result


def test_csv_survives_mutations():
    content = b'id,score,name,ok\n1,0.5,"Anna, B.",true\n-2,1e-3,"say ""x""",false\n3,NA,\xc3\xa9t\xc3\xa9,true\n'
    seen = []

    def read(mutated):
        table = parse_csv(mutated)
        seen.append(as_text(table, plain_csv(mutated)))
        return seen[-1]

    assert survives(content, read, plain_csv) > 500


# ---- images ---------------------------------------------------------------------------------------------------------


def test_image_folders(tmp_path):
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (5, 4, 3)).astype(np.uint8)
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        image.fromarray(pixels).save(tmp_path / name / "one.png")
    (tmp_path / "dog" / "broken.png").write_bytes((tmp_path / "dog" / "one.png").read_bytes()[:60])
    (tmp_path / "dog" / "notes.txt").write_text("no image")
    folder = data.ImageFolder(tmp_path)
    assert folder.classes == ["cat", "dog"] and len(folder) == 3
    np.testing.assert_array_equal(folder[0][0], pixels.transpose(2, 0, 1))
    with pytest.raises(data.DataError, match=r"broken\.png'.*cannot be read") as caught:
        list(data.DataLoader(folder, 2, num_workers=2))
    assert "sample 1" in "".join(caught.value.__notes__)
    folder = data.ImageFolder(tmp_path, size=(2, 3), mode="L", skip=True)
    assert [path.name for path in folder.skipped] == ["broken.png"] and [folder[k][1] for k in range(2)] == [0, 1]
    (batch, labels) = next(iter(data.DataLoader(folder, 2)))
    assert batch.shape == (2, 1, 2, 3) and batch.dtype == weft.uint8 and labels.tolist() == [0, 1]
    (tmp_path / "empty").mkdir()
    with pytest.raises(data.MissingDataError, match="without images"):
        data.ImageFolder(tmp_path / "empty")
    with pytest.raises(weft.RangeError, match="mode='XYZ'"):
        data.read_image(tmp_path / "cat" / "one.png", mode="XYZ")
    with pytest.raises(data.MissingDataError):
        data.read_image(tmp_path / "none.png")


def test_a_missing_package_says_what_to_install(monkeypatch, tmp_path):
    import sys

    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ImportError, match=r"no package 'Pillow'.*pip install Pillow, or weft\[data\]"):
        data.read_image(tmp_path / "x.png")


# ---- text -----------------------------------------------------------------------------------------------------------

TEXT = "the cat sat on the mat; the hat sat too. été \N{GRINNING FACE}\n" * 4


def test_tokenizers(tmp_path):
    bpe = pytest.importorskip("tokenizers") and data.BPETokenizer.train(TEXT, 300)
    bpe.save(tmp_path / "tokenizer.json")
    characters = data.CharTokenizer(TEXT)
    characters.save(tmp_path / "characters.json")
    for tokenizer in (
        data.ByteTokenizer(),
        characters,
        data.CharTokenizer.load(tmp_path / "characters.json"),
        bpe,
        data.BPETokenizer.load(tmp_path / "tokenizer.json"),
    ):
        tokens = tokenizer.encode(TEXT)
        assert tokens.dtype == np.int64 and tokens.max() < tokenizer.vocab_size
        assert tokenizer.decode(tokens) == TEXT and tokenizer.decode(tokens.tolist()) == TEXT
        with pytest.raises(weft.RangeError, match=f"token {tokenizer.vocab_size}"):
            tokenizer.decode([tokenizer.vocab_size])
    assert len(bpe.encode(TEXT)) < len(TEXT.encode()) / 2
    with pytest.raises(data.DataError, match="'z' at character 1"):
        characters.encode("az")
    with pytest.raises(weft.RangeError, match="vocab_size=10"):
        data.BPETokenizer.train(TEXT, 10)
    (tmp_path / "tokenizer.json").write_text("{}")
    for load in (data.BPETokenizer.load, data.CharTokenizer.load):
        with pytest.raises(data.DataError, match="damaged or foreign"):
            load(tmp_path / "tokenizer.json")


def test_packed_tokens(tmp_path):
    tokens = np.arange(10)
    rows = data.pack_tokens(tokens, 3)
    assert [one.tolist() for one in rows.arrays] == [
        [[0, 1, 2], [3, 4, 5], [6, 7, 8]], [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    ]  # fmt: skip
    assert np.shares_memory(rows.arrays[1], tokens)
    close = data.pack_tokens(tokens, 3, stride=2)
    assert [one.tolist() for one in close[-1]] == [[6, 7, 8], [7, 8, 9]] and len(close) == 4
    np.save(tmp_path / "tokens.npy", tokens.astype(np.uint16))
    mapped = data.pack_tokens(data.load_arrays(tmp_path / "tokens.npy")["array"], 4)
    assert isinstance(mapped.arrays[0], np.memmap) and mapped[1][1].tolist() == [5, 6, 7, 8]
    for wrong in (tokens[:3], tokens.astype(float), tokens.reshape(2, 5)):
        with pytest.raises(weft.RangeError, match="whole numbers"):
            data.pack_tokens(wrong, 3)


# ---- datasets of others ---------------------------------------------------------------------------------------------


def test_torch_datasets():
    torch = pytest.importorskip("torch")
    theirs = torch.utils.data.TensorDataset(torch.arange(6.0).reshape(3, 2), torch.arange(3).to(torch.bfloat16))
    for dataset in (theirs, data.from_torch(theirs)):
        x, y = next(iter(data.DataLoader(dataset, 3)))
        assert x.tolist() == [[0, 1], [2, 3], [4, 5]] and y.dtype == weft.bfloat16 and y.tolist() == [0, 1, 2]

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(torch.arange(3))

    for dataset in (Stream(), data.from_torch(Stream())):
        assert [batch.tolist() for batch in data.DataLoader(dataset, 2)] == [[0, 1], [2]]


def test_hugging_face_datasets():
    datasets = pytest.importorskip("datasets")
    theirs = datasets.Dataset.from_dict({"x": [[1.0, 2.0], [3.0, 4.0]], "y": [0, 1], "s": ["a", "b"]})
    x, y = next(iter(data.DataLoader(data.from_huggingface(theirs, ["x", "y"]), 2, shuffle=True, seed=0)))
    assert sorted(y.tolist()) == [0, 1] and x.shape == (2, 2)
    batch = next(iter(data.DataLoader(data.from_huggingface(theirs), 2)))
    assert batch["s"] == ["a", "b"] and batch["x"].tolist() == [[1, 2], [3, 4]]
    stream = data.from_huggingface(theirs.to_iterable_dataset(), ["y"])
    assert [part.tolist() for (part,) in data.DataLoader(stream, 1)] == [[0], [1]]
    assert next(iter(data.DataLoader(theirs.with_format("numpy"), 2)))["x"].tolist() == [[1, 2], [3, 4]]
    with pytest.raises(weft.RangeError, match="column 'z'"):
        data.from_huggingface(theirs, ["z"])
