import torch
import torch.distributed as dist
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors


class DDPBucketed(torch.nn.Module):
    def __init__(self, module, bucket_size_mb):
        super().__init__()
        self.module, self.under_way = module, []
        self.buckets, self.place, size = [[]], {}, 0
        for parameter in reversed(list(module.parameters())):
            dist.broadcast(parameter.data, src=0)
            if not parameter.requires_grad:
                continue
            if self.buckets[-1] and size + parameter.nbytes > bucket_size_mb * 1e6:
                self.buckets.append([])
                size = 0
            self.buckets[-1].append(parameter)
            self.place[parameter] = len(self.buckets) - 1
            size += parameter.nbytes
            parameter.register_post_accumulate_grad_hook(self.ready)
        self.waiting = [len(bucket) for bucket in self.buckets]

    def ready(self, parameter):
        self.waiting[self.place[parameter]] -= 1
        if not self.waiting[self.place[parameter]]:
            self.send(self.buckets[self.place[parameter]])

    def send(self, bucket):
        flat = _flatten_dense_tensors([parameter.grad for parameter in bucket]) / dist.get_world_size()
        self.under_way.append((dist.all_reduce(flat, async_op=True), flat, bucket))

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def finish_gradient_synchronization(self):
        for handle, flat, bucket in self.under_way:
            handle.wait()
            gradients = [parameter.grad for parameter in bucket]
            for gradient, average in zip(gradients, _unflatten_dense_tensors(flat, gradients)):
                gradient.copy_(average)
        self.under_way.clear()
        self.waiting = [len(bucket) for bucket in self.buckets]
