"""Runs from files: what is read and refused, their data, and the numbers that come out."""

import csv
import json

import jsonschema
import numpy as np
import pytest

import weft
import weft.config
from weft.config import sources
from weft.data import digits

pytestmark = pytest.mark.unit

MODEL = [{"type": "Linear", "in_features": 64, "out_features": 16, "activation": "relu"},
         {"type": "Linear", "in_features": 16, "out_features": 10}]  # fmt: skip
RUN = {
    "model": MODEL,
    "data": {"type": "digits", "batch_size": 128},
    "loss": "CrossEntropyLoss",
    "optimizer": {"type": "AdamW", "lr": 0.01},
    "metrics": ["accuracy"],
    "trainer": {"epochs": 2, "device": "cpu"},
}


def write(path, tree):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(tree))
    return path


def complaint(tree) -> str:
    with pytest.raises(weft.config.ConfigError) as caught:
        weft.config.load_run(tree)
    return str(caught.value)


# ---- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"optimizr": 1}, "optimizr: given an unknown key"),
        ({"model": [{"type": "Liner"}]}, "model[0].type: given 'Liner'"),
        ({"optimizer": {"type": "Adm"}}, "optimizer.type: given 'Adm'"),
        ({"optimizer": {"lr": 1}}, "optimizer: given no 'type'"),
        ({"optimizer": {"type": "Adam", "lrr": 3}}, "optimizer.lrr: given an unknown key"),
        ({"optimizer": {"type": "Adam", "lr": "x"}}, "optimizer.lr: given a string, 'x'; expected a number"),
        ({"optimizer": {"type": "Adam", "betas": [0.9]}}, "optimizer.betas: given 1 entries; expected 2"),
        ({"optimizer": 3}, "optimizer: given a number, 3"),
        ({"loss": "CrossEntropy"}, "loss.type: given 'CrossEntropy'"),
        ({"loss": "ReLU"}, "loss.type: given ReLU; expected a loss"),
        ({"loss": {"type": "MSELoss", "reductoin": "sum"}}, "loss.reductoin: given an unknown key"),
        ({"loss": {"type": "MSELoss", "classes_last": 1}}, "loss.classes_last: given a number, 1"),
        ({"scheduler": {"type": "StepLr"}}, "scheduler.type: given 'StepLr'"),
        ({"scheduler": {"type": "StepLR"}}, "scheduler: given no 'step_size'"),
        ({"scheduler": {"type": "StepLR", "step_size": 2, "each": "day"}}, "scheduler.each: given 'day'"),
        (
            {"scheduler": {"type": "Warmup", "steps": 2, "after": {"type": "StepLR", "gama": 1}}},
            "scheduler.after.gama: given an unknown key",
        ),
        ({"data": {"type": "digit"}}, "data.type: given 'digit'"),
        ({"data": {}}, "data: given no 'type'"),
        ({"data": {"type": "digits", "batchsize": 3}}, "data.batchsize: given an unknown key"),
        ({"data": {"type": "digits", "batch_size": 0}}, "data.batch_size: given 0"),
        ({"data": {"type": "csv", "path": "x"}}, "data: given no 'target'"),
        ({"data": {"type": "digits", "transform": ["Blur"]}}, "data.transform[0].type: given 'Blur'"),
        ({"data": {"type": "arrays", "path": "x", "validation": 1.5}}, "data.validation: given 1.5"),
        ({"metrics": ["acuracy"]}, "metrics[0]: given 'acuracy'"),
        ({"metrics": [{"type": "TopK", "n": 3}]}, "metrics[0].n: given an unknown key"),
        ({"callbacks": ["EarlyStoping"]}, "callbacks[0].type: given 'EarlyStoping'"),
        ({"callbacks": [{"type": "EMA", "decay": "a"}]}, "callbacks[0].decay: given a string"),
        ({"trainer": {"epoch": 3}}, "trainer.epoch: given an unknown key"),
        ({"trainer": {"epochs": 0}}, "trainer.epochs: given 0"),
        ({"trainer": {"precision": "fp8"}}, "trainer.precision: given 'fp8'"),
        ({"trainer": {"clip_norm": -1}}, "trainer.clip_norm: given -1"),
        ({"trainer": {"memory_budget": True}}, "trainer.memory_budget: given a boolean"),
        ({"trainer": {"checkpoint": 3}}, "trainer.checkpoint: given a number"),
    ],
)  # fmt: skip
def test_errors_name_the_place(change, message):
    assert complaint({**RUN, **change}).startswith(message)


