"""Packs a built ``Decoder`` for the kernel: every weight once, releasing PyTorch's copy.

Owns the packed weights and the C description of the model. Knows no steps.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from quire.engine.cpu.abi import PackedMatrixView
from quire.engine.cpu.model_spec import ExpertsSpec, LayerSpec, ModelSpec, RopeSpec
from quire.engine.cpu.native_pool import NativeKVPool
from quire.engine.cpu.packed_adapters import PackedAdapters
from quire.engine.cpu.packed_matrix import Epilogue, Ordering, PackedMatrix, WeightType
from quire.engine.cpu.team import Team
from quire.engine.layers.experts import Experts
from quire.engine.layers.linear import Linear
from quire.engine.layers.mlp import Activation, GatedMLP
from quire.engine.layers.norm import RMSNorm
from quire.engine.models.decoder import Decoder, DecoderLayer

_ACTIVATIONS: dict[Activation, Epilogue] = {
    "silu": Epilogue.SILU_MUL,
    "gelu_tanh": Epilogue.GELU_TANH_MUL,
    "clamped_swiglu": Epilogue.CLAMPED_SWIGLU,
}
_QK_NORMS = {None: 0, "head": 1, "whole": 2}


class PackedDecoder:
    """The weights of one model for the kernel. ``spec`` is valid as long as this object lives.

    The weights of ``decoder`` become empty tensors, so that only one copy is in memory.
    """

    def __init__(
        self,
        decoder: Decoder,
        team: Team,
        pool: NativeKVPool,
        weight_type: WeightType,
        ordering: Ordering,
        num_adapters: int = 0,
    ) -> None:
        self._team = team
        self._num_adapters = num_adapters
        self.weight_type = weight_type
        self._kept: list[Any] = []
        config = decoder.config
        layers = [
            self._layer(layer, keys, values, config.residual_multiplier)
            for layer, (keys, values) in zip(decoder.layers, pool.layers, strict=True)
        ]
        ropes = [
            RopeSpec(
                self._floats(rope.frequencies_F),
                len(rope.frequencies_F),
                rope.query_length,
                rope.scale,
                rope.query_beta,
            )
            for rope in decoder.ropes
        ]
        embedding_VH = decoder.embedding_VH
        output = self._pack(decoder.output_VH)
        is_tied = decoder.output_VH is embedding_VH
        attention, mlp = config.attention, config.mlp or config.experts
        assert mlp is not None
        self.spec = ModelSpec(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            num_layers=len(layers),
            num_ropes=len(ropes),
            num_heads=attention.num_heads,
            num_kv_heads=attention.num_kv_heads,
            head_dim=attention.head_dim,
            page_size=pool.page_size,
            layers=(LayerSpec * len(layers))(*layers),
            ropes=(RopeSpec * len(ropes))(*ropes),
            final_norm=self._norm(decoder.norm),
            embedding=None if is_tied else self._keep(embedding_VH.contiguous()).data_ptr(),
            output=output,
            slot_positions=pool.positions_AS.ctypes.data,
            embedding_type=int(embedding_VH.dtype == torch.bfloat16),
            kv_type=pool.kv_type,
            qk_norm=_QK_NORMS[attention.qk_norm],
            activation=_ACTIVATIONS[mlp.activation],
            ordering=ordering,
            norm_eps=config.norm.eps,
            attention_scale=attention.scale,
            attention_softcap=attention.softcap or 0.0,
            embedding_multiplier=config.embedding_multiplier,
            residual_multiplier=config.residual_multiplier,
            logit_multiplier=config.logit_multiplier,
            logit_softcap=config.logit_softcap or 0.0,
        )
        decoder.output_VH = torch.empty(0)
        decoder.embedding_VH = torch.empty(0)

    def _layer(
        self, layer: DecoderLayer, keys: Tensor, values: Tensor, residual_multiplier: float
    ) -> LayerSpec:
        attention = layer.attention
        spec = LayerSpec(
            qkv_adapters=self._adapters(attention.qkv),
            output_adapters=self._adapters(attention.output),
            keys=keys.data_ptr(),
            values=values.data_ptr(),
            window=attention.attributes.window or 0,
            rope=attention.rope,
            attention_norm=self._norm(layer.attention_norm),
            attention_output_norm=self._norm(layer.attention_output_norm),
            mlp_norm=self._norm(layer.mlp_norm),
            mlp_output_norm=self._norm(layer.mlp_output_norm),
            sinks=self._floats(attention.attributes.sinks_N),
        )
        spec.qkv, spec.qkv_bias = self._linear(attention.qkv)
        # The residual multiplier scales the product, so a bias gets it here, unless a norm follows.
        scale = 1.0 if layer.attention_output_norm else residual_multiplier
        spec.output, spec.output_bias = self._linear(attention.output, scale)
        if attention.qk_norm is not None:
            spec.query_norm = self._floats(attention.qk_norm.query_weight)
            spec.key_norm = self._floats(attention.qk_norm.key_weight)
        if isinstance(layer.mlp, Experts):
            spec.experts = ctypes.addressof(self._keep(self._experts(layer.mlp)))
        else:
            self._gated_mlp(spec, layer.mlp, 1.0 if layer.mlp_output_norm else residual_multiplier)
        return spec

    def _gated_mlp(self, spec: LayerSpec, mlp: GatedMLP, bias_scale: float) -> None:
        spec.gate_up_adapters = self._adapters(mlp.gate_up, gated=True)
        spec.down_adapters = self._adapters(mlp.down)
        gate_OI, up_OI = mlp.gate_up.weight_OI.chunk(2)
        bias_O = mlp.gate_up.bias_O
        matrix = self._packed(gate_OI, up_OI)
        spec.gate_up = matrix.view
        if bias_O is not None:
            gate_O, up_O = bias_O.chunk(2)
            spec.gate_up_bias = self._keep(matrix.pack_bias(gate_O, up_O)).data_ptr()
        mlp.gate_up.weight_OI = torch.empty(0)
        spec.down, spec.down_bias = self._linear(mlp.down, bias_scale)

    def _experts(self, experts: Experts) -> ExpertsSpec:
        config = experts.config
        gate_up = [self._packed(*pair.chunk(2)) for pair in experts.gate_up_EOI]
        down = [self._packed(one) for one in experts.down_EOI]
        spec = ExpertsSpec(
            num_experts=config.num_experts,
            top_k=config.top_k,
            gate_up=self._views(gate_up),
            down=self._views(down),
            chosen_scoring=int(config.scoring == "chosen"),
            normalize=int(config.normalize),
        )
        # the choice of experts is sensitive to small differences, so the router keeps float32
        spec.router, spec.router_bias = self._linear(experts.router, weight_type=WeightType.F32)
        if experts.gate_up_bias_EO is not None and experts.down_bias_EO is not None:
            spec.gate_up_bias = self._pointers(
                [
                    matrix.pack_bias(*bias_O.chunk(2))
                    for matrix, bias_O in zip(gate_up, experts.gate_up_bias_EO, strict=True)
                ]
            )
            spec.down_bias = self._pointers(
                [
                    matrix.pack_bias(bias_O)
                    for matrix, bias_O in zip(down, experts.down_bias_EO, strict=True)
                ]
            )
        experts.gate_up_EOI = experts.down_EOI = torch.empty(0)
        return spec

    def _linear(
        self, linear: Linear, bias_scale: float = 1.0, weight_type: WeightType | None = None
    ) -> tuple[PackedMatrixView, int | None]:
        """The packed matrix and its bias, times ``bias_scale``; releases the PyTorch weight."""
        matrix = self._packed(linear.weight_OI, weight_type=weight_type)
        linear.weight_OI = torch.empty(0)
        if linear.bias_O is None:
            return matrix.view, None
        bias = matrix.pack_bias(linear.bias_O.float() * bias_scale)
        return matrix.view, self._keep(bias).data_ptr()

    def _adapters(self, linear: Linear, *, gated: bool = False) -> int | None:
        """The address of the adapters' pairs at ``linear``; None if no adapter modifies it."""
        if linear.delta is None:
            return None
        kind = WeightType.BF16 if self.weight_type is WeightType.INT8 else self.weight_type
        packed = PackedAdapters(linear, self._num_adapters, self._team, kind, gated=gated)
        return ctypes.addressof(self._keep(packed).pairs)

    def _pack(self, weight_NK: Tensor) -> PackedMatrixView:
        return self._packed(weight_NK).view

    def _packed(
        self, weight_NK: Tensor, up_NK: Tensor | None = None, weight_type: WeightType | None = None
    ) -> PackedMatrix:
        kind = self.weight_type if weight_type is None else weight_type
        matrix: PackedMatrix = self._keep(PackedMatrix(self._team, weight_NK, kind, up_NK))
        return matrix

    def _norm(self, norm: RMSNorm | None) -> int | None:
        return None if norm is None else self._floats(norm.weight_H)

    def _floats(self, tensor: Tensor | None) -> int | None:
        """Address of a float32 copy."""
        if tensor is None:
            return None
        address: int = self._keep(tensor.detach().to(torch.float32).contiguous().clone()).data_ptr()
        return address

    def _views(self, matrices: Sequence[PackedMatrix]) -> int:
        return ctypes.addressof(
            self._keep((PackedMatrixView * len(matrices))(*(one.view for one in matrices)))
        )

    def _pointers(self, tensors: Sequence[Tensor]) -> int:
        self._kept += tensors
        return ctypes.addressof(
            self._keep((ctypes.c_void_p * len(tensors))(*(one.data_ptr() for one in tensors)))
        )

    def _keep(self, what: Any) -> Any:
        self._kept.append(what)
        return what
