"""Programs for torch become programs for Weft by their import lines."""

import re
import types
from pathlib import Path

import numpy as np
import pytest
import torch

FOLDER = Path(__file__).parents[1] / "programs"
STEPS = {"resnet18": 8}  # twice through its data; torch takes more than a second for each


def converted(text):
    """A program's text with every `torch` in its import lines replaced by `weft`."""
    lines = []
    for line in text.split("\n"):
        if re.match(r"(import|from) ", line):
            line = re.sub(r"^import torch$", "import weft as torch", line)
            line = re.sub(r"^(import|from) torch\b", r"\1 weft", line)
        lines.append(line)
    return "\n".join(lines)


def load(name, text):
    module = types.ModuleType(name)
    exec(compile(text, f"{name}.py", "exec"), module.__dict__)
    return module


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("[a-z]*.py")))
def test_a_program_gives_torchs_losses(name):
    text = (FOLDER / f"{name}.py").read_text()
    theirs, ours = load(f"{name}_torch", text), load(f"{name}_weft", converted(text))
    steps = STEPS.get(name, 20)
    their_model, our_model = theirs.make_model(), ours.make_model()
    our_model.load_state_dict(their_model.state_dict())
    expected, found = theirs.train(their_model, steps), ours.train(our_model, steps)
    assert len(found) == len(expected) >= steps
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-8)
    back = {key: torch.tensor(value.numpy()) for key, value in our_model.state_dict().items()}
    for key, value in their_model.state_dict().items():
        np.testing.assert_allclose(back[key].numpy(), value.numpy(), rtol=1e-6, atol=1e-8, err_msg=key)


def test_only_import_lines_change():
    text = (
        "import torch\nimport torch.nn as nn\nfrom torch.nn import functional as F\nx = torch.ones(1)  # import torch\n"
    )
    assert converted(text) == (
        "import weft as torch\nimport weft.nn as nn\nfrom weft.nn import functional as F\n"
        "x = torch.ones(1)  # import torch\n"
    )