def test_the_schema_knows_runs():
    validator = jsonschema.Draft202012Validator(weft.config.schema())
    full = {
        **RUN,
        "loss": {"type": "CrossEntropyLoss", "label_smoothing": 0.1, "classes_last": False},
        "scheduler": {"type": "Warmup", "steps": 5, "after": {"type": "CosineAnnealingLR", "T_max": 3}, "each": "step"},
        "metrics": ["accuracy", {"type": "TopK", "k": 3}],
        "callbacks": [{"type": "EarlyStopping", "patience": 2}, "EMA"],
        "trainer": {"epochs": 1, "clip_norm": 1.0, "checkpoint": ["0"], "memory_budget": "1 GB", "max_steps": None},
    }
    assert validator.is_valid(full) and validator.is_valid({**RUN, "model": "net.json"})
    for change in (
        {"optimizer": {"type": "Adam", "lrr": 3}}, {"loss": "ReLU"}, {"data": {"type": "csv"}}, {"optimizr": 3},
        {"trainer": {"epoch": 1}}, {"metrics": ["x"]}, {"callbacks": ["x"]}, {"scheduler": {"type": "StepLR"}},
        {"model": {"type": 3}},
    ):  # fmt: skip
        assert not validator.is_valid({**RUN, **change}), change
    for name, source in sources.SOURCES.items():  # every key has a schema
        example = {"type": name, **dict.fromkeys(source.required, 1)}
        list(validator.iter_errors({**RUN, "data": example}))


def test_the_parts_of_a_run():
    run = weft.config.load_run(
        {
            **RUN,
            "optimizer": {"type": "SGD", "lr": 0.5, "momentum": 0.9},
            "scheduler": {
                "type": "SequentialLR",
                "milestones": [2],
                "schedulers": [{"type": "LinearLR", "total_iters": 2}, {"type": "StepLR", "step_size": 3}],
            },
            "metrics": ["accuracy", {"type": "TopK", "k": 3}],
            "callbacks": [{"type": "EarlyStopping", "patience": 7}],
            "trainer": {"accumulate": 2, "clip_norm": 1.5, "seed": 3, "device": "cpu"},
        }
    )
    trainer = run.trainer()
    assert type(trainer.optimizer).__name__ == "SGD" and trainer.optimizer.param_groups[0]["momentum"] == 0.9
    assert type(trainer.scheduler).__name__ == "SequentialLR" and not trainer.schedules_steps
    assert trainer.learning_rate == pytest.approx(0.5 / 3)  # where LinearLR begins
    assert [metric.name for metric in trainer.meters.metrics] == ["accuracy", "top3"]
    assert trainer.callbacks[0].patience == 7 and trainer.run is None
    assert (trainer.accumulate, trainer.clip_norm, trainer.seed) == (2, 1.5, 3)
    assert len(run.train_loader().dataset) == 1442 and len(run.validation_loader().dataset) == 355
    warm = {**RUN, "scheduler": {"type": "Warmup", "steps": 4, "after": {"type": "StepLR", "step_size": 1}}}
    assert weft.config.load_run(warm).trainer().schedules_steps
    again = [one.tolist() for one in run.model().parameters()]
    assert again == [one.tolist() for one in run.model().parameters()]  # the seed decides


def test_checking_a_run_draws_nothing():
    weft.manual_seed(4)
    state = weft.get_rng_state().tolist()
    weft.config.load_run(RUN)
    assert weft.get_rng_state().tolist() == state


def test_changes_on_the_command_line():
    tree = weft.config.load_run(
        RUN, ["optimizer.lr=0.5", "model[1].bias=false", "trainer.run=some/where", "model[0].activation=tanh"]
    ).tree
    assert tree["optimizer"]["lr"] == 0.5 and tree["model"][1]["bias"] is False
    assert tree["trainer"]["run"] == "some/where" and tree["model"][0]["activation"] == "tanh"
    for change, message in (
        ("lr", "--set: lr: given 'lr'; expected KEY=VALUE"),
        ("model[7].bias=1", r"--set: model[7].bias: given [7] of"),
        ("model.bias=1", "--set: model.bias: given 'bias' of"),
        ("optimizer.rl=3", "optimizer.rl: given an unknown key"),
    ):
        with pytest.raises(weft.config.ConfigError) as caught:
            weft.config.load_run(RUN, [change])
        assert str(caught.value).startswith(message)


def test_a_network_in_a_file_of_its_own(tmp_path):
    write(tmp_path / "net.json", MODEL)
    path = write(tmp_path / "run.json", {**RUN, "model": "net.json"})
    run = weft.config.load_run(path)
    assert run.to_config()["model"] == MODEL and len(list(run.model().parameters())) == 4
    write(tmp_path / "net.json", [{"type": "Liner"}])
    with pytest.raises(weft.config.ConfigError, match=r"^net\.json: \[0\]\.type: given 'Liner'"):
        weft.config.load_run(path)


# ---- data ------------------------------------------------------------------------------------------------------------


def rows_of(data, tmp_path):
    run = weft.config.load_run(write(tmp_path / "run.json", {**RUN, "data": data}))
    return run, run.parts()


