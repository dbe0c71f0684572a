"""Which CANN operator each aten operator becomes on an NPU: the table of the portable recorder.

A plain word means: inputs and outputs are the call's tensors, attributes its other arguments.  ``Op`` says more.  Names are those
of CANN's operator library where it is public; what an aten operator without entry became is not guessed: it is reported by name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class Op:
    """How one aten operator is told.

    ``scalar``: the op type where the second operand is a number; empty: the number becomes a scalar input.
    ``boolean``: the op type for bool tensors.
    ``const``: arguments that become constant inputs. ``rename``: attribute names. ``drop``: arguments that decide nothing.
    """

    op_type: str
    scalar: str = ""
    boolean: str = ""
    const: tuple[str, ...] = ()
    rename: dict[str, str] = field(default_factory=dict)
    drop: tuple[str, ...] = ()


def _elementwise() -> dict[str, str | Op]:
    unary = """
        abs Abs|neg Neg|exp Exp|exp2 Exp2|expm1 Expm1|log Log|log2 Log2|log10 Log10|log1p Log1p|sqrt Sqrt|rsqrt Rsqrt
        reciprocal Reciprocal|sin Sin|cos Cos|tan Tan|asin Asin|acos Acos|atan Atan|sinh Sinh|cosh Cosh|tanh Tanh|asinh Asinh
        acosh Acosh|atanh Atanh|erf Erf|erfc Erfc|erfinv Erfinv|sigmoid Sigmoid|relu Relu|silu Swish|mish Mish|softplus SoftplusV2
        sign Sign|floor Floor|ceil Ceil|round Round|trunc Trunc|frac Frac|square Square|isnan IsNan|isinf IsInf|isfinite IsFinite
        logical_not LogicalNot|hardswish HardSwish|hardsigmoid HardSigmoid|log_sigmoid_forward LogSigmoid
        lgamma Lgamma|digamma Digamma|sinc Sinc|positive TensorMove
    """
    pairs = (pair.split() for line in unary.split("\n") for pair in line.strip().split("|") if pair)
    return {name: op_type for name, op_type in pairs}  # noqa: C416 -- says which is which


ELEMENTWISE: Final[dict[str, str | Op]] = _elementwise() | {
    "add": Op("Add", scalar="Adds"),
    "sub": Op("Sub", scalar="Adds"),
    "rsub": Op("Sub"),
    "mul": Op("Mul", scalar="Muls"),
    "div": Op("RealDiv", scalar="Muls"),
    "floor_divide": "FloorDiv",
    "remainder": "FloorMod",
    "fmod": "Mod",
    "pow": Op("Pow"),
    "maximum": "Maximum",
    "minimum": "Minimum",
    "atan2": "Atan2",
    "hypot": "Hypot",
    "eq": "Equal",
    "ne": "NotEqual",
    "lt": "Less",
    "le": "LessEqual",
    "gt": "Greater",
    "ge": "GreaterEqual",
    "logical_and": "LogicalAnd",
    "logical_or": "LogicalOr",
    "logical_xor": "LogicalXor",
    "bitwise_and": Op("BitwiseAnd", boolean="LogicalAnd"),
    "bitwise_or": Op("BitwiseOr", boolean="LogicalOr"),
    "bitwise_xor": Op("BitwiseXor", boolean="LogicalXor"),
    "bitwise_not": Op("Invert", boolean="LogicalNot"),
    "__lshift__": "LeftShift",
    "bitwise_left_shift": "LeftShift",
    "__rshift__": "RightShift",
    "bitwise_right_shift": "RightShift",
    "clamp": "ClipByValueV2",
    "clamp_min": "Maximum",
    "clamp_max": "Minimum",
    "hardtanh": "ClipByValueV2",
    "leaky_relu": "LeakyRelu",
    "elu": "Elu",
    "gelu": Op("GeluV2"),
    "glu": "Glu",
    "where": "SelectV2",
    "masked_fill": "MaskedFill",
    "lerp": "Lerp",
    "addcmul": "Addcmul",
    "addcdiv": "Addcdiv",
    "prelu": "PRelu",
    "_prelu_kernel": "PRelu",
    "sigmoid_backward": "SigmoidGrad",
    "tanh_backward": "TanhGrad",
    "silu_backward": "SwishGrad",
    "gelu_backward": "GeluGradV2",
    "threshold_backward": "ThresholdGradV2D",
    "leaky_relu_backward": "LeakyReluGrad",
    "elu_backward": "EluGradV2",
    "hardtanh_backward": "HardtanhGrad",
    "hardswish_backward": "HardSwishGrad",
    "softplus_backward": "SoftplusV2Grad",
    "glu_backward": "GLUGrad",
}

REDUCTIONS: Final[dict[str, str | Op]] = {
    "sum": Op("ReduceSum", const=("dim",), rename={"keepdim": "keep_dims"}),
    "mean": Op("ReduceMean", const=("dim",), rename={"keepdim": "keep_dims"}),
    "prod": Op("ReduceProd", const=("dim",), rename={"keepdim": "keep_dims"}),
    "amax": Op("ReduceMax", const=("dim",), rename={"keepdim": "keep_dims"}),
    "amin": Op("ReduceMin", const=("dim",), rename={"keepdim": "keep_dims"}),
    "any": Op("ReduceAny", const=("dim",), rename={"keepdim": "keep_dims"}),
    "all": Op("ReduceAll", const=("dim",), rename={"keepdim": "keep_dims"}),
    "max": Op("ArgMaxWithValue", rename={"dim": "dimension", "keepdim": "keep_dims"}),
    "min": Op("ArgMinWithValue", rename={"dim": "dimension", "keepdim": "keep_dims"}),
    "argmax": Op("ArgMaxV2", const=("dim",), drop=("keepdim",)),
    "argmin": Op("ArgMin", const=("dim",), drop=("keepdim",)),
    "var": Op("ReduceVar", rename={"keepdim": "keep_dims"}),
    "var_mean": Op("ReduceVar", rename={"keepdim": "keep_dims"}),
    "std": Op("ReduceStdV2", rename={"keepdim": "keep_dims"}),
    "std_mean": Op("ReduceStdV2", rename={"keepdim": "keep_dims"}),
    "linalg_vector_norm": Op("LpNormV2", rename={"ord": "p", "dim": "axes", "keepdim": "keepdim"}),
    "logsumexp": Op("ReduceLogSumExp", const=("dim",), rename={"keepdim": "keep_dims"}),
    "cumsum": Op("Cumsum", const=("dim",)),
    "cumprod": Op("Cumprod", const=("dim",)),
    "topk": Op("TopKV2", const=("k",)),
    "sort": Op("Sort", rename={"dim": "axis"}),
    "argsort": Op("Sort", rename={"dim": "axis"}),
    "median": "Median",
    "count_nonzero": Op("CountNonzero", const=("dim",)),
}

NORMS_AND_LOSSES: Final[dict[str, str | Op]] = {
    "_softmax": Op("SoftmaxV2", rename={"dim": "axes"}),
    "_log_softmax": Op("LogSoftmaxV2", rename={"dim": "axes"}),
    "_safe_softmax": Op("SoftmaxV2", rename={"dim": "axes"}),
    "_softmax_backward_data": Op("SoftmaxGrad", rename={"dim": "axes"}),
    "_log_softmax_backward_data": Op("LogSoftmaxGrad", rename={"dim": "axis"}),
    "native_layer_norm": Op("LayerNormV3", rename={"eps": "epsilon"}),
    "native_layer_norm_backward": "LayerNormGradV3",
    "_fused_rms_norm": Op("RmsNorm", rename={"eps": "epsilon"}),
    "_fused_rms_norm_backward": "RmsNormGrad",
    "rms_norm": Op("RmsNorm", rename={"eps": "epsilon"}),
    "native_group_norm": Op("GroupNorm", rename={"eps": "eps"}),
    "native_group_norm_backward": "GroupNormGrad",
    "native_batch_norm": Op("BatchNormV3", rename={"eps": "epsilon"}),
    "_native_batch_norm_legit": Op("BatchNormV3", rename={"eps": "epsilon"}),
    "_native_batch_norm_legit_functional": Op("BatchNormV3", rename={"eps": "epsilon"}),
    "_native_batch_norm_legit_no_training": Op("BNInferenceD", rename={"eps": "epsilon"}),
    "_batch_norm_with_update_functional": Op("BatchNormV3", rename={"eps": "epsilon"}),
    "cudnn_batch_norm": Op("BatchNormV3", rename={"epsilon": "epsilon"}),
    "native_batch_norm_backward": Op("BatchNormGradV3", rename={"eps": "epsilon"}),
    "nll_loss_forward": "NLLLoss",
    "nll_loss_backward": "NLLLossGrad",
    "nll_loss2d_forward": "NLLLoss",
    "mse_loss": "MseLoss",
    "mse_loss_backward": "MseLossGrad",
    "smooth_l1_loss": "SmoothL1LossV2",
    "smooth_l1_loss_backward": "SmoothL1LossGradV2",
    "binary_cross_entropy": "BinaryCrossEntropy",
    "binary_cross_entropy_backward": "BinaryCrossEntropyGrad",
    "binary_cross_entropy_with_logits": "SigmoidCrossEntropyWithLogitsV2",
}

_FLASH = Op("FlashAttentionScore", rename={"scale": "scale_value", "is_causal": "sparse_mode"})
_FLASH_GRAD = Op("FlashAttentionScoreGrad", rename={"scale": "scale_value", "is_causal": "sparse_mode"})

CUBE: Final[dict[str, str | Op]] = {
    "_scaled_dot_product_flash_attention_for_cpu": _FLASH,
    "_scaled_dot_product_flash_attention": _FLASH,
    "_scaled_dot_product_efficient_attention": _FLASH,
    "_scaled_dot_product_cudnn_attention": _FLASH,
    "_scaled_dot_product_fused_attention_overrideable": _FLASH,
    "scaled_dot_product_attention": _FLASH,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _FLASH_GRAD,
    "_scaled_dot_product_flash_attention_backward": _FLASH_GRAD,
    "_scaled_dot_product_efficient_attention_backward": _FLASH_GRAD,
    "_scaled_dot_product_fused_attention_overrideable_backward": _FLASH_GRAD,
    "convolution": Op("Conv2D", rename={"stride": "strides", "padding": "pads", "dilation": "dilations"}),
    "max_pool2d_with_indices": Op(
        "MaxPoolWithArgmaxV3", rename={"kernel_size": "kernel_size", "stride": "strides", "padding": "pads"}
    ),
    "max_pool2d_with_indices_backward": "MaxPoolGradWithArgmaxV3",
    "avg_pool2d": Op("AvgPoolV2", rename={"kernel_size": "ksize", "stride": "strides", "padding": "pads"}),
    "avg_pool2d_backward": "AvgPoolV2Grad",
    "_adaptive_avg_pool2d": "AdaptiveAvgPool2d",
    "_adaptive_avg_pool2d_backward": "AdaptiveAvgPool2dGrad",
    "upsample_nearest2d": "ResizeNearestNeighborV2",
    "upsample_bilinear2d": "ResizeBilinearV2",
    "_grouped_mm": "GroupedMatmul",
}

MOVES: Final[dict[str, str | Op]] = {
    "cat": Op("ConcatD", rename={"dim": "concat_dim"}),
    "stack": Op("Pack", rename={"dim": "axis"}),
    "repeat": Op("Tile", const=("repeats",)),
    "constant_pad_nd": Op("PadV3", const=("pad",)),
    "roll": Op("Roll", rename={"dims": "dims"}),
    "flip": Op("ReverseV2", const=("dims",)),
    "tril": "Tril",
    "triu": "Triu",
    "embedding": Op("GatherV2", drop=("padding_idx", "scale_grad_by_freq", "sparse")),
    "index_select": Op("GatherV2", const=("dim",)),
    "embedding_dense_backward": "EmbeddingDenseGradV2",
    "gather": Op("GatherElementsV2", rename={"dim": "dim"}, drop=("sparse_grad",)),
    "scatter": Op("ScatterElementsV2", rename={"dim": "axis"}),
    "scatter_add": Op("ScatterElementsV2", rename={"dim": "axis"}),
    "scatter_reduce": Op("ScatterElementsV2", rename={"dim": "axis"}),
    "index": "Index",
    "index_put": Op("IndexPutV2"),
    "_unsafe_index": "Index",
    "_unsafe_index_put": Op("IndexPutV2"),
    "index_add": Op("InplaceIndexAdd", rename={"dim": "axis"}),
    "index_copy": Op("ScatterUpdate", rename={"dim": "axis"}),
    "index_fill": "IndexFillD",
    "masked_select": "MaskedSelect",
    "masked_scatter": "MaskedScatter",
    "nonzero": "NonZero",
    "slice_scatter": "StridedSliceAssignV2",
    "select_scatter": "StridedSliceAssignV2",
    "diagonal_scatter": "ViewCopy",
    "as_strided_scatter": "ViewCopy",
    "select_backward": "StridedSliceGrad",
    "slice_backward": "StridedSliceGrad",
    "bucketize": "Bucketize",
    "searchsorted": "SearchSorted",
    "one_hot": "OneHot",
    "unique_dim": "UniqueWithCountsExt2",
    "arange": Op("Range", const=("start", "end", "step")),
    "linspace": "LinSpace",
    "eye": "Eye",
    "full": Op("Fill", const=("size",)),
    "full_like": "Fill",
    "fill": "Fill",
    "zeros": Op("Fill", const=("size",)),
    "ones": Op("Fill", const=("size",)),
    "zero": "ZerosLike",
    "zeros_like": "ZerosLike",
    "ones_like": "OnesLike",
    "new_zeros": Op("Fill", const=("size",)),
    "new_ones": Op("Fill", const=("size",)),
    "new_full": Op("Fill", const=("size",)),
    "scalar_tensor": "Fill",
}

RANDOM: Final[dict[str, str | Op]] = {
    "bernoulli": "StatelessBernoulli",
    "native_dropout": "DropOutDoMaskV3",
    "native_dropout_backward": "DropOutDoMaskV3",
    "rand": Op("StatelessRandomUniformV2", const=("size",)),
    "rand_like": "StatelessRandomUniformV2",
    "uniform": "StatelessRandomUniformV2",
    "randn": Op("StatelessRandomNormalV2", const=("size",)),
    "randn_like": "StatelessRandomNormalV2",
    "normal": "StatelessRandomNormalV2",
    "normal_functional": "StatelessRandomNormalV2",
    "exponential": "SimThreadExponential",
    "randint": Op("StatelessRandomUniformInt", const=("size",)),
    "randint_like": "StatelessRandomUniformInt",
    "randperm": "StatelessRandperm",
    "multinomial": "MultinomialWithReplacement",
}

OPS: Final[dict[str, str | Op]] = ELEMENTWISE | REDUCTIONS | NORMS_AND_LOSSES | CUBE | MOVES | RANDOM
"""aten operator (packet name, in-place underscore removed) -> how it is told."""

NO_KERNEL: Final = frozenset({
    "_unsafe_view", "_reshape_alias", "reshape", "unsafe_split", "unsafe_split_with_sizes", "empty", "empty_like",
    "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "sym_size", "sym_stride", "sym_numel",
    "sym_storage_offset", "_local_scalar_dense", "item", "lift_fresh", "lift", "detach", "alias", "_assert_async",
    "_assert_scalar", "_assert_tensor_metadata", "sym_constrain_range", "sym_constrain_range_for_size", "resize", "set",
    "is_same_size", "_print",
})  # fmt: skip
"""Operators that move no data on the device: views, allocations, questions about sizes, and what the host does."""

TARGET_TYPES: Final = frozenset({
    "MatMulV2", "MatMulV3", "BatchMatMulV2", "BatchMatMulV3", "MatMul", "BatchMatMul", "Conv2D", "Conv2DBackpropInput",
    "Conv2DBackpropFilter", "Conv3D", "Conv3DV2", "FlashAttentionScore", "FlashAttentionScoreGrad", "FusedInferAttentionScore",
    "GroupedMatmul", "QuantBatchMatmulV3", "WeightQuantBatchMatmulV2", "TransposeBatchMatMul", "SoftmaxV2", "LayerNormV3",
    "RmsNorm",
})  # fmt: skip
"""About twenty op types that a dump's first folder is limited to; the exact list is CANN's own and undocumented."""

_REDUCED: Final = frozenset(
    {"ReduceSum", "ReduceMin", "ReduceMax", "ArgMinWithValue", "ArgMaxWithValue", "FusedInferAttentionScore"}
)
_MOE: Final = frozenset({"MoeDistributeCombine", "MoeDistributeCombineV2", "MoeDistributeDispatch", "MoeDistributeDispatchV2"})


def not_compilable(cann_version: str) -> frozenset[str]:
    """The op types that a CANN version keeps out of static compilation (docs/cann.md, "The dump"); unknown: the newest list."""
    if cann_version.startswith("8."):
        return _REDUCED | _MOE | {"GatherV2", "GatherV3"}
    if cann_version.startswith("9.0"):
        return _REDUCED | {"GatherV2", "GatherV3", "Range"}
    return _REDUCED | {"GatherV2", "Range"}
