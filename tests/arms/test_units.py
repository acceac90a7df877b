"""Minima and ranges of features."""

import numpy as np
import torch

from botorch_bkb.arms import ArrayArms, BitArms
from botorch_bkb.arms.units import extreme_arms, feature_units


def test_a_few_arms_have_the_units_of_all(tmp_path):
    stream = np.random.default_rng(0)
    arms = torch.tensor(stream.normal(size=(50, 3)))
    codes = stream.integers(0, 256, size=(50, 8), dtype=np.uint8)
    np.save(tmp_path / "arms.npy", arms.numpy())
    tables = [arms, ArrayArms(tmp_path / "arms.npy"), BitArms(codes, numbers=arms)]
    for table in tables:
        few = extreme_arms(table)
        assert len(few) <= 6
        expected = feature_units(table)
        found = feature_units(table[torch.cat([torch.tensor([7]), few])])
        assert all(map(torch.equal, found, expected))
    assert len(extreme_arms(BitArms(codes))) == 0
