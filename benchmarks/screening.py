"""Molecules: how many of the best are found, beside stock BoTorch.

The protocol `batches` of the benchmark `practice`, without noise, over pools of
molecules. Four are read from the folder `--tables`, files in the source of the package
`gauche` 0.1.6: `esol` (1,128 measured solubilities), `freesolv` (642 measured
hydration energies), `lipophilicity` (4,200 measured ones) and `photoswitch` (383
measured wavelengths). Three come with RDKit: `chembl`, 1,017 measured activities of its
Free-Wilson example (ChEMBL document 2321810), and `nci_qed` and `nci_logp`, 2,000
molecules of NCI and two properties that RDKit computes. `counts` is `suggest`
with `--kernel tanimoto`, which compares counts of fragments, and `bits` the same with
`--bits`. The peers have the same counts. `qLogEI` is stock BoTorch with the same kernel
and priors, whose values it reads from a table of all molecules, made beforehand, which
saves most of its time. The random forests are those of `practice`.

Writes what `practice` writes. Needs the extra `chem`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from gpytorch.kernels import Kernel
from rdkit import Chem, RDConfig
from rdkit.Chem import QED, rdMolDescriptors
from torch import Tensor
from typing_extensions import override

from benchmarks.pools import Pool
from benchmarks.practice import play_all, PROTOCOLS, Run, SMOKE_PROTOCOL
from benchmarks.practice_methods import Peer, PEERS, PlayerFactory, QLogEI, Uniform
from benchmarks.record import Record
from benchmarks.rows import add_run_arguments
from botorch_bkb.arms import BitArms
from botorch_bkb.cli.suggest import SuggestLoop
from botorch_bkb.integrations.chem import read_molecules
from botorch_bkb.models.kernels import PrecomputedKernel
from botorch_bkb.models.kernels.learned import tanimoto_to_learn


# Files, and their columns of what is to be maximized.
TABLES = {
    "esol": ("ESOL.csv", "measured log solubility in mols per litre"),
    "freesolv": ("FreeSolv.csv", "expt"),
    "lipophilicity": ("Lipophilicity.csv", "exp"),
    "photoswitch": ("Photoswitch.csv", "E isomer pi-pi* wavelength in nm"),
}
POOLS = (*TABLES, "chembl", "nci_qed", "nci_logp")
NCI_SIZE = 2_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's options."""
    parser.add_argument("--pools", nargs="+", choices=POOLS, default=list(POOLS))
    parser.add_argument(
        "--tables", type=Path, metavar="FOLDER", help="where these files are"
    )
    add_run_arguments(parser, 5, has_page=False)


def run(args: argparse.Namespace, record: Record) -> None:
    """Play what is left; write and print."""
    names = [name for name in args.pools if name not in TABLES or args.tables]
    names = names[-1:] if args.smoke else names
    pools = {name: pool_of(name, args.tables) for name in names}
    wanted = [
        Run(pool, "batches", 0.0, method, seed)
        for seed in range(args.seeds)
        for pool in pools
        for method in METHODS
    ]
    protocols = {"batches": SMOKE_PROTOCOL if args.smoke else PROTOCOLS["batches"]}
    play_all(wanted, pools, protocols, METHODS, record, args.again)


def pool_of(name: str, tables: Path | None) -> Pool:
    """Return molecules as counts; those of equal fingerprints are one candidate."""
    smiles, rewards = load_molecules(name, tables)
    molecules = read_molecules(smiles, counts=True, skip_invalid=True)
    rewards = rewards[torch.from_numpy(molecules.rows)]
    arms, place = molecules.arms().unique(dim=0, return_inverse=True)
    sums = torch.zeros(len(arms), dtype=torch.double).index_add(0, place, rewards)
    return Pool(name, arms, sums / place.bincount())


def load_molecules(name: str, tables: Path | None = None) -> tuple[list[str], Tensor]:
    """Return SMILES and rewards to be maximized."""
    if name in TABLES:
        file, column = TABLES[name]
        table = pd.read_csv((tables or Path()) / file)
        table = table.rename(columns={column: "reward", "SMILES": "smiles"})
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
        self.kernel.base_kernel = PrecomputedKernel(similarities)

    @override
    def _kernel(self) -> Kernel:
        self.kernel.outputscale = 1.0  # every fit starts from there
        return self.kernel


class SuggestByCounts(SuggestLoop):
    """The loop of the command, over fingerprints."""

    def __init__(self, arms: Tensor, generator: torch.Generator) -> None:
        super().__init__(BitArms.of(arms.to(torch.uint8)), seed=0, kernel="tanimoto")


class SuggestByBits(SuggestByCounts):
    """The same with `--bits`."""

    def __init__(self, arms: Tensor, generator: torch.Generator) -> None:
        super().__init__((arms > 0).to(arms), generator)


METHODS: dict[str, PlayerFactory] = {
    "counts": SuggestByCounts,
    "bits": SuggestByBits,
    "qLogEI": TanimotoQLogEI,
    "forest, mean": PEERS["forest, mean"],
    "forest, UCB": PEERS["forest, UCB"],
    "uniform": Uniform,
}
