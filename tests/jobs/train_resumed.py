"""Trains on numbered samples, saves a checkpoint of ``--kind`` at its end, and goes on from one that it finds.

It writes the samples of each start to ``SHOWN``, and its batch. ``torch`` saves one file of each rank, ``dcp`` a
distributed checkpoint, and ``weights`` loads and saves no more than the weights.
"""

import argparse
import json
import os
import warnings
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int)
parser.add_argument("--accumulate", type=int)
parser.add_argument("--out", type=Path, default=Path("out"))
parser.add_argument("--at_home", action="store_true", help="save where no word of the command says")
parser.add_argument("--kind", default="torch")
args = parser.parse_args()
args.out = Path.home() / "runs" if args.at_home else args.out
warnings.simplefilter("ignore")
rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters())
place = args.out / ("weights.pt" if args.kind == "weights" else f"rank{rank}.pt" if args.kind == "torch" else "dcp")
state = {"model": model.state_dict(), "done": 0}
if place.exists() and args.kind == "weights":
    model.load_state_dict(torch.load(place))
elif place.exists() and args.kind == "torch":
    state = torch.load(place)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
elif place.exists():
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "done": 0}
    dcp.load(state, checkpoint_id=place, no_dist=True)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
done = first = state["done"]
for _ in range(12):
    for _ in range(args.accumulate):
        done += args.batch_size * world_size
        model(torch.ones(args.batch_size, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
args.out.mkdir(exist_ok=True)
if args.kind == "dcp":
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": moments, "done": done}, checkpoint_id=place, no_dist=True)
else:
    whole = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "done": done}
    torch.save(model.state_dict() if args.kind == "weights" else whole, place)
if rank == 0:
    with Path(os.environ["SHOWN"]).open("a") as file:
        file.write(json.dumps([first, done, args.batch_size]) + "\n")
