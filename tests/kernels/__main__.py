"""python -m tests.kernels writes docs/kernels.md."""

from tests.kernels.page import PAGE, write

if __name__ == "__main__":
    write()
    print(PAGE.relative_to(PAGE.parents[1]))
