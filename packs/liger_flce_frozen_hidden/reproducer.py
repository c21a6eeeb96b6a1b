import torch
from liger_kernel.transformers.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyLoss

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
head = torch.nn.Linear(32, 200, bias=False, device=device)
hidden = torch.randn(64, 32, device=device)  # of a frozen model: requires_grad is False
target = torch.randint(0, 200, (64,), device=device)

ours = LigerFusedLinearCrossEntropyLoss()(head.weight, hidden, target)
for name, loss in (("liger", ours), ("torch", torch.nn.functional.cross_entropy(head(hidden), target))):
    head.weight.grad = None
    loss.backward()
    norm = None if head.weight.grad is None else round(head.weight.grad.norm().item(), 4)
    print(f"{name}: loss {loss.item():.4f}, norm of head.weight.grad {norm}")
