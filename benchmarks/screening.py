"""Molecules and bits: seconds, memory, and how many of the best are found.

`found`: ten uniformly drawn molecules are measured, then batches of 5 up to 100, in
pools of molecules. Two are of MoleculeNet, read from the folder `--tables` if it is
there: `esol` (`ESOL.csv`, 1,128 measured solubilities) and `lipophilicity`
(`Lipophilicity.csv`, 4,200 measured ones). Three come with RDKit: `chembl`, 1,017
measured activities of its Free-Wilson example (ChEMBL document 2321810), and `nci_qed`
and `nci_logp`, 2,000 molecules of NCI and two properties that RDKit computes. `suggest`
is the command's choice, `qLogEI` stock BoTorch with the same kernel, priors and
fingerprints; it looks the kernel's values up in a table of all molecules, made
beforehand, which spares it most of its time. Counted are the best 1 %
of the pool that were measured, and the seconds of choosing a batch. Every run is
appended to `found.csv` and not run again.

`million`: the command `suggest` in a process of its own, over a million enumerated
molecules whose fingerprints are kept beside the table, 500 of them measured, for a
plate of 96. `bits`: the same over 50,000 rows of 512 bits, 192 of them measured, by the
Tanimoto kernel and by the kernel of a lengthscale per bit that was there before it.
`fingerprints`: those of 100,000 molecules, beside RDKit's own loop on the same cores.

Writes `found.csv`, `commands.csv` and `fingerprints.csv`.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Standardize
from gpytorch.mlls import ExactMarginalLogLikelihood
from rdkit import Chem, RDConfig
from rdkit.Chem import QED, rdFingerprintGenerator, rdMolDescriptors
from torch import Tensor
from typing_extensions import override

from benchmarks.peers import Peer, QLogEI, Uniform
from benchmarks.pools import BEST_SHARE
from benchmarks.practice_rows import RowFile
from benchmarks.record import caption, print_table, Record
from botorch_bkb.arms import BitArms
from botorch_bkb.bandits.learned_kernels import tanimoto_to_learn
from botorch_bkb.cli.suggest import SuggestLoop
from botorch_bkb.integrations.chem import read_molecules
from botorch_bkb.models.kernels import PrecomputedKernel


class Run(NamedTuple):
    """What one run of `found` is of."""

    pool: str
    method: str
    seed: int


PARTS = ("found", "million", "bits", "fingerprints")
# Files of MoleculeNet, and their columns of what is to be maximized.
TABLES = {
    "esol": ("ESOL.csv", "measured log solubility in mols per litre"),
    "lipophilicity": ("Lipophilicity.csv", "exp"),
}
POOLS = (*TABLES, "chembl", "nci_qed", "nci_logp")
NUM_FIRST, BATCH_SIZE, TOTAL = 10, 5, 100
NCI_SIZE = 2_000
GROUPS = (
    *("C", "CC", "C(C)C", "O", "OC", "N", "NC", "N(C)C", "F", "Cl", "Br", "C#N", "SC"),
    *("C(F)(F)F", "C(=O)O", "C(=O)N", "C(=O)OC", "S(=O)(=O)N", "CCO", "CCN", "OCC"),
    *("C(=O)C", "NC(=O)C", "OC(F)(F)F", "CC#N", "OCCO", "CNC", "CCCC", "C=C"),
    *("c%91ccccc%91", "c%91ccncc%91", "C%91CC%91", "N%91CCOCC%91", "N%91CCCC%91"),
    *("C%91CCCCC%91", "c%91ccc(F)cc%91", "c%91ccc(OC)cc%91", "c%91ccoc%91"),
    *("c%91ccsc%91", "N%91CCNCC%91"),
)
CORES = (
    *("c1c({})cc({})c({})c1", "c1({})nc({})c({})cc1", "n1c({})nc({})c2c1cc({})cc2"),
    *("c1({})sc({})c({})c1", "C1C({})CC({})N({})C1", "c1({})c({})[nH]c2c1cc({})cc2"),
    *("O=C1N({})C(=O)C({})C1{}", "c1({})c({})oc({})c1", "c1({})cc({})ccc1C(=O)N{}"),
    *("c1({})cc({})ccc1Oc2ccc({})cc2", "c1({})ccc(cc1)C(=O)NCc2cc({})c({})cc2"),
    *("C({})C(=O)N1CCN(CC1)c2cc({})c({})cc2", "c1({})cn(C{})nc1{}"),
    *("c1({})ccc(cc1)S(=O)(=O)N({})C{}", "N({})C(=O)C({})C{}"),
    *("c1({})ccc2nc({})n(C{})c2c1", "c1({})ccc(cc1)/C=C/C(=O)N({})C{}"),
)


# The command, and what it took. Of a process that was forked, `getrusage` would tell
# the memory of its parent.
PROGRAM = """
import sys, time
from botorch_bkb.__main__ import main
code = main(sys.argv[1:])
with open("/proc/self/status") as status:
    peak = next(line.split()[1] for line in status if line.startswith("VmHWM"))
