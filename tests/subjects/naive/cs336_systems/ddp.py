import torch
import torch.distributed as dist


class DDPIndividual(torch.nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module, self.handles = module, []
        for parameter in module.parameters():
            dist.broadcast(parameter.data, src=0)
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self.send)

    def send(self, parameter):
        parameter.grad.div_(dist.get_world_size())
        self.handles.append(dist.all_reduce(parameter.grad, async_op=True))

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def finish_gradient_synchronization(self):
        for handle in self.handles:
            handle.wait()
        self.handles.clear()
