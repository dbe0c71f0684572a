from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 -- torch's own habit
from torch.fx.experimental.proxy_tensor import make_fx

from npgxd.toolchain.record import parse_records
from npgxd.wire.messages import CoreCounts
from npugraph_ex.observe import run_observed
from npugraph_ex.recording.describe import Describer, Surroundings
from npugraph_ex.recording.optypes import OPS, Op, not_compilable
from tools.cann_sim.ops import op_types

aten = torch.ops.aten
NEWEST = Surroundings(cann_version="9.1.0", cores=CoreCounts(vector=40, cube=20))


def recorded(function, *inputs, surroundings=NEWEST):
    """The records of one run of ``function``, traced to aten operators."""
    module = make_fx(function)(*inputs)
    describer = Describer(surroundings)
    run_observed(module, list(inputs), (describer,))
    return describer.recorded()


def told(function, *inputs, surroundings=NEWEST):
    """The same as parsed JSON, with nothing left undescribed."""
    result = recorded(function, *inputs, surroundings=surroundings)
    assert result.undescribed == ()
    return [json.loads(raw) for _, raw in result.debug]


def op_types_of(function, *inputs):
    return [record["op_type"] for record in told(function, *inputs)]


X = torch.rand(4, 6) + 0.5
Y = torch.rand(4, 6) + 0.5
I = torch.arange(24).view(4, 6)  # noqa: E741 -- whole numbers
B = X > 1
IMAGE = torch.rand(2, 3, 8, 8)

