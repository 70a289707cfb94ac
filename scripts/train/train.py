"""The training loop: processes share gradients, a clock drives stages and learning rate.

Run again with the same --out it resumes from the last checkpoint; --more-minutes trains a finished
run on, at a rewarmed rate and on the last stage's mix; --start-from does so with the weights of a
bundle, and learns the phone and piece heads anew. Reads shards as they appear in --bank.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import os
import signal
import time
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from train import wordpieces
from train.batches import Batch, Planner, windows
from train.bundle_weights import deepen, read_weights
from train.checkpoint import load_checkpoint, save_checkpoint
from train.features import Renderer
from train.losses import losses
from train.network import NetworkSize, Whisper
from train.optimizer import FlatOptimizer
from train.plans import Mix
from train.scoring import hearing
from train.shards import Bank, join_new
from train.sounds import make_channels, make_sounds

DEFAULT_MINUTES = 110
WARM_UP_STEPS = 150
CLEAN_UNTIL, MILD_UNTIL = 0.08, 0.62
"""Shares of the time in which windows are clean, then mildly distorted; after them hard."""
EMA_DECAY = 0.998
EMA_FROM = 0.6
SAVE_EVERY_S = 180
SOUND_S = 12.0
CHANNELS = 400
HEADS_APART_STEPS = 200
"""So many steps fresh heads learn before the encoder of a bundle learns from them."""
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Schedule:
    """Where a run stands: `progress` 0..1 is a matter of time alone."""

    start_s: float
    total_s: float
    extension: bool

    def progress(self, spent_s: float) -> float:
        """Share of this schedule's time that is over."""
        return min(1.0, (spent_s - self.start_s) / self.total_s)

    def stage(self, spent_s: float) -> float:
        """Progress through the stages; an extension stays in the last one."""
        done = self.progress(spent_s)
        return MILD_UNTIL + (1 - MILD_UNTIL) * done if self.extension else done

    def rate(self, spent_s: float, steps: int) -> float:
        """Learning rate as a share of its peak: linear warm-up, cosine to 0."""
        peak = 0.5 if self.extension else 1.0
        cosine = 0.5 * (1 + math.cos(math.pi * self.progress(spent_s)))
        return peak * cosine * min(1.0, (steps + 1) / WARM_UP_STEPS)


def mix_at(stage: float) -> Mix:
    """Clean short clips first, then ever harder ones, at last as many full windows as pay."""
    if stage < CLEAN_UNTIL:
        return Mix(strength=0.0, full_share=0.04, combination_share=0.1, empty_share=0.03)
    if stage < MILD_UNTIL:
        done = (stage - CLEAN_UNTIL) / (MILD_UNTIL - CLEAN_UNTIL)
        return Mix(0.2 + 0.6 * done, 0.1 + 0.15 * done, 0.3, 0.05)
    return Mix(strength=1.0, full_share=0.3, combination_share=0.4, empty_share=0.08)


class Log:
    """Lines with the time, to a file and standard output; silent on all processes but the first."""

    def __init__(self, path: Path, process: int) -> None:
        self._file = path.open("a", buffering=1) if process == 0 else None

    def __call__(self, line: str) -> None:
        """Write `line`."""
        if self._file:
            stamped = f"{time.strftime('%H:%M:%S')} {line}"
            self._file.write(stamped + "\n")
            print(stamped, flush=True)


class Clock:
    """Says when something is due again; `spent_s` counts training time over all resumes."""

    def __init__(self, every_s: float, spent_s: float) -> None:
        self._every_s = every_s
        self._next_s = spent_s + every_s

    def due(self, spent_s: float) -> bool:
        """Whether the time has come; then the next time is set."""
        if spent_s < self._next_s:
            return False
        self._next_s = spent_s + self._every_s
        return True


