"""Sharded Hugging Face weights, maps of names, and the report of what does not fit."""

from __future__ import annotations

import json

import pytest
import safetensors.torch as oracle
import torch

import weft
from weft.serialization import load_into, load_sharded, save_tensors

pytestmark = pytest.mark.unit


def weights():
    torch.manual_seed(0)
    return {
        "model.embed.weight": torch.randn(7, 4).bfloat16(), "model.h.0.weight": torch.randn(4, 4),
        "model.h.0.bias": torch.randn(4), "model.h.1.weight": torch.randn(4, 4), "model.h.1.bias": torch.randn(4),
    }  # fmt: skip


def write(folder, kind="safetensors", **changes):
    """Three shards and an index, as Hugging Face writes them."""
    every = weights()
    names = list(every)
    stem, ending = ("model", "safetensors") if kind == "safetensors" else ("pytorch_model", "bin")
    shards = {f"{stem}-0000{k + 1}-of-00003.{ending}": names[2 * k : 2 * k + 2] for k in range(3)}
    for file, part in shards.items():
        chosen = {name: every[name] for name in part}
        if kind == "safetensors":
            oracle.save_file(chosen, folder / file, {"format": "pt"})
        else:
            torch.save(chosen, folder / file)
    weight_map = {name: file for file, part in shards.items() for name in part}
    index = {"metadata": {"total_size": 1}, "weight_map": {**weight_map, **changes}}
    (folder / f"{stem}.{ending}.index.json").write_text(json.dumps(index))
    return folder / f"{stem}.{ending}.index.json"


def own_model():
    return weft.nn.ModuleDict(
        {
            "embedding": weft.nn.Embedding(7, 4),
            "h": weft.nn.ModuleList([weft.nn.Linear(4, 4), weft.nn.Linear(4, 4)]),
        }
    )


def own_name(name: str) -> str:
    return name.removeprefix("model.").replace("embed.", "embedding.")


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_shards_load_by_index_and_by_folder(kind, tmp_path):
    index = write(tmp_path, kind)
    for path in (index, tmp_path, str(tmp_path)):
        found = weft.load(path)
        assert list(found) == list(weights())
        for name, tensor in weights().items():
            assert found[name].dtype.name == str(tensor.dtype).removeprefix("torch.")
            assert torch.equal(torch.from_dlpack(found[name].detach()), tensor)
    assert set(load_sharded(index)) == set(weights())


@pytest.mark.parametrize("by", ["function", "dict"])
def test_shards_load_into_a_module_through_a_map_of_names(by, tmp_path):
    write(tmp_path)
    model = own_model()
    key_map = own_name if by == "function" else {name: own_name(name) for name in weights()}
    result = model.load(tmp_path, key_map=key_map)
    assert repr(result) == "<All keys matched successfully>"
    assert torch.equal(torch.from_dlpack(model["h"][1].weight.detach()), weights()["model.h.1.weight"])
    assert model["embedding"].weight.dtype is weft.float32  # the module's own
    assert model["embedding"].weight[0, 0].item() == weights()["model.embed.weight"][0, 0].item()


def test_what_does_not_fit_is_listed_and_nothing_is_changed(tmp_path):
    write(tmp_path)
    model = own_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(weft.WeftError) as caught:
        model.load(tmp_path, key_map=lambda name: {"h.0.bias": None}.get(own_name(name), own_name(name)))
    assert "missing: h.0.bias" in str(caught.value) and "unexpected" not in str(caught.value)
    with pytest.raises(weft.WeftError) as caught:
        model.load(tmp_path, key_map=lambda name: own_name(name).replace("h.1.", "h.9."))
    assert "missing: h.1.weight, h.1.bias" in str(caught.value)
    assert "unexpected: h.9.weight, h.9.bias" in str(caught.value)
    assert all((model.state_dict()[name] == value).all() for name, value in before.items())
    result = model.load(tmp_path, key_map=lambda name: own_name(name).replace("h.1.", "h.9."), strict=False)
    assert result.missing_keys == ["h.1.weight", "h.1.bias"] and result.unexpected_keys == ["h.9.weight", "h.9.bias"]
    save_tensors(tmp_path / "x", {"weight": weft.ones(3, 2), "bias": weft.ones(3)})
    with pytest.raises(weft.WeftError, match=r"weight: given shape \[3, 2\], expected \[3, 4\]"):
        weft.nn.Linear(4, 3).load(tmp_path / "x")


