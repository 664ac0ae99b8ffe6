"""Nine short runs whose results a refactoring must not change: record them before, compare them after.

    python benchmarks/pinned_runs.py record before.json
    python benchmarks/pinned_runs.py compare before.json

A record holds the figures of each run's `metrics.json`, without times and memory, and a digest of each file of its
model.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PASSING = ("seconds", "items_per_second", "peak_memory")  # figures that differ from run to run
SMALL = "data.train=300 data.dev=100 data.test=100"
RUNS = {
    "ner": "task=ner trainer.max_epochs=20",
    "parsing": "task=parsing data.train=150 data.dev=40 data.test=40 reg.budget=60 trainer.max_epochs=2 "
    "recipe.refit.trainer.max_epochs=2",
    "parsing_growing": "task=parsing model=arcs_growing data.train=80 data.dev=20 data.test=20 reg.budget=60 "
    "trainer.max_epochs=1 recipe.refit.trainer.max_epochs=1",
    "lm": "task=lm data.limit=20000 trainer.max_epochs=30",
    "textcat": "task=textcat",
    "path": f"task=ner {SMALL} path=[0.8,0.5,0.3]",
    "grid": f"task=textcat reg=structured {SMALL} grid={{reg.lasso:[0.1,1.0],reg.group:[0.01,0.1]}}",
    "discrete": f"task=ner reg=discrete {SMALL} trainer.max_epochs=10",
    "budget": f"task=ner {SMALL} loss=perceptron solver=online_perceptron model=growing reg=group_lasso recipe=direct "
    "reg.budget=8 batch=100 trainer.max_epochs=3",
}
NETWORK = """
import lightning, sys, torch
from torch import nn
{imports}
lightning.seed_everything(0, verbose=False)
net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))
inputs, targets = torch.randn(400, 20), torch.randint(0, 3, (400,))
class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = net
    def training_step(self, batch, _):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.01)
module = Classifier()
penalties = attach("group_lasso", module, groups="module_rows", parameters="net.0.weight", strength=3e-3)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, targets), 50)
quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer = lightning.Trainer(max_epochs=30, accelerator="cpu", callbacks=[ProximalStep(penalties)], **quiet)
trainer.fit(module, loader)
slim, _ = remove_dead(net)
from safetensors.torch import save_file
tensors = {{f"{{kind}}.{{k}}": v for kind, m in (("net", net), ("slim", slim)) for k, v in m.state_dict().items()}}
save_file(tensors, sys.argv[1])
"""
IMPORTS = "from structsparse import ProximalStep, attach, remove_dead"


def digests(folder: Path) -> dict[str, str]:
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def run(root: Path, options: str, folder: Path) -> dict:
    command = [sys.executable, root / "train.py", f"hydra.run.dir={folder}", "trainer.accelerator=cpu", "cache=0"]
    subprocess.run([*command, *options.split()], check=True, cwd=root, stdout=subprocess.DEVNULL)
    metrics = json.loads((folder / "metrics.json").read_text())
    kept = {key: value for key, value in metrics.items() if not key.startswith(PASSING)}
    return {"metrics": kept, "model": digests(folder / "model")}


def run_network(root: Path, folder: Path, imports: str) -> dict:
    folder.mkdir()
    code = NETWORK.format(imports=imports)
    subprocess.run([sys.executable, "-c", code, folder / "net.safetensors"], check=True, cwd=root, capture_output=True)
    return {"model": digests(folder)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout to run (default: this one)")
    parser.add_argument("--only", nargs="*", help="names of runs")
    parser.add_argument("--imports", default=IMPORTS, help="how the network run imports the package")
    given = parser.parse_args()
    names = given.only or [*RUNS, "network"]
    before = json.loads(given.file.read_text()) if given.action == "compare" else {}
    results, different = {}, []
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            folder = Path(scratch) / name
            network = name == "network"
            result = run_network(given.root, folder, given.imports) if network else run(given.root, RUNS[name], folder)
            results[name] = result
            same = result == before.get(name)
            print(name, "recorded" if not before else "equal" if same else "DIFFERENT", flush=True)
            if before and not same:
                different.append(name)
                print(f"  before {before.get(name)}\n  after  {result}")
    if given.action == "record":
        given.file.write_text(json.dumps(results, indent=1))
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
