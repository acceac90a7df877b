"""The authors' code, ``luigicarratino/batch-bkb``, behind ask and tell.

The user brings a checkout; it is imported as it is. One call is wrapped at run time:
recent SciPy wants vectors where the code hands ``qr_update`` numbers, which happens
while there is one inducing point.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.problems import LENGTHSCALE


def load_library(path: Path) -> ModuleType:
    """Import the authors' code from a checkout, on as many threads as torch uses.

    It needs scikit-learn, scipy and threadpoolctl.

    Raises:
        FileNotFoundError: If the folder does not hold their code.
    """
    if not (path / "bkb_lib.py").is_file():
        raise FileNotFoundError(
            "Expected --batch-bkb to name a checkout of https://github.com/"
            f"luigicarratino/batch-bkb, but there is no bkb_lib.py in {path}."
        )
    sys.path.insert(0, str(path))
    try:
        library = importlib.import_module("bkb_lib")
    finally:
        sys.path.remove(str(path))
    # NumPy and SciPy have thread pools of their own. Limits stay until this process
    # ends: the object that would lift them is dropped.
    importlib.import_module("threadpoolctl").threadpool_limits(
        limits=torch.get_num_threads()
    )
    original = library.qr_update

    def qr_update(Q: Any, R: Any, u: Any, v: Any) -> Any:
        return original(Q, R, np.atleast_1d(u), np.atleast_1d(v))

    library.__dict__["qr_update"] = qr_update
    return library


class AuthorsBBKB:
    """The authors' ``Batch_BKB`` with the ask and tell of our bandits.

    As ours, it opens with an arm that the generator draws, and updates in the first ask
    after new rewards: so a last, unused update counts on neither side.

    Args:
        library: What ``load_library`` returned.
        arms: An ``A x d`` tensor.
        seed: Of the opening arm and of the resampling.
        options: Those of ``Batch_BKB`` but for the kernel.
    """

    def __init__(
        self, library: ModuleType, arms: Tensor, seed: int, **options: float
    ) -> None:
        kernels = importlib.import_module("sklearn.gaussian_process.kernels")
        # Their own mixture: scikit-learn's pairwise kernel, which is faster, where the
        # matrix is large.
        kernel = sys.modules["utils"].FastMixinKernel(
            kernels.RBF(length_scale=LENGTHSCALE),
            kernels.PairwiseKernel(gamma=1 / (2 * LENGTHSCALE**2), metric="rbf"),
        )
        self._bandit = library.Batch_BKB(dot=kernel, **options)
        self._arms = arms.numpy()
        self._seed = seed
        self._random_state = np.random.RandomState(seed)
        self._observed: tuple[list[int], np.ndarray] | None = None
        self.num_pulls = 0

    @property
    def inducing_indices(self) -> Tensor:
        """The arms of their dictionary."""
        return torch.from_numpy(self._bandit.dict_arms_count.nonzero()[0])

    def ask(self, max_size: int) -> Tensor:
        """Choose the next batch, cut at ``max_size``."""
        if self._observed is None:
            generator = torch.Generator().manual_seed(self._seed)
            return torch.randint(len(self._arms), (1,), generator=generator)
        indices, rewards = self._observed
        if len(indices) == self.num_pulls:
            self._bandit.initialize(self._arms, indices, rewards)
        else:
            self._bandit.update(indices, rewards, self._random_state)
        chosen, _ = self._bandit.predict()
        return torch.from_numpy(chosen[:max_size])

    def tell(self, indices: Tensor, rewards: Tensor) -> None:
        """Bring the rewards of the batch."""
        self._observed = indices.tolist(), rewards.numpy()
        self.num_pulls += len(indices)
