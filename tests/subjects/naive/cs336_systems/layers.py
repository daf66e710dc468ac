import torch


class Linear(torch.nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(d_out, d_in) / d_in**0.5)

    def forward(self, x):
        return x @ self.weight.T


class Embedding(torch.nn.Module):
    def __init__(self, words, d_model):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(words, d_model))

    def forward(self, ids):
        return self.weight[ids]
