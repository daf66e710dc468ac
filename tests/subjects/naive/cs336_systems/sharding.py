import torch
import torch.distributed as dist


class ShardedOptimizer(torch.optim.Optimizer):
    def __init__(self, params, optimizer_cls, **kwargs):
        self.optimizer_cls, self.kwargs, self.optimizer, self.owners = optimizer_cls, kwargs, None, {}
        super().__init__(params, kwargs)

    def add_param_group(self, param_group):
        super().add_param_group(param_group)
        for parameter in self.param_groups[-1]["params"]:
            self.owners[parameter] = len(self.owners) % dist.get_world_size()
        mine = [parameter for parameter in param_group["params"] if self.owners[parameter] == dist.get_rank()]
        if self.optimizer is None:
            self.optimizer = self.optimizer_cls(mine, **self.kwargs)
        else:
            self.optimizer.add_param_group({**param_group, "params": mine})

    def step(self, closure=None):
        self.optimizer.step()
        for parameter, owner in self.owners.items():
            dist.broadcast(parameter.data, src=owner)