print(time.process_time(), peak)
sys.exit(code)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's options."""
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--pools", nargs="+", choices=POOLS, default=list(POOLS))
    parser.add_argument(
        "--tables", type=Path, metavar="FOLDER", help="where files of MoleculeNet are"
    )
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="0 to N - 1")
    parser.add_argument(
        "--folder", type=Path, help="where tables of `million` and `bits` stay"
    )


def run(args: argparse.Namespace) -> None:
    """Measure what is asked for, and print it."""
    if args.device != "cpu":
        raise SystemExit(f"Expected --device cpu, but got {args.device}.")
    record = Record(args.output)
    print(caption(record.origin))
    if "found" in args.parts:
        seeds = 1 if args.smoke else args.seeds
        pools = [name for name in args.pools if name not in TABLES or args.tables]
        played = RowFile(record.folder / "found.csv", keys=Run._fields)
        found(played, pools, args.tables, seeds, record.origin, args.smoke)
        _show_found(played.table())
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.folder or Path(scratch)
        rows = []
        if "million" in args.parts:
            rows += [million(folder, 3_000 if args.smoke else 1_000_000)]
        if "bits" in args.parts:
            rows += bits(folder, 1_000 if args.smoke else 50_000)
        if rows:
            _show(record, "commands", pd.DataFrame(rows))
    if "fingerprints" in args.parts:
        num_molecules = 2_000 if args.smoke else 100_000
        _show(record, "fingerprints", fingerprints(num_molecules))


def _show(record: Record, name: str, table: pd.DataFrame) -> None:
    record.write_table(table, name)
    print()
    print_table(table)


def _show_found(table: pd.DataFrame) -> None:
    """Print means over seeds, and over the pools."""
    groups = table.groupby(["pool", "method"], sort=False)
    means = groups[["found", "seconds_per_batch"]].mean()
    means.insert(0, "seeds", groups["seed"].nunique())
    print()
    print_table(means.reset_index())
    print()
    print_table(means.groupby("method", sort=False)["found"].mean().reset_index())


# --- how many are found


def load_pool(name: str, tables: Path | None = None) -> tuple[list[str], Tensor]:
    """Return SMILES and rewards to be maximized."""
    if name in TABLES:
        file, column = TABLES[name]
        table = pd.read_csv((tables or Path()) / file)
        table["reward"] = table[column]
    elif name == "chembl":
        folder = Path(RDConfig.RDContribDir) / "FreeWilson" / "data"
        rewards = pd.read_csv(folder / "CHEMBL2321810_act.csv").set_index("Name")["Act"]
        table = _smi(folder / "CHEMBL2321810.smi")
        table["reward"] = rewards.reindex(table["name"]).to_numpy()
    else:
        table = _smi(Path(RDConfig.RDDataDir) / "NCI" / "first_5K.smi")
        table = table.sample(frac=1, random_state=0)
        mols = [Chem.MolFromSmiles(text) for text in table["smiles"]]
        of = QED.qed if name == "nci_qed" else _log_p
        table["reward"] = [np.nan if mol is None else of(mol) for mol in mols]
    table = table[["smiles", "reward"]].dropna()
    table = table.head(NCI_SIZE) if name.startswith("nci") else table
    return table["smiles"].tolist(), torch.tensor(table["reward"].to_numpy())


def _log_p(mol: Chem.Mol) -> float:
    return float(rdMolDescriptors.CalcCrippenDescriptors(mol)[0])


def _smi(path: Path) -> pd.DataFrame:
    return pd.read_csv(path, sep=r"\s+", header=None, names=["smiles", "name"])


