"""`python -m tests.layers`: write the catalogue of layers and docs/layers.md."""

from tests.layers.page import files

for path, text in files().items():
    path.write_text(text)
    print(path.name)