def test_tables(tmp_path):
    with (tmp_path / "t.csv").open("w", newline="") as file:
        rows = [[k, 2 * k + 1, "even" if k % 2 == 0 else "odd", k / 2] for k in range(20)]
        csv.writer(file).writerows([["a", "b", "kind", "half"], *rows])
    data = {"type": "csv", "path": "t.csv", "target": "kind", "features": ["a", "b"], "validation": 0.25}
    run, (train, validation) = rows_of(data, tmp_path)
    assert (len(train), len(validation)) == (15, 5)
    seen = sorted([*train.arrays[0][:, 0].tolist(), *validation.arrays[0][:, 0].tolist()])
    assert seen == list(range(20))
    assert all(label == int(row[0]) % 2 for row, label in zip(*train.arrays, strict=True))
    assert run.to_config()["data"]["path"] == str(tmp_path / "t.csv")
    _, (train, validation) = rows_of(
        {"type": "csv", "path": "t.csv", "target": "half", "features": ["a"], "standardize": True}, tmp_path
    )
    np.testing.assert_allclose([train.arrays[0].mean(), train.arrays[0].std()], [0, 1], atol=1e-6)
    assert train.arrays[1].shape == (16, 1) and validation.arrays[0].shape == (4, 1)
    _, parts = rows_of({**data, "validation": 0}, tmp_path)
    assert len(parts[0]) == 20 and parts[1] is None


def test_arrays_texts_and_graphs(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.arange(12.0).reshape(6, 2), z=np.arange(6), y=np.arange(6) % 2)
    run, (train, _) = rows_of({"type": "arrays", "path": "a.npz", "inputs": ["x", "z"], "batch_size": 2}, tmp_path)
    assert [tuple(part.shape) for part in next(iter(run.train_loader()))] == [(2, 2), (2,), (2,)]
    assert len(train) == 5
    (tmp_path / "t.txt").write_text("abcabcabcabcabcabcabc")
    _, (train, validation) = rows_of({"type": "text", "path": "t.txt", "length": 4, "validation": 0.3}, tmp_path)
    inputs, targets = train[1]
    assert inputs.tolist() == [1, 2, 0, 1] and targets.tolist() == [2, 0, 1, 2]
    assert len(train) == 3 and len(validation) == 1
    _, (train, _) = rows_of(
        {"type": "text", "path": "t.txt", "length": 4, "stride": 1, "tokenizer": "byte", "validation": 0}, tmp_path
    )
    assert train[0][0].tolist() == [97, 98, 99, 97] and len(train) == 17
    np.savez(
        tmp_path / "g.npz", x=np.eye(3), edge_index=[[0, 1], [1, 2]], y=[0, 1, 1], train=np.array([True, False, True])
    )
    run, (train, validation) = rows_of({"type": "graph", "path": "g.npz"}, tmp_path)
    assert train[0][2].tolist() == [0, -100, 1] and validation[0][2].tolist() == [-100, 1, -100]
    assert run.train_loader() is train
    np.savez(tmp_path / "g.npz", x=np.eye(3))
    with pytest.raises(weft.ShapeError, match="without edge_index, y, train"):
        rows_of({"type": "graph", "path": "g.npz"}, tmp_path)


def test_folders_of_images(tmp_path):
    pillow = pytest.importorskip("PIL.Image")
    for name, colour in (("blue", (0, 0, 255)), ("red", (255, 0, 0))):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(4):
            pillow.new("RGB", (6, 5), colour).save(tmp_path / "pictures" / name / f"{number}.png")
    data = {"type": "images", "folder": "pictures", "size": 4, "validation": 0.25, "transform": ["ToFloat"]}
    run, (train, validation) = rows_of(data, tmp_path)
    assert (len(train), len(validation)) == (6, 2)
    images, labels = next(iter(run.train_loader()))
    assert tuple(images.shape) == (6, 3, 4, 4) and images.dtype is weft.float32
    for image, label in zip(images.numpy(), labels.tolist(), strict=True):
        assert image[0].max() == label and image[2].max() == 1 - label


def test_augmentation_is_for_training_alone():
    augment = [
        {"type": "RandomHorizontalFlip", "p": 1.0},
        {"type": "RandomCrop", "size": 6, "padding": 1},
        {"type": "Normalize", "mean": 0.5, "std": 2.0},
        {"type": "GaussianNoise", "std": 0.3},
        {"type": "Cutout", "size": 4},
        {"type": "Mixup", "classes": 10},
    ]
    data = {"type": "digits", "shape": [1, 8, 8], "transform": augment}
    run = weft.config.load_run({**RUN, "model": ["Flatten", {**MODEL[0], "in_features": 36}], "data": data})
    images, labels = next(iter(run.train_loader("cpu")))
    assert tuple(images.shape) == (32, 1, 6, 6) and tuple(labels.shape) == (32, 10)
    for part, loader in (("test", run.validation_loader("cpu")), ("train", run.train_loader("cpu", is_training=False))):
        seen = [next(iter(loader)) for _ in range(2)]
        expected, numbers = digits.load(part)
        for images, labels in seen:
            middle = (expected[:32].reshape(32, 1, 8, 8)[:, :, 1:7, 1:7] - 0.5) / 2
            np.testing.assert_allclose(images.numpy(), middle, rtol=1e-6, atol=1e-7)
            np.testing.assert_array_equal(labels.numpy(), numbers[:32])
