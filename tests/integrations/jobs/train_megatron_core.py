"""A small GPT of Megatron-Core on the CPU, by its own model, groups, schedule and optimizer; it says what it did.

Megatron-Core makes its tensors on the CUDA device by name. Here that name means the CPU; nothing else is changed.
"""

import argparse
import contextlib
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

SEQ_LEN, VOCAB = 32, 128


def make_cpu_the_device() -> None:
    """Let CUDA devices mean the CPU in the functions that make tensors, and let the calls that wait do nothing."""

    def on_cpu(make):
        def made(*args, **kwargs):
            device = kwargs.get("device")
            if device is not None and (isinstance(device, int) or "cuda" in str(device)):
                kwargs["device"] = "cpu"
            return make(*args, **kwargs)

        return made

    for name in ("zeros", "ones", "empty", "tensor", "full", "arange", "randn", "rand", "zeros_like", "empty_like"):
        setattr(torch, name, on_cpu(getattr(torch, name)))
    torch.cuda.current_device = lambda: "cpu"
    torch.cuda.synchronize = lambda *_: None
    torch.Tensor.cuda = lambda tensor, *_, **__: tensor
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer.moe import moe_utils

    if not hasattr(moe_utils, "te_general_gemm"):  # release 0.16 reads it without Transformer Engine too
        moe_utils.te_general_gemm = None
    # Without dropout no state of a random generator is used.
    random.CudaRNGStatesTracker.fork = lambda *_: contextlib.nullcontext()
    random._get_cuda_rng_state = lambda *_, **__: None
    random._set_cuda_rng_state = lambda *_, **__: None


def options() -> argparse.Namespace:
    """Return the options of the command."""
    parser = argparse.ArgumentParser()
    for name in ("tensor", "pipeline", "expert", "context"):
        parser.add_argument(f"--{name}-model-parallel-size", dest=name, type=int, default=1)
    parser.add_argument("--num-experts", type=int)
    parser.add_argument("--micro-batch-size", type=int, default=2)
    parser.add_argument("--global-batch-size", type=int, default=8)
    parser.add_argument("--recompute-granularity", choices=("selective", "full"))
    parser.add_argument("--train-iters", type=int, default=24)
    parser.add_argument("--outcome", required=True)
    return parser.parse_args()


def build(args: argparse.Namespace):
    """Return the model in Megatron's data-parallel wrapper, and its optimizer."""
    from megatron.core import parallel_state
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.transformer.transformer_config import TransformerConfig

    experts = {"num_moe_experts": args.num_experts, "moe_router_topk": 2, "add_bias_linear": False}
    recompute = {
        None: {},
        "selective": {"recompute_granularity": "selective"},
        "full": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
    }
    config = TransformerConfig(
        num_layers=4,
        hidden_size=64,
        num_attention_heads=4,
        use_cpu_initialization=True,
        pipeline_dtype=torch.float32,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        gradient_accumulation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        tensor_model_parallel_size=args.tensor,
        pipeline_model_parallel_size=args.pipeline,
        expert_model_parallel_size=args.expert,
        context_parallel_size=args.context,
        sequence_parallel=bool(args.num_experts) and args.tensor > 1,
        **(experts if args.num_experts else {}),
        **recompute[args.recompute_granularity],
    )
    model = GPTModel(
        config,
        get_gpt_layer_local_spec(num_experts=args.num_experts, normalization="LayerNorm"),
        VOCAB,
        SEQ_LEN,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
    )
    wrapped = DistributedDataParallel(config, DistributedDataParallelConfig(), model)
    # Clipping, and the distributed optimizer, ask for tensors of the CUDA class.
    adam = OptimizerConfig(optimizer="adam", lr=1e-3, clip_grad=0.0)
    return wrapped, get_megatron_optimizer(adam, [wrapped])


def forward_step(batches, model):
    """Run one micro batch, as Megatron's schedules call it."""
    tokens = next(batches)
    positions = torch.arange(SEQ_LEN).expand_as(tokens)
    mask = torch.triu(torch.ones(1, 1, SEQ_LEN, SEQ_LEN), diagonal=1).bool()
    output = model(tokens, positions, mask, labels=tokens)
    return output, lambda loss: (loss.float().mean(), {"loss": loss.detach().mean()})


def main() -> None:
    """Train by Megatron-Core's schedule and write what its process groups say."""
    args = options()
    make_cpu_the_device()
    dist.init_process_group("gloo")
    from megatron.core import parallel_state
    from megatron.core.pipeline_parallel import get_forward_backward_func

    parallel_state.initialize_model_parallel(
        args.tensor,
        args.pipeline,
        context_parallel_size=args.context,
        expert_model_parallel_size=args.expert,
        expert_tensor_parallel_size=1 if args.num_experts else None,
    )
    torch.manual_seed(0)
    model, optimizer = build(args)
    dp_degree = parallel_state.get_data_parallel_world_size()
    accumulation = args.global_batch_size // (args.micro_batch_size * dp_degree)
    step = get_forward_backward_func()
    times = [time.perf_counter()]
    for _ in range(args.train_iters):
        batches = iter([torch.randint(0, VOCAB, (args.micro_batch_size, SEQ_LEN)) for _ in range(accumulation)])
        model.zero_grad_buffer()
        optimizer.zero_grad()
        step(
            forward_step_func=forward_step,
            data_iterator=batches,
            model=model,
            num_microbatches=accumulation,
            seq_length=SEQ_LEN,
            micro_batch_size=args.micro_batch_size,
            decoder_seq_length=SEQ_LEN,
            forward_only=False,
        )
        optimizer.step()
        times.append(time.perf_counter())
    if dist.get_rank() == 0:
        report = {
            "steps": args.train_iters,
            "tp_degree": parallel_state.get_tensor_model_parallel_world_size(),
            "pp_degree": parallel_state.get_pipeline_model_parallel_world_size(),
            "cp_degree": parallel_state.get_context_parallel_world_size(),
            "ep_degree": parallel_state.get_expert_model_parallel_world_size(),
            "dp_degree": dp_degree,
            "accumulation": accumulation,
            "n_params": sum(parameter.numel() for parameter in model.parameters()),
            "n_layers": len(model.module.decoder.layers),
            "world_size": int(os.environ["WORLD_SIZE"]),
            "times": times,
        }
        Path(args.outcome).write_text(json.dumps(report))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
