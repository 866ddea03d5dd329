"""The table of primitives, one row each, and `make_node`, the only way to a new node.

A row says everything about a primitive that does not depend on a device: its kind, number of sources and attributes,
the rule that gives shape and dtype, its meaning in NumPy, what it costs, and where its gradient is. What only the
compiler makes has rows of the same form in `compiler.primitives`. `docs/adding.md` says how to add one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.base.dtypes import DType
from weft.base.errors import DeviceError, problem
from weft.graph import attention, attributes, evaluations
from weft.graph import shape_rules as rules
from weft.graph.evaluations import first, numpy_function, reduction, segments, typed_reduction
from weft.graph.node import BUFFER, INPUT, Evaluation, Node, Primitive, Results, Rule, given_rule, intern_node

__all__ = ["PRIMITIVES", "Primitive", "make_node", "results_of"]


def elementwise(
    name: str,
    arity: int,
    shape_rule: Rule,
    evaluation: Evaluation,
    cost: int = 1,
    gradient: str = "rule",
    attributes: type[tuple] = tuple,
) -> Primitive:
    """A row of a primitive that computes each element of its result from those at the same index of its sources."""
    return Primitive(name, "elementwise", arity, attributes, shape_rule, evaluation, cost, gradient)


def movement(name: str, attributes: type[tuple], shape_rule: Rule, evaluation: Evaluation) -> Primitive:
    """A row of a primitive that only changes where elements are read."""
    return Primitive(name, "movement", 1, attributes, shape_rule, evaluation, 0, "rule")


def template(name: str, attributes: type[tuple], results: Results, evaluation: Evaluation, gradient: str) -> Primitive:
    """A row of a primitive with several results that a template makes a kernel of."""
    rule = rules.several_rule(results)
    return Primitive(name, "template", None, attributes, rule, evaluation, 0, gradient, results)


_ROWS = (
    BUFFER,
    INPUT,
    # generated: their kernels read no memory for them
    Primitive("const", "generate", 0, attributes.Const, given_rule, evaluations.const, 0, "none"),
    Primitive("iota", "generate", 0, attributes.Iota, rules.iota_rule, evaluations.iota, 0, "none"),
    Primitive("random", "generate", 1, attributes.Random, rules.random_rule, evaluations.random, 40, "none"),
    # markers: the value of the first source, with something said about it
    elementwise("variable", 1, rules.same_rule, first, attributes=attributes.Serial),
    elementwise("stop_gradient", 1, rules.same_rule, first, gradient="engine"),
    elementwise("checkpoint", 1, rules.same_rule, first, attributes=attributes.Checkpoint),
    Primitive("after", "after", 2, tuple, rules.same_rule, first, 0, "rule"),
    Primitive("call", "generate", None, attributes.Call, rules.call_rule, evaluations.call, 0, "engine"),
    elementwise("result", 2, rules.same_rule, first, gradient="engine", attributes=attributes.Result),
    elementwise("surrogate", 2, rules.pair_rule, first),
    elementwise("keep", 2, rules.same_rule, first),
    elementwise("in_range", 1, rules.in_range_rule, first, gradient="none", attributes=attributes.InRange),
    # elementwise
    elementwise("neg", 1, rules.same_rule, numpy_function(np.negative)),
    elementwise("abs", 1, rules.same_rule, numpy_function(np.abs)),
    elementwise("exp", 1, rules.float_rule, numpy_function(np.exp), cost=10),
    elementwise("log", 1, rules.float_rule, numpy_function(np.log), cost=12),
    elementwise("sqrt", 1, rules.float_rule, numpy_function(np.sqrt), cost=4),
    elementwise("sin", 1, rules.float_rule, numpy_function(np.sin), cost=16),
    elementwise("cos", 1, rules.float_rule, numpy_function(np.cos), cost=16),
    elementwise("tanh", 1, rules.float_rule, numpy_function(np.tanh), cost=14),
    elementwise("erf", 1, rules.float_rule, evaluations.erf, cost=16),
    elementwise("floor", 1, rules.float_rule, numpy_function(np.floor)),
    elementwise("log1p", 1, rules.float_rule, numpy_function(np.log1p), cost=14),
    elementwise("expm1", 1, rules.float_rule, numpy_function(np.expm1), cost=14),
    elementwise("exp_rounded", 1, rules.float_rule, numpy_function(np.exp), cost=10),
    elementwise("logistic", 1, rules.float_rule, evaluations.logistic, cost=14),
    elementwise("not", 1, rules.bits_rule, numpy_function(np.invert), gradient="none"),
    elementwise("add", 2, rules.pair_rule, numpy_function(np.add)),
    elementwise("sub", 2, rules.pair_rule, numpy_function(np.subtract)),
    elementwise("mul", 2, rules.pair_rule, numpy_function(np.multiply)),
    elementwise("div", 2, rules.pair_rule, evaluations.div, cost=4),
    elementwise("max", 2, rules.pair_rule, numpy_function(np.maximum)),
    elementwise("min", 2, rules.pair_rule, numpy_function(np.minimum)),
    elementwise("mod", 2, rules.pair_rule, evaluations.mod, cost=6),
    elementwise("pow", 2, rules.float_pair_rule, numpy_function(np.power), cost=30),
    elementwise("floor_divide", 2, rules.float_pair_rule, numpy_function(np.floor_divide), cost=12),
    elementwise("lt", 2, rules.compare_rule, numpy_function(np.less), gradient="none"),
    elementwise("le", 2, rules.compare_rule, numpy_function(np.less_equal), gradient="none"),
    elementwise("eq", 2, rules.compare_rule, numpy_function(np.equal), gradient="none"),
    elementwise("ne", 2, rules.compare_rule, numpy_function(np.not_equal), gradient="none"),
    elementwise("and", 2, rules.bits_rule, numpy_function(np.bitwise_and), gradient="none"),
    elementwise("or", 2, rules.bits_rule, numpy_function(np.bitwise_or), gradient="none"),
    elementwise("xor", 2, rules.bits_rule, numpy_function(np.bitwise_xor), gradient="none"),
    elementwise("shl", 2, rules.bits_rule, numpy_function(np.left_shift), gradient="none"),
    elementwise("shr", 2, rules.bits_rule, numpy_function(np.right_shift), gradient="none"),
    elementwise("select", 3, rules.select_rule, numpy_function(np.where)),
    elementwise("cast", 1, rules.cast_rule, evaluations.cast, attributes=attributes.Cast),
    elementwise("bitcast", 1, rules.bitcast_rule, evaluations.bitcast, attributes=attributes.Cast),
    # reductions and running reductions
    Primitive("reduce_sum", "reduce", 1, attributes.Reduce, rules.reduce_rule, typed_reduction(np.sum), 0, "rule"),
    Primitive("reduce_prod", "reduce", 1, attributes.Reduce, rules.reduce_rule, typed_reduction(np.prod), 0, "rule"),
    Primitive("reduce_max", "reduce", 1, attributes.Reduce, rules.reduce_rule, reduction(np.max), 0, "rule"),
    Primitive("reduce_min", "reduce", 1, attributes.Reduce, rules.reduce_rule, reduction(np.min), 0, "rule"),
    Primitive("scan", "scan", 1, attributes.Scan, rules.scan_rule, evaluations.scan, 0, "rule"),
    Primitive("argsort", "sort", 1, tuple, rules.argsort_rule, evaluations.argsort, 0, "none"),
    # movement, and what joins or replaces parts
    movement("reshape", attributes.Reshape, rules.reshape_rule, evaluations.reshape),
    movement("permute", attributes.Permute, rules.permute_rule, evaluations.permute),
    movement("expand", attributes.Expand, rules.expand_rule, evaluations.expand),
    movement("slice", attributes.Slice, rules.slice_rule, evaluations.slice_window),
    movement("pad", attributes.Pad, rules.pad_rule, evaluations.pad),
    movement("flip", attributes.Flip, rules.flip_rule, evaluations.flip),
    movement("unfold", attributes.Unfold, rules.unfold_rule, evaluations.unfold),
    Primitive("fold", "fold", 1, attributes.Fold, rules.fold_rule, evaluations.fold, 0, "rule"),
    Primitive("concat", "concat", None, attributes.Concat, rules.concat_rule, evaluations.concat, 0, "rule"),
    Primitive(
        "update_slice",
        "update",
        2,
        attributes.UpdateSlice,
        rules.update_slice_rule,
        evaluations.update_slice,
        0,
        "rule",
    ),
    # rows by number
    Primitive("gather", "gather", 2, attributes.Gather, rules.gather_rule, evaluations.gather, 0, "rule"),
    Primitive(
        "gather_neighbors", "gather", 4, tuple, rules.gather_neighbors_rule, evaluations.gather_neighbors, 0, "rule"
    ),
    Primitive("along", "gather", 2, attributes.Along, rules.along_rule, evaluations.along, 0, "rule"),
    Primitive("along_add", "put", 2, attributes.AlongAdd, rules.along_add_rule, evaluations.along_add, 0, "rule"),
    Primitive(
        "scatter_add", "scatter", 2, attributes.Scatter, rules.scatter_rule, evaluations.scatter("sum"), 0, "rule"
    ),
    Primitive(
        "scatter_max", "scatter", 2, attributes.Scatter, rules.scatter_rule, evaluations.scatter("max"), 0, "rule"
    ),
    Primitive(
        "scatter_min", "scatter", 2, attributes.Scatter, rules.scatter_rule, evaluations.scatter("min"), 0, "rule"
    ),
    Primitive(
        "scatter_prod", "scatter", 2, attributes.Scatter, rules.scatter_rule, evaluations.scatter("prod"), 0, "rule"
    ),
    Primitive("replace_rows", "update", 3, tuple, rules.replace_rows_rule, evaluations.replace_rows, 0, "none"),
    Primitive("segment_sum", "segment", 2, attributes.Segment, rules.segment_rule, segments("sum"), 0, "rule"),
    Primitive("segment_max", "segment", 2, attributes.Segment, rules.segment_rule, segments("max"), 0, "rule"),
    Primitive("segment_min", "segment", 2, attributes.Segment, rules.segment_rule, segments("min"), 0, "rule"),
    Primitive(
        "segment_rows", "rows", 1, attributes.SegmentRows, rules.segment_rows_rule, evaluations.segment_rows, 0, "none"
    ),
    # products
    Primitive("dot", "dot", 2, tuple, rules.dot_rule, numpy_function(np.matmul), 0, "rule"),
    Primitive("conv", "conv", 2, attributes.Geometry, rules.conv_rule, evaluations.conv, 0, "rule"),
    Primitive(
        "conv_weight", "conv", 2, attributes.ConvWeight, rules.conv_weight_rule, evaluations.conv_weight, 0, "rule"
    ),
    Primitive("conv_input", "conv", 2, attributes.ConvInput, rules.conv_input_rule, evaluations.conv_input, 0, "rule"),
    # several results, kernels written by users, loops
    template("attention", attributes.Attention, attention.results, attention.evaluate_attention, "joint"),
    template(
        "attention_backward", attributes.Attention, attention.backward_results, attention.evaluate_backward, "joint"
    ),
    Primitive("custom", "template", None, attributes.Custom, rules.custom_rule, evaluations.custom, 0, "rule"),
    Primitive("loop", "loop", None, attributes.Loop, rules.loop_rule, None, 0, "engine"),
    Primitive("pick", "pick", 1, attributes.Pick, rules.pick_rule, None, 0, "engine"),
)
PRIMITIVES: dict[str, Primitive] = {row.name: row for row in _ROWS}


_new_record = tuple.__new__


def make_node(
    op: str | Primitive,
    srcs: tuple[Node, ...] = (),
    attrs: tuple = (),
    *,
    dtype: DType | None = None,
    device: Any = None,
    site: str | None = None,
) -> Node:
    """The node `op(srcs, attrs)`: `op` is a row, or the name of one; `attrs` the record of its attributes,
    or all their values as a tuple. `dtype` and `device` are for nodes without sources; others take them from these."""
    row = PRIMITIVES[op] if isinstance(op, str) else op
    if type(attrs) is not row.attributes:
        attrs = _new_record(row.attributes, attrs)
    shape, result = row.shape_rule(srcs, attrs, dtype)
    if srcs:
        device = srcs[0].device
        for source in srcs[:1] if row.name == "result" else srcs:  # a history may be on another device
            if source.device is not device:  # an address there means nothing here
                given = f"tensors on {device} and {source.device}"
                raise problem(DeviceError, row.name, given, "all on one device", "move one with .to(device)")
    return intern_node(row, srcs, attrs, shape, result, device, site)


def results_of(node: Node) -> list[Node]:
    """The results of a node that has several, in order; nothing for any other."""
    several = node.primitive.results
    found = () if several is None else several(node.srcs, node.attrs)
    return [make_node("pick", (node,), ("result", number)) for number in range(len(found))]
