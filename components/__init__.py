"""TorchX components."""
