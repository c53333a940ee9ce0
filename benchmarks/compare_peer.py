#!/usr/bin/env python3
"""Run `cldraft bench` and a PyTorch benchmark one after the other on one device, and print ratios.

  benchmarks/compare_peer.py [--cldraft build/cldraft] [--device NVIDIA] -- PEER COMMAND...

PEER COMMAND prints one JSON object a line, with "bench" and its numbers:
  {"bench": "gemm y=xw^T", "m":, "n":, "k":, "ms":}      also "gemm dx=dy w" and "gemm dw=dy^T x",
                                                         whose m, n, k are those of the layer
  {"bench": "attention", "batch":, "fwd_ms":, "fwd_bwd_ms":}
  {"bench": "step", "batch":, "mask":, "ms":, "peak_gib":}
  {"bench": "target", "batch":, "ms":}
A ratio is the peer's time over cldraft's: above 1, cldraft is faster. Lines without a partner are
left out.
"""
import json
import subprocess
import sys


def lines_of(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def cldraft_times(binary, device):
    """{name: (ms, GiB)} of one and of four rows."""
    times = {}
    for rows in (1, 4):
        more = [] if rows == 1 else ["--set", "bench.what=attention,target,step"]
        records = lines_of([binary, "bench", "configs/bench-h200.ini", "--device", device,
                            "--format", "jsonl", "--set", "bench.roofline=no",
                            # A wait after each run, as the peer has: a card that never rests is slower.
                            "--set", "bench.min_ms=0", "--set", f"train.batch_rows={rows}",
                            "--set", f"train.micro_rows={rows}"] + more)
        for r in records:
            shape = r["shape"]
            if r["what"] == "gemm":
                name = f"{r['name']} {shape['m']}x{shape['n']}x{shape['k']}"
            else:
                name = f"{r['what']} {r['name']} {rows}"
            times[name] = (r["median_ms"], r["device_gib"])
    return times


def peer_times(command):
    """The same names, as far as the peer has them."""
    times = {}
    for r in lines_of(command):
        kind, rows = r["bench"], r.get("batch")
        if kind.startswith("gemm"):
            m, n, k = r["m"], r["n"], r["k"]
            name = {"y": f"NT {m}x{n}x{k}", "dx": f"NN {m}x{k}x{n}",
                    "dw": f"TN {n}x{k}x{m}"}[kind.split()[1].split("=")[0]]
            times[name] = (r["ms"], 0)
        elif kind == "attention":
            times[f"attention forward {rows}"] = (r["fwd_ms"], 0)
            times[f"attention forward+backward {rows}"] = (r["fwd_bwd_ms"], 0)
        elif kind == "step":
            best = times.get(f"step precomputed features {rows}", (float("inf"), 0))
            times[f"step precomputed features {rows}"] = min(best, (r["ms"], r["peak_gib"]))
        elif kind == "target":
            times[f"target all layers {rows}"] = (r["ms"], 0)
    return times


def main():
    argv = sys.argv[1:]
    if "--" not in argv:
        sys.exit(__doc__)
    own, command = argv[:argv.index("--")], argv[argv.index("--") + 1:]
    options = dict(zip(own[::2], own[1::2]))
    mine = cldraft_times(options.get("--cldraft", "build/cldraft"),
                         options.get("--device", "NVIDIA"))
    for rows in (1, 4):
        parts = [mine.get(f"attention {part} {rows}") for part in ("forward", "backward")]
        if all(parts):
            mine[f"attention forward+backward {rows}"] = (parts[0][0] + parts[1][0], 0)
    peer = peer_times(command)
    print("| work | cldraft, ms | peer, ms | ratio | cldraft, GiB | peer, GiB |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name, (ms, gib) in mine.items():
        if name in peer:
            peer_ms, peer_gib = peer[name]
            sizes = f"{gib:.1f} | {peer_gib:.1f}" if peer_gib else " | "
            print(f"| {name} | {ms:.3f} | {peer_ms:.3f} | {peer_ms / ms:.2f} | {sizes} |")


main()