class Trainer:
    """One process's network, optimiser and place in the schedule."""

    def __init__(self, process: int, args: argparse.Namespace) -> None:
        self.args, self.process = args, process
        self.log = Log(args.out / "train.log", process)
        self.pieces = wordpieces.Wordpieces(args.out / "pieces")
        self.phones = len((args.bank / "phones.txt").read_text(encoding="utf-8").splitlines())
        self.model = self._first_model()
        self.optimizer = FlatOptimizer(
            self.model, args.rate, args.matrix_rate, args.decay, clip=1.0
        )
        self.average = self.optimizer.flat.clone()
        self.averaged = False
        seconds = (args.minutes or DEFAULT_MINUTES) * 60
        self.schedule = Schedule(0.0, seconds, extension=args.start_from is not None)
        self.step = self.seen = self.skipped = 0
        self.spent_s = 0.0
        self._resume()
        self.first_step = self.step
        self.sums = torch.zeros(5)

    def _first_model(self) -> Whisper:
        """A network with fresh weights, or a bundle's where --start-from names one."""
        args = self.args
        if not args.start_from:
            size = NetworkSize(
                self.pieces.size,
                encoder_layers=args.encoder_layers,
                decoder_layers=args.decoder_layers,
            )
            return Whisper(size, self.phones)
        size, weights = read_weights(args.start_from)
        if args.encoder_layers > size.encoder_layers:
            size, weights = deepen(size, weights, args.encoder_layers)
        model = Whisper(size, self.phones)
        lost = [name for name in model.state_dict() if name not in weights]
        if size.vocab_size != self.pieces.size or any(name.startswith("model.") for name in lost):
            raise SystemExit(f"{args.start_from}: not the weights of this network")
        model.load_state_dict(weights, strict=False)
        return model

    def _resume(self) -> None:
        saved = load_checkpoint(self.args.out / "last.pt")
        if saved is None:
            return
        self.model.load_state_dict(saved["model"])
        self.optimizer.load(saved["optimizer"])
        self.average.copy_(saved["average"])
        self.averaged = saved["averaged"]
        self.step, self.spent_s, self.seen = saved["step"], saved["spent_s"], saved["seen"]
        if saved["extension"] or self.args.minutes is None:
            self.schedule = Schedule(saved["start_s"], saved["total_s"], saved["extension"])
        if self.args.more_minutes and self.over:
            self.schedule = Schedule(self.spent_s, self.args.more_minutes * 60, extension=True)
            self.averaged = False

    @property
    def over(self) -> bool:
        """Whether the schedule's time is spent."""
        return self.schedule.progress(self.spent_s) >= 1.0

    @property
    def rate(self) -> float:
        """The learning rate of this step, as a share of its peak."""
        return self.schedule.rate(self.spent_s, self.step - self.first_step)

    def save(self) -> None:
        """Write the checkpoint, from the first process."""
        if self.process:
            return
        progress = {
            "size": self.model.size.as_dict(), "phones": self.phones, "step": self.step,
            "spent_s": self.spent_s, "seen": self.seen, "averaged": self.averaged,
            "extension": self.schedule.extension, "start_s": self.schedule.start_s,
            "total_s": self.schedule.total_s,
        }  # fmt: skip
        average = self.average if self.averaged else None
        save_checkpoint(self.args.out / "last.pt", self.model, self.optimizer, average, progress)

    def learn(self, batch: Batch, began: float) -> None:
        """One step on `batch`; `began` is time.monotonic() at no time spent."""
        args = self.args
        apart = args.start_from is not None and self.step < HEADS_APART_STEPS
        loss = losses(self.model, batch, apart)
        weights = torch.tensor([1.0, args.phone_weight, args.piece_weight, args.guide_weight])
        (loss.every() * weights).sum().backward()
        norm, self.spent_s = self.optimizer.share(time.monotonic() - began)
        if math.isfinite(norm):
            self.optimizer.step(self.rate, norm)
            self.sums += torch.cat([loss.every().detach(), torch.ones(1)])
        else:
            self.skipped += 1
            self.log(f"step {self.step}: gradient is not finite, skipped")
        self.optimizer.zero()
        self.step += 1
        self.seen += len(batch.mel) * args.processes
        if self.schedule.stage(self.spent_s) >= EMA_FROM:
            weight = 1 - EMA_DECAY if self.averaged else 1.0
            self.average.lerp_(self.optimizer.flat, weight)
            self.averaged = True

    def report(self, bank: Bank) -> None:
        """Log the losses since the last report."""
        token, phone, piece, guide, _ = (self.sums / self.sums[-1].clamp(min=1)).tolist()
        self.sums.zero_()
        self.log(
            f"{self.spent_s / 60:6.1f} min step {self.step} seen {self.seen} token {token:.3f} "
            f"phone {phone:.3f} piece {piece:.3f} guide {guide:.3f} rate {self.rate:.3f} "
            f"bank {len(bank)}"
        )

    def test(self) -> None:
        """Log how well the first process hears, with the average's weights if there is one."""
        if self.process:
            return
        flat = self.optimizer.flat
        current = flat.clone()
        if self.averaged:
            flat.copy_(self.average)
        heard = hearing(self.model, self.pieces, self.args.bank, self.args.test_count)
        flat.copy_(current)
        which = " (average)" if self.averaged else ""
        self.log(f"TEST {self.spent_s / 60:.1f} min{which}: {heard}")

    def run(self) -> None:
        """Train until the schedule's time is spent."""
        args = self.args
        bank = Bank(args.bank, "train", args.people)
        sounds = make_sounds(args.seed, args.sounds, SOUND_S)
        renderer = Renderer(bank, self.pieces, sounds, make_channels(args.seed, CHANNELS))
        planner = Planner(bank, args.frames, args.processes)
        self.log(
            f"{self.model.size}; from step {self.step}, {self.spent_s / 60:.1f} min spent; "
            f"{self.schedule}"
        )
        began = time.monotonic() - self.spent_s
        reports = Clock(args.report_every_s, self.spent_s)
        saves = Clock(SAVE_EVERY_S, self.spent_s)
        tests = Clock(args.test_every_s, self.spent_s)
        while not self.over:
            join_new(bank, self.phones)
            rng = np.random.default_rng([args.seed, self.step])
            mix = mix_at(self.schedule.stage(self.spent_s))
            mix = replace(mix, people_share=args.people_share)
            for batch in windows(renderer, planner.steps(rng, mix), self.process):
                self.learn(batch, began)
                if reports.due(self.spent_s):
                    self.report(bank)
                if saves.due(self.spent_s):
                    self.save()
                if tests.due(self.spent_s):
                    self.test()
                if self.over:
                    break
        self.save()
        self.log(f"done: {self.step} steps, {self.seen} windows, {self.skipped} skipped")