CASES = {
    "add.Tensor": (aten.add.Tensor, X, Y),
    "add_.Tensor": (lambda x, y: aten.add_.Tensor(x.clone(), y), X, Y),
    "sub.Tensor": (aten.sub.Tensor, X, Y),
    "rsub.Scalar": (lambda x: aten.rsub.Scalar(x, 2), X),
    "mul.Tensor": (aten.mul.Tensor, X, Y),
    "div.Tensor": (aten.div.Tensor, X, Y),
    "floor_divide": (aten.floor_divide.default, I, I + 1),
    "remainder": (aten.remainder.Tensor, X, Y),
    "fmod": (aten.fmod.Tensor, X, Y),
    "pow.Tensor_Tensor": (aten.pow.Tensor_Tensor, X, Y),
    "pow.Tensor_Scalar": (lambda x: aten.pow.Tensor_Scalar(x, 2), X),
    "maximum": (aten.maximum.default, X, Y),
    "minimum": (aten.minimum.default, X, Y),
    "atan2": (aten.atan2.default, X, Y),
    **{name: (getattr(aten, name).Tensor, X, Y) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{name: (getattr(aten, name).default, B, B) for name in ("logical_and", "logical_or", "logical_xor")},
    **{name: (getattr(aten, name).Tensor, I, I) for name in ("bitwise_and", "bitwise_or", "bitwise_xor")},
    **{
        name: (getattr(aten, name).default, X)
        for name in (
            *("abs", "neg", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "sin", "cos"),
            *("tan", "tanh", "sinh", "cosh", "atan", "erf", "sigmoid", "relu", "silu", "gelu", "sign", "floor", "ceil", "round"),
            *("trunc", "isnan", "isinf", "logical_not", "hardswish", "hardsigmoid", "leaky_relu", "elu", "softplus", "mish"),
        )
    },
    "bitwise_not": (aten.bitwise_not.default, I),
    "clamp": (lambda x: aten.clamp.default(x, 0.6, 1.0), X),
    "clamp without a lower end": (lambda x: aten.clamp.default(x, None, 1.0), X),
    "clamp_min": (lambda x: aten.clamp_min.default(x, 0.0), X),
    "where": (aten.where.self, B, X, Y),
    "masked_fill": (lambda x, b: aten.masked_fill.Scalar(x, b, float("-inf")), X, B),
    "addcmul": (aten.addcmul.default, X, Y, Y),
    "addcdiv": (aten.addcdiv.default, X, Y, Y),
    "lerp": (lambda x, y: aten.lerp.Scalar(x, y, 0.5), X, Y),
    "sum": (lambda x: aten.sum.dim_IntList(x, [1]), X),
    "sum of all": (aten.sum.default, X),
    "mean": (lambda x: aten.mean.dim(x, [-1], True), X),
    "amax": (lambda x: aten.amax.default(x, [1]), X),
    "amin": (lambda x: aten.amin.default(x, [1]), X),
    "any": (lambda b: aten.any.dim(b, 1), B),
    "all": (lambda b: aten.all.dim(b, 1), B),
    "max": (lambda x: aten.max.dim(x, 1)[0], X),
    "argmax": (lambda x: aten.argmax.default(x, 1), X),
    "var_mean": (lambda x: aten.var_mean.correction(x, [1]), X),
    "cumsum": (lambda x: aten.cumsum.default(x, 1), X),
    "topk": (lambda x: aten.topk.default(x, 2)[0], X),
    "sort": (lambda x: aten.sort.default(x)[0], X),
    "_softmax": (lambda x: aten._softmax.default(x, 1, False), X),
    "_log_softmax": (lambda x: aten._log_softmax.default(x, 1, False), X),
    "native_layer_norm": (lambda x, w: aten.native_layer_norm.default(x, [6], w, None, 1e-5), X, torch.ones(6)),
    "_fused_rms_norm": (lambda x, w: aten._fused_rms_norm.default(x, [6], w, 1e-5), X, torch.ones(6)),
    "native_group_norm": (lambda x: aten.native_group_norm.default(x, None, None, 2, 3, 64, 3, 1e-5), IMAGE),
    "native_batch_norm": (
        lambda x, m, v: aten._native_batch_norm_legit_no_training.default(x, None, None, m, v, 0.1, 1e-5),
        IMAGE,
        torch.zeros(3),
        torch.ones(3),
    ),
    "nll_loss": (lambda x: aten.nll_loss_forward.default(x, torch.tensor([0, 1, 2, 3]), None, 1, -100), X),
    "mse_loss": (aten.mse_loss.default, X, Y),
    "mm": (lambda x, y: aten.mm.default(x, y.mT), X, Y),
    "bmm": (lambda x: aten.bmm.default(x, x), torch.rand(2, 3, 3)),
    "addmm": (lambda b, x, y: aten.addmm.default(b, x, y.mT), torch.rand(4), X, Y),
    "addmm with a matrix": (lambda b, x, y: aten.addmm.default(b, x, y.mT), torch.rand(4, 4), X, Y),
    "baddbmm": (lambda x: aten.baddbmm.default(x, x, x), torch.rand(2, 3, 3)),
    "mv": (lambda x: aten.mv.default(x, torch.ones(6)), X),
    "convolution": (F.conv2d, IMAGE, torch.rand(4, 3, 3, 3)),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2), IMAGE),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 2), IMAGE),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, 2), IMAGE),
    "attention": (lambda q: F.scaled_dot_product_attention(q, q, q), torch.rand(1, 2, 4, 8)),
    "cat": (lambda x, y: aten.cat.default([x, y], 1), X, Y),
    "stack": (lambda x, y: aten.stack.default([x, y]), X, Y),
    "repeat": (lambda x: aten.repeat.default(x, [2, 1]), X),
    "pad": (lambda x: aten.constant_pad_nd.default(x, [1, 1]), X),
    "roll": (lambda x: aten.roll.default(x, [1], [0]), X),
    "flip": (lambda x: aten.flip.default(x, [0]), X),
    "tril": (aten.tril.default, X),
    "triu": (aten.triu.default, X),
    "embedding": (lambda w: aten.embedding.default(w, torch.tensor([1, 2])), X),
    "index_select": (lambda x: aten.index_select.default(x, 0, torch.tensor([1, 2])), X),
    "gather": (lambda x: aten.gather.default(x, 1, torch.zeros(4, 1, dtype=torch.int64)), X),
    "scatter": (lambda x: aten.scatter.value(x, 1, torch.zeros(4, 1, dtype=torch.int64), 1.0), X),
    "index": (lambda x: aten.index.Tensor(x, [None, torch.tensor([1, 2])]), X),
    "index_put": (lambda x: aten.index_put.default(x, [torch.tensor([1])], torch.ones(1, 6)), X),
    "slice_scatter": (lambda x: aten.slice_scatter.default(x, torch.ones(2, 6), 0, 0, 2), X),
    "select_scatter": (lambda x: aten.select_scatter.default(x, torch.ones(6), 0, 1), X),
    "arange": (lambda x: x[:, 0] + aten.arange.default(4), X),
    "full": (lambda x: x + aten.full.default([4, 6], 1.0), X),
    "zeros_like": (aten.zeros_like.default, X),
    "ones_like": (aten.ones_like.default, X),
    "scalar_tensor": (lambda x: x + aten.scalar_tensor.default(1.0), X),
    "clone of a transposed": (lambda x: aten.clone.default(x.mT, memory_format=torch.contiguous_format), X),
    "_to_copy": (lambda x: aten._to_copy.default(x, dtype=torch.bfloat16), X),
    "copy_": (lambda x, y: aten.copy_.default(x.clone(), y), X, Y),
    "copy_ into a view": (lambda x, y: aten.copy_.default(x.clone()[:2], y[:2]), X, Y),
    "bernoulli": (lambda x: aten.bernoulli.p(x, 0.5), X),
    "native_dropout": (lambda x: aten.native_dropout.default(x, 0.5, True), X),
    "rand_like": (aten.rand_like.default, X),
    "randn": (lambda x: x + aten.randn.default([4, 6]), X),
    "silu_backward": (aten.silu_backward.default, X, Y),
    "gelu_backward": (aten.gelu_backward.default, X, Y),
    "tanh_backward": (aten.tanh_backward.default, X, Y),
    "sigmoid_backward": (aten.sigmoid_backward.default, X, Y),
    "threshold_backward": (lambda x, y: aten.threshold_backward.default(x, y, 0), X, Y),
    "_softmax_backward": (lambda x, y: aten._softmax_backward_data.default(x, y, 1, torch.float32), X, Y),
    "embedding_dense_backward": (lambda x: aten.embedding_dense_backward.default(x, torch.arange(4), 9, -1, False), X),
}