class TanimotoQLogEI(QLogEI):
    """Stock BoTorch with the kernel that `suggest` learns, as a table."""

    def __init__(self, arms: Tensor, generator: torch.Generator) -> None:
        Peer.__init__(self, arms, generator)
        self.points = torch.arange(len(arms)).to(arms).unsqueeze(-1)
        self.kernel = tanimoto_to_learn(BitArms.of(arms[:1].to(torch.uint8))).double()
        similarities = self.kernel.base_kernel(arms).to_dense().detach()
        self.table = PrecomputedKernel(similarities)
        self.kernel.base_kernel = self.table

    @override
    def tell(self, indices: Tensor, rewards: Tensor) -> None:
        Peer.tell(self, indices, rewards)
        spread = self.rewards.std().clamp_min(1e-12)
        self.targets = (self.rewards - self.rewards.mean()) / spread
        self.kernel.outputscale = 1.0  # every fit starts from there
        self.model = SingleTaskGP(
            self.points[self.indices],
            self.targets.unsqueeze(-1),
            covar_module=self.kernel,
            outcome_transform=Standardize(m=1),
        )
        fit_gpytorch_mll(ExactMarginalLogLikelihood(self.model.likelihood, self.model))


def found(
    rows: RowFile,
    pools: Sequence[str],
    tables: Path | None,
    num_seeds: int,
    origin: Mapping[str, Any],
    smoke: bool,
) -> None:
    """Append how many of the best were measured, by pool, method and seed."""
    total = 15 if smoke else TOTAL
    for pool in pools[-1:] if smoke else pools:
        wanted = [Run(pool, way, seed) for seed in range(num_seeds) for way in METHODS]
        missing = rows.missing(wanted)
        if not missing:
            continue
        smiles, rewards = load_pool(pool, tables)
        molecules = read_molecules(smiles, skip_invalid=True)
        rewards = rewards[torch.from_numpy(molecules.rows)]
        arms = molecules.arms()
        # Molecules of equal fingerprints are one candidate, of their mean reward.
        arms, place = arms.unique(dim=0, return_inverse=True)
        sums = torch.zeros(len(arms), dtype=torch.double).index_add(0, place, rewards)
        rewards = sums / place.bincount()
        for one in missing:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                outcome = _play(arms, rewards, METHODS[one.method], one.seed, total)
            row = pd.DataFrame([{**one._asdict(), **outcome, "rows": 1, **origin}])
            rows.append(row)
            print(one, outcome, flush=True)


def _play(
    arms: Tensor, rewards: Tensor, start: type, seed: int, total: int
) -> dict[str, float]:
    generator = torch.Generator().manual_seed(seed)
    first = torch.randperm(len(arms), generator=generator)[:NUM_FIRST]
    player = start(arms, generator)
    player.tell(first, rewards[first])
    measured, seconds = [first], []
    while sum(map(len, measured)) < total:
        begin = time.perf_counter()
        picks = player.ask(BATCH_SIZE)
        player.tell(picks, rewards[picks])
        seconds.append(time.perf_counter() - begin)
        measured.append(picks)
    num_best = max(1, int(np.ceil(BEST_SHARE * len(rewards))))
    is_best = rewards >= rewards.topk(num_best).values[-1]
    hits = is_best[torch.cat(measured).unique()].sum().item()
    return {
        "found": hits / is_best.sum().item(),
        "seconds_per_batch": float(np.median(seconds)),
    }


class Suggest(SuggestLoop):
    """The loop of the command, of fingerprints."""

    def __init__(self, arms: Tensor, generator: torch.Generator) -> None:
        packed = BitArms.of(arms.to(torch.uint8))
        super().__init__(packed, seed=0, batch_size=BATCH_SIZE, kernel="tanimoto")


METHODS: dict[str, type] = {
    "suggest": Suggest,
    "qLogEI": TanimotoQLogEI,
    "uniform": Uniform,
}


# --- the command, in a process of its own


