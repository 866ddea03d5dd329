"""The path under which pickles name the function that makes their tensors."""

from weft.core.copying import rebuild_tensor as rebuild_tensor