def work(process: int, args: argparse.Namespace) -> None:
    """One training process; it ends when its parent is ended."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{args.out / 'rendezvous'}",
        rank=process,
        world_size=args.processes,
        timeout=timedelta(minutes=20),
    )
    Trainer(process, args).run()
    dist.barrier()
    dist.destroy_process_group()


def arguments(description: str) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--bank", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, help=f"{DEFAULT_MINUTES}, or as the run began")
    parser.add_argument("--more-minutes", type=float, default=0)
    parser.add_argument("--start-from", type=Path, help="folder of a bundle, for its weights")
    parser.add_argument("--processes", type=int, default=2, help="one per core")
    parser.add_argument(
        "--people-share", type=float, default=0.5, help="of windows, where the bank has people"
    )
    parser.add_argument("--people", type=int, help="so many are heard (default: all of the bank)")
    parser.add_argument(
        "--encoder-layers", type=int, default=5, help="of a bundle with fewer, some are added"
    )
    parser.add_argument("--decoder-layers", type=int, default=2)
    parser.add_argument("--frames", type=int, default=5000, help="mel frames a batch and process")
    parser.add_argument("--rate", type=float, default=1.8e-3, help="AdamW's peak rate")
    parser.add_argument("--matrix-rate", type=float, default=0.02, help="Muon's; 0: AdamW alone")
    parser.add_argument("--decay", type=float, default=0.01)
    parser.add_argument("--phone-weight", type=float, default=1.0)
    parser.add_argument("--piece-weight", type=float, default=0.5)
    parser.add_argument("--guide-weight", type=float, default=0.3)
    parser.add_argument("--sounds", type=int, default=320, help="synthetic background sounds")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--test-every-s", type=float, default=600)
    parser.add_argument("--test-count", type=int, default=100)
    parser.add_argument("--report-every-s", type=float, default=20)
    return parser.parse_args()


def main() -> None:
    """Learn the word pieces unless there are some, then starts the processes."""
    args = arguments(__doc__)
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] = "8192"
    args.out = args.out.resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "rendezvous").unlink(missing_ok=True)
    wordpieces.learn_once(args.out / "pieces")
    mp.spawn(work, args=(args,), nprocs=args.processes)


if __name__ == "__main__":
    main()
