from __future__ import annotations

from .common import bucketed_class


def get_flashattention_autograd_function_pytorch():
    from cs336_systems.flash import FlashAttention

    return FlashAttention


def get_flashattention_autograd_function_triton():
    raise NotImplementedError


def get_ddp_individual_parameters(module):
    from cs336_systems.ddp import DDPIndividual

    return DDPIndividual(module)


def ddp_individual_parameters_on_after_backward(ddp_model, optimizer):
    ddp_model.finish_gradient_synchronization()


def get_ddp_bucketed(module, bucket_size_mb):
    return bucketed_class()(module, bucket_size_mb)


def ddp_bucketed_on_after_backward(ddp_model, optimizer):
    ddp_model.finish_gradient_synchronization()


def ddp_bucketed_on_train_batch_start(ddp_model, optimizer):
    raise NotImplementedError


def get_sharded_optimizer(params, optimizer_cls, **kwargs):
    from cs336_systems.sharding import ShardedOptimizer

    return ShardedOptimizer(params, optimizer_cls, **kwargs)


def get_fsdp(module, compute_dtype=None):
    from cs336_systems.fsdp import FSDP

    return FSDP(module, compute_dtype)


def fsdp_on_after_backward(fsdp_model, optimizer):
    fsdp_model.finish_gradient_synchronization()


def fsdp_gather_full_params(fsdp_model):
    return fsdp_model.gather_full_params()