@pytest.mark.parametrize("name", CASES)
def test_an_aten_call_becomes_records(name):
    function, *inputs = CASES[name]
    for record in told(function, *inputs):
        _check_schema(record)
    parsed, rejected = parse_records(recorded(function, *inputs).debug)
    assert parsed
    assert rejected == []


def test_the_table_is_wide():
    assert len(CASES) >= 120
    assert len(OPS) >= 200


def test_the_table_names_operators_that_torch_has():
    assert [name for name in OPS if not hasattr(aten, name)] == []


def test_what_transformers_are_made_of_exists_in_the_simulated_cann():
    words = ("add", "sub", "mul", "div", "pow", "mean", "rsqrt", "silu", "_softmax", "native_layer_norm", "cat", "embedding")
    more = ("index_put", "slice_scatter", "masked_fill", "where", "cos", "sin", "neg", "gelu", "silu_backward", "arange", "full")
    entries = [OPS[word] for word in (*words, *more)]
    wanted = {entry.op_type if isinstance(entry, Op) else entry for entry in entries}
    assert wanted | {"MatMulV2", "MatMulV3", "BatchMatMulV2", "Cast", "TensorMove", "ViewCopy", "Adds", "Muls"} <= set(op_types())


def _check_schema(record):
    assert set(record) == {
        *("op_type", "inputs", "outputs", "attrs", "impl_mode", "deterministic", "tune_mode", "platform_info"),
    }
    assert record["platform_info"] == {"cube_core_cnt": 20, "vector_core_cnt": 40}
    for entry in [*record["inputs"], *record["outputs"]]:
        for tensor in entry if isinstance(entry, list) else [entry]:
            if tensor is None:
                continue
            assert set(tensor) >= {"name", "index", "param_type", "dtype", "shape", "format", "origin_shape", "origin_format"}
            assert ("const_data" in tensor) == tensor["value_depend"]
            assert ("stride" in tensor) == bool(tensor.get("is_view"))
    for position, attribute in enumerate(record["attrs"]):
        assert set(attribute) == {"name", "dtype", "index", "value"}
        assert attribute["index"] == position


# ---- particular calls ------------------------------------------------------------------------------------------------


def test_a_product_is_told_as_it_lies_in_memory():
    (record,) = told(lambda x, w: aten.mm.default(x, w.t()), torch.rand(2, 8), torch.rand(3, 8))
    assert record["op_type"] == "MatMulV2"
    assert [tensor and tensor["shape"] for tensor in record["inputs"]] == [[2, 8], [3, 8], None, None]
    assert {item["name"]: item["value"] for item in record["attrs"]} == {
        "transpose_x1": False,
        "transpose_x2": True,
        "offset_x": 0,
    }


def test_half_precision_products_use_the_newer_operator():
    assert op_types_of(lambda x: x @ x, torch.rand(4, 4, dtype=torch.bfloat16)) == ["MatMulV3"]


def test_a_bias_vector_is_part_of_the_product_and_a_matrix_is_added():
    assert [record["inputs"][2] is not None for record in told(*CASES["addmm"])] == [True]
    assert op_types_of(*CASES["addmm with a matrix"]) == ["MatMulV2", "Add"]


def test_numbers_are_attributes_where_the_operator_takes_them():
    (record,) = told(lambda x: x - 3, X)
    assert record["op_type"] == "Adds"
    assert record["attrs"][0]["value"] == -3.0
    (record,) = told(lambda x: x / 4, X)
    assert (record["op_type"], record["attrs"][0]["value"]) == ("Muls", 0.25)


def test_bits_of_truth_values_are_logic():
    assert op_types_of(lambda b: ~b & b, B) == ["LogicalNot", "LogicalAnd"]
    assert op_types_of(lambda i: ~i & i, I) == ["Invert", "BitwiseAnd"]


