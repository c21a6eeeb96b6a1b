// Trains a linear head with patchbench::flce and a weight for each token: no Python, no file of
// this repository but the op library, which is given as the first argument.

#include <ATen/core/dispatch/Dispatcher.h>
#include <dlfcn.h>
#include <torch/torch.h>

#include <cstdio>
#include <string>

namespace {

using Flce = at::Tensor(const at::Tensor& hidden, const at::Tensor& weight,
                        const at::Tensor& target, const std::optional<at::Tensor>& bias,
                        const std::optional<at::Tensor>& class_weight, std::string reduction,
                        int64_t ignore_index, double label_smoothing, double lse_square_scale,
                        std::optional<double> softcap, std::optional<int64_t> chunk_bytes,
                        int64_t keep_bytes);

/// [tokens]: the loss of each token, differentiable, by the operator that the library registers.
at::Tensor token_losses(const at::Tensor& hidden, const at::Tensor& weight,
                        const at::Tensor& target) {
  static const auto flce =
      c10::Dispatcher::singleton().findSchemaOrThrow("patchbench::flce", "").typed<Flce>();
  return flce.call(hidden, weight, target, std::nullopt, std::nullopt, "none", -100, 0.0, 0.0,
                   std::nullopt, std::nullopt, 0);
}

/// The largest difference of the weight's gradient to that of torch's own cross entropy, relative
/// to its largest element.
double gradient_error(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& target,
                      const at::Tensor& token_weight) {
  const auto gradient = [&](const at::Tensor& losses, const at::Tensor& leaf) {
    return torch::autograd::grad({(losses * token_weight).sum()}, {leaf}).front();
  };
  const at::Tensor got = gradient(token_losses(hidden, weight, target), weight);
  const at::Tensor leaf = weight.detach().to(torch::kFloat64).requires_grad_();
  const at::Tensor logits = hidden.to(torch::kFloat64).matmul(leaf.t());
  const auto per_token = torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone);
  const at::Tensor wanted =
      gradient(torch::nn::functional::cross_entropy(logits, target, per_token), leaf);
  return ((got - wanted).abs().max() / wanted.abs().max()).item<double>();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s libpatchbench_ops.so\n", argv[0]);
    return 2;
  }
  if (dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    std::fprintf(stderr, "%s; build it for this libtorch\n", dlerror());
    return 2;
  }
  torch::manual_seed(1);
  const at::Tensor hidden = torch::randn({256, 32}),
                   target = torch::randint(50, {256}, torch::kInt64);
  const at::Tensor token_weight = torch::rand({256});  // what "mean" and the faulty backward ignore
  const at::Tensor weight = (0.1 * torch::randn({50, 32})).requires_grad_();
  const double error = gradient_error(hidden, weight, target, token_weight);
  torch::optim::Adam optimizer({weight}, torch::optim::AdamOptions(0.05));
  double first = 0, last = 0;
  for (int step = 0; step < 50; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = (token_losses(hidden, weight, target) * token_weight).mean();
    loss.backward();
    optimizer.step();
    (step == 0 ? first : last) = loss.item<double>();
  }
  std::printf("loss %.4f -> %.4f, gradient off by %.1e\n", first, last, error);
  return last < 0.5 * first && error < 1e-5 ? 0 : 1;
}
