# A stand-in for a training: it starts in a tenth of a second, and tells its own steps.
import argparse
import os
import time

from torchx_cubicml import measure

parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=1)
parser.add_argument("--width", type=int, default=1)
parser.add_argument("--seconds", type=float, default=0.2)
parser.add_argument("--ledger", default="")
parser.add_argument("--eat_mib", type=int, default=0)
parser.add_argument("--limit_mib", type=int, default=0)
parser.add_argument("--steps", type=int, default=12)
args = parser.parse_args()
if args.ledger:  # who ran is written outside of the store
    with open(args.ledger, "a") as ledger:
        ledger.write(f"{os.environ['TORCHX_CUBICML_LAUNCH']} --batch_size {args.batch_size}\n")
if args.limit_mib:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (args.limit_mib << 20, args.limit_mib << 20))
if args.eat_mib and args.batch_size > 1:
    eaten = bytearray(args.eat_mib << 20)
    time.sleep(10)
for _ in range(args.steps):
    time.sleep(args.seconds / args.steps)
    measure.step(samples=100.0 * args.batch_size * args.width)
