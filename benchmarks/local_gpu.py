"""The local engine on one GPU: sampling, a debate, a training step, in the 1.5B shape with random weights.

Prints a table and, last, one line of JSON. ``--parts`` picks some of: agree, rows, debate, train, peer. ``--tiny`` runs the
same code on a small shape, for trying it out without a GPU.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import threading
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from transformers import Qwen2Config, Qwen2ForCausalLM

from peergrad.engines.local.memory import Sizes
from peergrad.engines.local.model.decoder import Adapter, Decoder
from peergrad.engines.local.model.lora import Lora, LoraRules
from peergrad.engines.local.sample.scheduler import Job, Scheduler
from peergrad.engines.local.train.backward import gradient
from peergrad.learn.data import Datum

BANDWIDTH = 4.3e12  # bytes/s a large copy reaches on an H200


def model(tiny: bool, device: str, dtype: str) -> Qwen2ForCausalLM:
    hidden, layers, middle, heads, vocabulary = (64, 2, 96, 4, 500) if tiny else (1536, 28, 8960, 12, 151936)
    sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "intermediate_size": middle, "vocab_size": vocabulary}
    config = Qwen2Config(
        **sizes, num_attention_heads=heads, num_key_value_heads=2, max_position_embeddings=32768, tie_word_embeddings=True
    )
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float32 if device == "cpu" else getattr(torch, dtype))
    with torch.device(device):
        made = Qwen2ForCausalLM(config).eval()
    torch.set_default_dtype(torch.float32)
    return made


def sampled(job: Job) -> Datum:
    """A sampled job as a training sequence."""
    ids = np.concatenate((job.prompt_T, np.array(job.ids, np.int32)))
    mask = np.zeros(len(ids) - 1, np.float32)
    mask[len(job.prompt_T) - 1 :] = 1
    old = mask.copy()
    old[mask > 0] = job.logprobs
    return Datum("d", 0, (0,), ids[:-1], ids[1:], old, mask, mask, np.ones_like(mask))


class Bench:
    def __init__(self, args: argparse.Namespace) -> None:
        self.tiny, self.device = args.tiny, "cpu" if args.tiny else "cuda"
        self.rng = np.random.default_rng(0)
        start = time.perf_counter()
        self.dtype = args.dtype
        self.decoder = Decoder(model(args.tiny, self.device, self.dtype))
        self.scheduler: Scheduler | None = None
        self.sync()
        self.loaded_s = time.perf_counter() - start
        self.result: dict[str, object] = {"benchmark": "local_gpu", "machine": self.machine()}

    def machine(self) -> str:
        return "cpu" if self.tiny else f"{torch.cuda.get_device_name()}, torch {torch.__version__}"

    def sync(self) -> None:
        if not self.tiny:
            torch.cuda.synchronize()

    def ids(self, length: int) -> np.ndarray:
        return self.rng.integers(0, self.decoder.shape.vocabulary - 10, length).astype(np.int32)

    def job(self, prompt: np.ndarray, new: int) -> Job:
        uniforms = self.rng.random(new, np.float32)
        return Job(prompt, new, 1.0, uniforms, frozenset(), lambda _: False)

    def sample(self, jobs: list[Job], adapter: Adapter | None = None, weights: int = 0) -> float:
        if self.scheduler is None:
            kv_bytes = int((0.2 if self.tiny else 90) * 2**30)
            self.scheduler = Scheduler(self.decoder, Sizes(kv_bytes, max_rows=1024, train_tokens=0, prefill_tokens=16384))
        self.sync()
        start = time.perf_counter()
        self.scheduler.run(jobs, adapter, weights, threading.Event())
        self.sync()
        return time.perf_counter() - start

    def rows(self) -> None:
        """(a) and (d): rows at once, 512 tokens of prompt, 256 new, nothing shared."""
        prompt, new = (24, 12) if self.tiny else (512, 256)
        table = {}
        shape = self.decoder.shape
        weight_bytes = sum(w.numel() * w.element_size() for layer in self.decoder.layers for w in layer.weights.values())
        weight_bytes += self.decoder.unembedding.numel() * self.decoder.unembedding.element_size()
        position_bytes = 2 * shape.layers * shape.kv_heads * shape.head_size * self.decoder.dtype.itemsize
        for rows in (4, 8) if self.tiny else (16, 64, 256, 512, 1024):
            first = self.sample([self.job(self.ids(prompt), new) for _ in range(rows)])
            seconds = min(self.sample([self.job(self.ids(prompt), new) for _ in range(rows)]) for _ in range(2))
            prefill = min(self.sample([self.job(self.ids(prompt), 1) for _ in range(rows)]) for _ in range(2))
            step = (seconds - prefill) / (new - 1)
            floor = (weight_bytes + rows * (prompt + new / 2) * position_bytes) / BANDWIDTH
            table[rows] = {
                "tok_s": round(rows * new / seconds),
                "step_ms": round(step * 1e3, 3),
                "floor_ms": round(floor * 1e3, 3),
                "prefill_s": round(prefill, 3),
                "first_run_s": round(first, 2),
            }
            print("rows", rows, table[rows], flush=True)
        self.result["rows"] = table

    def debate(self) -> None:
        """(b): 64 questions of 5 agents; round 1 shares 300 of 360 tokens, 200 new; round 2 adds 800, 300 new."""
        questions, agents, scale = (3, 2, 10) if self.tiny else (64, 5, 1)
        seconds = []
        for attempt in range(3):
            jobs: list[Job] = []
            for _ in range(questions):
                shared = self.ids(300 // scale)
                jobs += [self.job(np.concatenate((shared, self.ids(60 // scale))), 200 // scale) for _ in range(agents)]
            first = self.sample(jobs, weights=attempt)
            grown = [np.concatenate((job.prompt_T, np.array(job.ids, np.int32), self.ids(800 // scale))) for job in jobs]
            more = [self.job(prompt, 300 // scale) for prompt in grown]
            second = self.sample(more, weights=attempt)
            seconds.append((round(first, 3), round(second, 3)))
        first, second = min(seconds, key=sum)
        rate = round(questions * agents * 500 // scale / (first + second))
        self.result["debate"] = {"round1_s": first, "round2_s": second, "total_s": round(first + second, 2), "tok_s": rate}
        print("debate", self.result["debate"], flush=True)

    def train(self) -> None:
        """(c): LoRA of rank 32 on all matrices. Tokens are those of all sequences, computed once or more often.

        ``apart``: 16 sequences of 1,024 that share nothing, loss on 40 % of tokens. ``groups``: 64 prompts of 120 tokens,
        8 replies of 300 to each. ``debates``: lengths, replies and what is shared as in a step of a real run (64 questions,
        5 agents, 2 rounds; Qwen2.5-Coder-1.5B on GSM8K).
        """
        self.scheduler = None  # training and sampling share the memory; here each is measured by itself
        gc.collect()
        if not self.tiny:
            torch.cuda.empty_cache()
        lora = Lora(self.decoder, LoraRules(rank=32), 0)
        adam = torch.optim.Adam(list(lora.weights.values()))
        table = {}
        for name, data, sizes in (
            ("apart", [self.datum(40 if self.tiny else 1024) for _ in range(16)], (4096, 8192, 16384)),
            ("groups", self.groups(), (16384, 32768)),
            ("debates", self.debates(), (16384, 32768)),
        ):
            total = sum(map(len, data))
            for tokens in sizes:
                if not self.tiny:
                    torch.cuda.reset_peak_memory_stats()
                seconds = []
                for _ in range(4):
                    self.sync()
                    start = time.perf_counter()
                    made = gradient(self.decoder, lora, data, "importance_sampling", tokens)
                    for weight_name, weight in lora.weights.items():
                        weight.grad = made.by_name[weight_name]
                    adam.step()
                    self.sync()
                    seconds.append(time.perf_counter() - start)
                peak = 0 if self.tiny else torch.cuda.max_memory_allocated() / 2**30
                found = {"tok_s": round(total / statistics.median(seconds[1:])), "peak_gib": round(peak, 1)}
                table[f"{name}, {tokens}"] = found | {"tokens": total, "retried": made.retried, "error": made.error}
                print("train", name, "micro-batch", tokens, table[f"{name}, {tokens}"], flush=True)
        self.result["train"] = table

    def datum(self, length: int) -> Datum:
        mask = (self.rng.random(length) < 0.4).astype(np.float32)
        return self.trained(self.ids(length + 1), mask, self.rng.normal(size=length).astype(np.float32))

    def trained(self, ids: np.ndarray, mask: np.ndarray, advantages: np.ndarray | np.float32) -> Datum:
        old = mask * np.float32(-np.log(self.decoder.shape.vocabulary))
        return Datum("d", 0, (0,), ids[:-1], ids[1:], old, mask * advantages, mask, np.ones_like(mask))

    def groups(self) -> list[Datum]:
        made: list[Datum] = []
        for _ in range(2 if self.tiny else 64):
            prompt = self.ids(120)
            mask = np.concatenate((np.zeros(119, np.float32), np.ones(300, np.float32)))
            made += [
                self.trained(np.concatenate((prompt, self.ids(300))), mask, np.float32(self.rng.normal())) for _ in range(8)
            ]
        return made

    def debates(self) -> list[Datum]:
        rows = json.loads((Path(__file__).parent / "fixtures" / "real_debates.json").read_text())
        made: list[Datum] = []
        for length, shared, other, *edges in rows[:10] if self.tiny else rows:
            start = made[other].inputs_T[:shared] if shared else self.ids(0)
            mask = np.zeros(length, np.float32)
            for first, last in zip(edges[::2], edges[1::2], strict=True):
                mask[first:last] = 1
            ids = np.concatenate((start, self.ids(length + 1 - shared)))
            made.append(self.trained(ids, mask, np.float32(self.rng.normal())))
        return made

    def agree(self) -> None:
        """Sampler against trainer on the same tokens, and each against a float32 forward pass of transformers."""
        lora = Lora(self.decoder, LoraRules(rank=32), 0)
        prompt, new = (24, 12) if self.tiny else (300, 200)
        jobs = [self.job(self.ids(prompt + i), new) for i in range(8 if self.tiny else 48)]
        self.sample(jobs, lora.snapshot(), weights=77)
        data = [sampled(job) for job in jobs]
        found = gradient(self.decoder, lora, data, "importance_sampling", 8192).logprobs
        other = model(self.tiny, self.device, self.dtype).float()
        exact = []
        for one in data:
            ids = torch.from_numpy(one.inputs_T.astype(np.int64)).to(self.device)[None]
            with torch.no_grad():
                scores = torch.log_softmax(other(ids).logits[0], -1)
            targets = torch.from_numpy(one.targets_T.astype(np.int64)).to(self.device)
            exact.append(scores.gather(1, targets[:, None])[:, 0].cpu().numpy())
        pairs = {"sampler_trainer": (None, found), "sampler_exact": (None, exact), "trainer_exact": (found, exact)}
        table = {}
        for name, (left, right) in pairs.items():
            left = left or [one.logprobs_T for one in data]
            off = np.concatenate([np.abs(a - b)[d.mask_T > 0] for a, b, d in zip(left, right, data, strict=True)])
            table[name] = {"mean": round(float(off.mean()), 5), "p99": round(float(np.quantile(off, 0.99)), 5)}
        self.result["agree"] = table
        print("agree", table, flush=True)

    def peer(self) -> None:
        """transformers.generate on the same shapes."""
        other = model(self.tiny, self.device, self.dtype)
        prompt, new = (24, 12) if self.tiny else (512, 256)
        table = {}
        for rows in (4,) if self.tiny else (64, 256):
            ids = torch.from_numpy(np.stack([self.ids(prompt) for _ in range(rows)]).astype(np.int64)).to(self.device)
            seconds = []
            options = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": True, "top_k": 0, "pad_token_id": 0}
            for _ in range(2):
                self.sync()
                start = time.perf_counter()
                with torch.no_grad():
                    other.generate(ids, attention_mask=torch.ones_like(ids), **options)
                self.sync()
                seconds.append(time.perf_counter() - start)
            table[rows] = round(rows * new / min(seconds))
            print("transformers.generate", rows, table[rows], flush=True)
        self.result["transformers"] = table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--dtype", choices=["bfloat16", "float16"], default="bfloat16")
    parser.add_argument("--parts", default="agree,rows,debate,train,peer")
    args = parser.parse_args()
    bench = Bench(args)
    bench.result["load_s"] = round(bench.loaded_s, 1)
    for part in args.parts.split(","):
        getattr(bench, part)()
    print(json.dumps(bench.result))


if __name__ == "__main__":
    main()
