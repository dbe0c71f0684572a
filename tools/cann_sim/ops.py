"""Which op types the simulated CANN implements, and with which files: several share a tiling library or a header."""

from __future__ import annotations

from typing import NamedTuple


class Group(NamedTuple):
    """Ops that share a tiling library and a header."""

    library: str
    header: str
    ops: tuple[str, ...]


BUILT_IN = (
    Group(
        "liboptiling_cube.so",
        "cube_tiling.h",
        (
            *(
                "MatMulV2",
                "MatMulV3",
                "MatMul",
                "BatchMatMulV2",
                "BatchMatMulV3",
                "BatchMatMul",
                "TransposeBatchMatMul",
                "GemmV2",
            ),
            *("GroupedMatmul", "QuantBatchMatmulV3", "WeightQuantBatchMatmulV2", "Conv2D", "Conv2DBackpropFilter"),
            *("Conv2DBackpropInput", "Conv3D", "Conv3DV2"),
        ),
    ),
    Group(
        "liboptiling_transformer.so",
        "cube_tiling.h",
        (
            *("FlashAttentionScore", "FlashAttentionScoreGrad", "FusedInferAttentionScore", "IncreFlashAttention"),
            *("PromptFlashAttention", "RotaryPositionEmbedding", "ApplyRotaryPosEmb", "MoeDistributeCombine"),
            *("MoeDistributeCombineV2", "MoeDistributeDispatch", "MoeDistributeDispatchV2", "MoeGatingTopKSoftmax"),
        ),
    ),
    Group(
        "liboptiling_elementwise.so",
        "elementwise.h",
        (
            *("Add", "AddV2", "Sub", "Mul", "Div", "RealDiv", "Adds", "Muls", "Axpy", "Addcmul", "Addcdiv", "Neg", "Abs", "Sign"),
            *("Exp", "Expm1", "Log", "Log1p", "Cos", "Sin", "Tan", "Erf", "Pow", "Square", "Sqrt", "Rsqrt", "Reciprocal"),
            *(
                "Floor",
                "Ceil",
                "Invert",
                "Round",
                "FloorDiv",
                "FloorMod",
                "Maximum",
                "Minimum",
                "ClipByValue",
                "ClipByValueV2",
                "Lerp",
            ),
            *(
                "Sigmoid",
                "SigmoidGrad",
                "Tanh",
                "TanhGrad",
                "Relu",
                "ReluGrad",
                "LeakyRelu",
                "Gelu",
                "GeluGrad",
                "GeluV2",
                "Swish",
            ),
            *("SwishGrad", "SwiGlu", "SwiGluGrad", "Silu", "SiluGrad", "Softplus", "SoftplusV2", "SoftplusV2Grad", "Cast"),
            *(
                "ThresholdGradV2D",
                "Elu",
                "EluGradV2",
                "Glu",
                "GLUGrad",
                "GeluGradV2",
                "HardSwish",
                "HardSwishGrad",
                "HardtanhGrad",
            ),
            *("LeakyReluGrad", "PRelu", "Hypot", "Atan2", "Mod", "LeftShift", "RightShift", "Trunc"),
        ),
    ),
    Group(
        "liboptiling_compare.so",
        "elementwise.h",
        (
            *("Less", "LessEqual", "Greater", "GreaterEqual", "Equal", "NotEqual", "LogicalAnd", "LogicalOr", "LogicalNot"),
            *("LogicalXor", "BitwiseAnd", "BitwiseOr", "BitwiseNot", "BitwiseXor", "IsNan", "IsInf", "IsFinite"),
            *("Select", "SelectV2", "MaskedFill", "Where"),
        ),
    ),
    Group(
        "liboptiling_reduce.so",
        "reduce.h",
        (
            *("ReduceMean", "ReduceMeanD", "ReduceSum", "ReduceSumD", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceAll"),
            *("ReduceAny", "ReduceStdV2", "ArgMaxV2", "ArgMin", "ArgMaxWithValue", "ArgMinWithValue", "Cumsum", "TopKV2", "Sort"),
            *("RmsNorm", "RmsNormGrad", "LayerNormV4", "LayerNormV3", "LayerNormGradV3", "LpNormV2", "SoftmaxV2", "SoftmaxGrad"),
            *("LogSoftmaxV2", "LogSoftmaxGrad", "NLLLoss", "NLLLossGrad", "SquareSumV1", "BiasAddGrad", "Cumprod", "Median"),
            *("CountNonzero", "ReduceLogSumExp", "ReduceVar", "GroupNorm", "GroupNormGrad", "BNInferenceD", "BatchNormV3"),
            *("BatchNormGradV3", "MseLoss", "MseLossGrad", "SmoothL1LossV2", "SmoothL1LossGradV2", "BinaryCrossEntropy"),
            *("BinaryCrossEntropyGrad", "SigmoidCrossEntropyWithLogitsV2", "AvgPoolV2", "AvgPoolV2Grad", "AdaptiveAvgPool2d"),
            *("AdaptiveAvgPool2dGrad", "MaxPoolWithArgmaxV3", "MaxPoolGradWithArgmaxV3"),
        ),
    ),
    Group(
        "liboptiling_move.so",
        "data_copy.h",
        (
            *("Transpose", "TransposeD", "TransData", "ViewCopy", "TensorMove", "Identity", "AsStrided", "Slice", "SliceV2"),
            *("StridedSlice", "StridedSliceV3", "StridedSliceD", "ConcatD", "ConcatV2", "Concat", "SplitD", "SplitV", "Split"),
            *(
                "SplitVD",
                "Pack",
                "Unpack",
                "ZerosLike",
                "OnesLike",
                "Zero",
                "Fill",
                "FillD",
                "Fills",
                "BroadcastTo",
                "BroadcastToD",
            ),
            *(
                "Expand",
                "ExpandDims",
                "Tile",
                "TileD",
                "Repeat",
                "RepeatInterleave",
                "Flip",
                "Roll",
                "PadV3",
                "Pad",
                "Tril",
                "Triu",
            ),
            *("ReverseV2", "Range", "LinSpace", "Eye", "OneHot", "OneHotV2", "StridedSliceGrad", "ResizeBilinearV2"),
            "ResizeNearestNeighborV2",
        ),
    ),
    Group(
        "liboptiling_index.so",
        "data_copy.h",
        (
            *("GatherV2", "GatherV3", "GatherElements", "GatherElementsV2", "GatherNd", "Index", "IndexPutV2", "IndexAdd"),
            *(
                "InplaceIndexAdd",
                "IndexSelect",
                "Scatter",
                "ScatterUpdate",
                "ScatterElements",
                "ScatterElementsV2",
                "ScatterNdUpdate",
            ),
            *("ScatterAdd", "ScatterNdAdd", "InplaceUpdate", "InplaceScatterAdd", "EmbeddingDenseGrad", "EmbeddingDenseGradV2"),
            *("MaskedSelect", "MaskedScatter", "NonZero", "StridedSliceAssignV2", "IndexFillD", "Bucketize", "SearchSorted"),
            "UniqueWithCountsExt2",
        ),
    ),
    Group(
        "liboptiling_optim.so",
        "elementwise.h",
        ("ApplyAdam", "ApplyAdamW", "ApplyAdamWV2", "ApplyAdamD", "ApplyMomentum", "SGD", "ForeachAddList", "ForeachMulScalar"),
    ),
    Group(
        "liboptiling_random.so",
        "data_copy.h",
        (
            *("DropOutDoMask", "DropOutDoMaskV3", "DropOutGenMaskV4", "StatelessRandomUniformV2", "StatelessRandomNormalV2"),
            *("StatelessRandomUniformInt", "StatelessRandperm", "StatelessBernoulli", "SimThreadExponential"),
            "MultinomialWithReplacement",
        ),
    ),
)

VENDOR_NAME = "acme"
VENDOR = (
    Group("libcust_opmaster_rt2.0.so", "acme_pipe.h", ("AcmeRotaryEmbedding", "AcmeFusedQkv", "AcmeQuantMatmul", "GeluV2")),
)
"""A vendor package: adds ops of its own, and takes one (GeluV2) over from the built-in ones."""

FAMILIES = ("ascend910b", "ascend910_93")
"""Every home has the ops of these families, and of its own SoC's."""


def file_name(op_type: str) -> str:
    """The implementation file's stem: ``MatMulV2`` -> ``mat_mul_v2``."""
    out = []
    for at, char in enumerate(op_type):
        starts_word = char.isupper() and at > 0 and (not op_type[at - 1].isupper() or op_type[at + 1 : at + 2].islower())
        out.append(("_" if starts_word else "") + char.lower())
    return "".join(out)


def op_types() -> tuple[str, ...]:
    """Every op type that some root implements."""
    return tuple(sorted({op for group in (*BUILT_IN, *VENDOR) for op in group.ops}))