def test_a_prefix_is_named_with_the_fix(tmp_path):
    save_tensors(tmp_path / "x", {"module.weight": weft.ones(1, 2), "module.bias": weft.ones(1)})
    layer = weft.nn.Linear(2, 1)
    message = (
        r"begin with 'module\.': 'module\.weight' for 'weight'.*key_map=lambda name: name\.removeprefix\('module\.'\)"
    )
    with pytest.raises(weft.FileFormatError, match=message):
        layer.load(tmp_path / "x")
    layer.load(tmp_path / "x", key_map=lambda name: name.removeprefix("module."))
    save_tensors(tmp_path / "y", {"weight": weft.ones(1, 2), "bias": weft.ones(1)})
    with pytest.raises(weft.FileFormatError, match=r"key_map=lambda name: '0\.' \+ name"):
        weft.nn.Sequential(weft.nn.Linear(2, 1)).load(tmp_path / "y")


def test_maps_of_names_that_cannot_be_right(tmp_path):
    save_tensors(tmp_path / "x", {"weight": weft.ones(1, 2), "bias": weft.ones(1)})
    layer = weft.nn.Linear(2, 1)
    for key_map, message in [
        ({"wieght": "w"}, "'wieght', which the file does not have.*did you mean 'weight'"),
        (lambda name: "weight", "makes 'weight' of 'bias'"),
        (lambda name: 3, "makes 3 of 'weight'"),
        (3, "a int as key_map"),
    ]:
        with pytest.raises(weft.WeftError, match=message):
            load_into(layer, tmp_path / "x", key_map)


def test_indices_that_are_wrong(tmp_path):
    for changes, message in [
        ({"other": "model-00001-of-00003.safetensors"}, "has no tensor 'other', which model.safetensors.index.json"),
        ({"other": "model-4.safetensors"}, "its file 'model-4.safetensors' is missing"),
        ({"other": "../secret.safetensors"}, "refers to the path '../secret"),
        ({"other": "/etc/passwd"}, "refers to the path"),
        ({"other": ".."}, "refers to the path"),
        ({"other": 3}, "has no 'weight_map'"),
    ]:
        with pytest.raises(weft.FileFormatError, match=message):
            weft.load(write(tmp_path, **changes))
    index = write(tmp_path)
    for text in ("[]", "{}", "{", '{"weight_map": []}', '{"weight_map": {"a": "x", "a": "y"}}'):
        index.write_text(text)
        with pytest.raises(weft.FileFormatError):
            weft.load(index)
    write(tmp_path)
    shard = tmp_path / "model-00002-of-00003.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(weft.FileFormatError, match=r"00002-of-00003.*a file that is whole"):
        weft.load(tmp_path)


def test_folders_of_other_kinds(tmp_path):
    with pytest.raises(
        weft.FileFormatError, match=r"it is a folder; expected one with model\.safetensors\.index\.json"
    ):
        weft.load(tmp_path)
    oracle.save_file({"a": torch.ones(1)}, tmp_path / "model.safetensors")
    assert weft.load(tmp_path)["a"].item() == 1.0
    folder = weft.serialization.CheckpointFolder(tmp_path / "checkpoints")
    step = folder.save(1, {}, None)
    for path in (step, folder.path):
        with pytest.raises(weft.FileFormatError, match="CheckpointFolder"):
            weft.load(path)