def million(folder: Path, num_molecules: int) -> dict[str, object]:
    """Return seconds and memory of one plate out of enumerated molecules."""
    library, results = folder / "molecules.parquet", folder / "molecules_results.csv"
    if not library.is_file():
        smiles = enumerate_molecules(num_molecules)
        table = pd.DataFrame({"id": np.arange(num_molecules).astype("str")})
        table["smiles"] = smiles
        table.to_parquet(library, index=False)
        rows = np.random.default_rng(0).choice(num_molecules, 500, replace=False)
        mols = [Chem.MolFromSmiles(smiles[row]) for row in rows]
        rewards = [_log_p(mol) for mol in mols]
        table.iloc[rows].assign(reward=rewards).to_csv(results, index=False)
    words = ["--smiles", "smiles", "--observations", str(results)]
    before = {"task": "molecules, fingerprints made", **_suggest(library, *words)}
    print(before, flush=True)
    return {"task": "molecules, fingerprints kept", **_suggest(library, *words)}


def bits(folder: Path, num_rows: int) -> list[dict[str, object]]:
    """Return seconds and memory of one plate out of rows of bits, by two kernels."""
    rng = np.random.default_rng(0)
    library, results = folder / "bits.parquet", folder / "bits_results.csv"
    kinds = rng.random((200, 512)) < 0.1
    values = kinds[rng.integers(200, size=num_rows)] ^ (
        rng.random((num_rows, 512)) < 0.03
    )
    table = pd.DataFrame(values.astype("uint8")).add_prefix("bit")
    table.insert(0, "id", np.arange(num_rows).astype("str"))
    table.to_parquet(library, index=False)
    rows = rng.choice(num_rows, 192, replace=False)
    rewards = values[rows] @ rng.normal(size=512) + 0.3 * rng.normal(size=192)
    told = pd.DataFrame({"id": table["id"].iloc[rows], "reward": rewards})
    told.to_csv(results, index=False)
    return [
        {
            "task": f"bits, {kernel}",
            **_suggest(library, "--observations", str(results), "--kernel", kernel),
        }
        for kernel in ("tanimoto", "rbf")
    ]


def _suggest(library: Path, *words: str) -> dict[str, object]:
    """Run the command; return its seconds, imports included, and its peak memory."""
    words = (str(library), *words, "--output", str(library.with_name("next.csv")))
    command = [sys.executable, "-c", PROGRAM, "suggest", *words, "--quiet"]
    start = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    seconds = time.perf_counter() - start
    cpu_seconds, kibibytes = done.stdout.splitlines()[-1].split()
    return {
        "seconds": seconds,
        "cpu_seconds": float(cpu_seconds),
        "mib": float(kibibytes) / 1024,
    }


def enumerate_molecules(num_molecules: int) -> list[str]:
    """Return SMILES of cores with three groups each, in random order."""
    choices = list(product(CORES, GROUPS, GROUPS, GROUPS))
    random.Random(0).shuffle(choices)
    smiles = []
    for core, *groups in choices[:num_molecules]:
        # Every group closes its ring by a number of its own.
        numbered = [
            group.replace("%91", f"%9{place}") for place, group in enumerate(groups)
        ]
        smiles.append(core.format(*numbered))
    return smiles


# --- fingerprints


def fingerprints(num_molecules: int) -> pd.DataFrame:
    """Return the seconds of fingerprints, ours and those of RDKit's own loop."""
    smiles = enumerate_molecules(num_molecules)
    num_workers = os.cpu_count() or 1
    chunks = [smiles[place::num_workers] for place in range(num_workers)]

    def loops() -> None:
        with ProcessPoolExecutor(num_workers) as pool:
            list(pool.map(_rdkit_loop, chunks))

    ways: dict[str, Callable[[], object]] = {
        "read_molecules": lambda: read_molecules(smiles, num_workers=num_workers),
        "RDKit's loop": loops,
    }
    rows = []
    for way, work in ways.items():
        start, cpu_start = time.perf_counter(), _cpu_seconds()
        work()
        rows.append(
            {
                "way": way,
                "molecules": num_molecules,
                "seconds": time.perf_counter() - start,
                "cpu_seconds": _cpu_seconds() - cpu_start,
            }
        )
    return pd.DataFrame(rows)


def _cpu_seconds() -> float:
    """Return the processor's time of this process and those that it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _rdkit_loop(smiles: list[str]) -> int:
    """Read, canonicalize, and pack fingerprints, one by one."""
    generator = rdFingerprintGenerator.GetMorganGenerator(2, fpSize=2048)
    num_bytes = 0
    for text in smiles:
        mol = Chem.MolFromSmiles(text)
        Chem.MolToSmiles(mol)
        num_bytes += np.packbits(generator.GetFingerprintAsNumPy(mol)).nbytes
    return num_bytes