def test_axes_are_values_that_decide_the_kernel():
    (one,) = told(lambda x: aten.mean.dim(x, [0]), torch.rand(4, 4))
    (other,) = told(lambda x: aten.mean.dim(x, [1]), torch.rand(4, 4))
    assert one["inputs"][1]["const_data"] == [0]
    assert other["inputs"][1]["const_data"] == [1]


def test_a_strided_input_is_told_as_a_view_from_cann_9_1_on():
    def function(x):
        return aten.exp.default(x[:, ::2])

    (newest,) = told(function, X)
    assert newest["inputs"][0]["is_view"]
    assert newest["inputs"][0]["stride"] == [6, 2]
    older = Surroundings(cann_version="9.0.0")
    (record,) = told(function, X, surroundings=older)
    assert "is_view" not in record["inputs"][0]
    assert "platform_info" not in record


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.view(24),
        lambda x: x.t(),
        lambda x: x[1:],
        lambda x: x.unsqueeze(0).expand(2, 4, 6),
        lambda x: x.split(2),
        lambda x: x.permute(1, 0).unbind(),
        aten.empty_like,
        lambda x: x[:0] + 1,  # nothing to compute
    ],
)
def test_views_and_empty_results_launch_no_kernel(function):
    assert told(function, X) == []


def test_gradients_of_a_convolution_are_operators_of_their_own():
    def function(x, w, g):
        return aten.convolution_backward.default(g, x, w, [4], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, True])

    weight = torch.rand(4, 3, 3, 3)
    words = op_types_of(function, IMAGE, weight, torch.rand(2, 4, 6, 6))
    assert words == ["Conv2DBackpropInput", "Conv2DBackpropFilter", "ReduceSum"]


def test_what_is_not_in_the_table_is_named_and_counted():
    result = recorded(lambda x: aten.logcumsumexp.default(aten.logcumsumexp.default(x, 0), 0) + 1, X)
    assert result.undescribed == (("aten.logcumsumexp.default", 2, "not in the table of operators"),)
    assert len(result.debug) == 1


def test_a_custom_operator_is_named():
    with torch.library._scoped_library("npugraph_ex_test", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
        result = recorded(torch.ops.npugraph_ex_test.twice, X)
    assert [name for name, _, _ in result.undescribed] == ["npugraph_ex_test.twice.default"]


def test_a_failure_to_describe_is_counted_and_never_raised(monkeypatch):
    def broken(call):
        raise KeyError(call.name)

    monkeypatch.setattr("npugraph_ex.recording.describe.describe", broken)
    result = recorded(lambda x: x + 1, X)
    assert result.undescribed == (("aten.add.Tensor", 1, "KeyError: 'add'"),)


def test_a_dtype_without_a_word_is_named():
    result = recorded(lambda x: x.clone(), torch.ones(2, dtype=torch.uint16))
    assert "has no word in the record schema" in result.undescribed[0][2]


# ---- files -----------------------------------------------------------------------------------------------------------


def test_files_are_named_and_written_as_a_dump_does():
    result = recorded(lambda x, y: aten.add(aten.add(x, y), y.mT.contiguous().mT[:1]), X, Y)
    names = [name for name, _ in result.debug]
    assert names[0] == "Add_float_ND_4_6_0.json"
    assert "Add_float_ND_4_6_1.json" in names
    raw = result.debug[0][1]
    assert raw == json.dumps(json.loads(raw), sort_keys=True, indent=2).encode()


def test_the_folders_differ_as_those_of_a_dump():
    result = recorded(lambda x: (aten.sum.dim_IntList(x @ x, [1]), aten.exp(x)), torch.rand(4, 4))
    assert [name.split("_")[0] for name, _ in result.target] == ["MatMulV2"]
    assert [name.split("_")[0] for name, _ in result.debug] == ["MatMulV2", "ReduceSum", "Exp"]
    assert [name.split("_")[0] for name, _ in result.compilable] == ["MatMulV2", "Exp"]


def test_what_cannot_be_compiled_depends_on_the_version():
    assert "MoeDistributeDispatch" in not_compilable("8.5.0")
    assert "MoeDistributeDispatch" not in not_compilable("9.0.0")
    assert {"GatherV3", "Range"} <= not_compilable("9.0.0")
    assert "GatherV3" not in not_compilable("9.1.0")
    assert not_compilable("") == not_compilable("9.1.0")


def test_equal_records_are_selected_once():
    result = recorded(lambda x, y: aten.exp(x) + aten.exp(y), X, Y)
    assert len(result.compilable) == 3
    assert len(result.selected()) == 2


def test_the_deterministic_setting_is_in_the_record():
    (record,) = told(lambda x: x + x, X, surroundings=Surroundings(deterministic=True))
    assert record["deterministic"] == "true"
