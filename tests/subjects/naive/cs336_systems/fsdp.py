import torch
import torch.distributed as dist

from cs336_systems.layers import Embedding, Linear


class FSDP(torch.nn.Module):
    def __init__(self, module, compute_dtype=None):
        super().__init__()
        self.module, self.dtype, self.shapes = module, compute_dtype or torch.float32, {}
        for layer in module.modules():
            if isinstance(layer, (Linear, Embedding)):
                self.shapes[layer.weight] = layer.weight.shape
                layer.weight.data = self.part(layer.weight.data)
                layer.register_forward_pre_hook(lambda layer, _: self.gather(layer))
                layer.register_forward_hook(lambda layer, *_: self.free(layer))
                layer.register_full_backward_pre_hook(lambda layer, _: self.gather(layer))
                layer.weight.register_post_accumulate_grad_hook(self.scatter)
        self.replicated = [p for p in module.parameters() if p not in self.shapes]
        self.shards = {}

    def part(self, full):
        flat = torch.nn.functional.pad(full.flatten(), (0, -full.numel() % dist.get_world_size()))
        return flat.chunk(dist.get_world_size())[dist.get_rank()].clone()

    def full(self, weight, shard):
        parts = [torch.empty_like(shard) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, shard)
        shape = self.shapes[weight]
        return torch.cat(parts)[: shape.numel()].view(shape)

    def gather(self, layer):
        if layer.weight not in self.shards:
            self.shards[layer.weight] = layer.weight.data
        layer.weight.data = self.full(layer.weight, self.shards[layer.weight].to(self.dtype))

    def free(self, layer):
        layer.weight.data = self.shards.pop(layer.weight)

    def scatter(self, weight):
        gradient = weight.grad.float()
        if weight in self.shards:
            weight.data = self.shards.pop(weight)
        dist.all_reduce(gradient)
        weight.grad = self.part(gradient) / dist.get_world_size()

    def forward(self, *args):
        return self.module(*args)

    def finish_gradient_synchronization(self):
        for parameter in self.replicated:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()

    def gather_full_params(self):
        named = self.module.named_parameters()
        return {name: self.full(p, p.data) if p in self.shapes else p.data for name, p in named}
