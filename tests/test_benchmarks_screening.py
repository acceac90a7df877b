import numpy as np
import pytest
import torch
from rdkit import Chem
from scipy.spatial.distance import cdist

from benchmarks import screening
from benchmarks.screening import (
    enumerate_molecules,
    load_pool,
    Suggest,
    TanimotoQLogEI,
)


def test_enumerated_molecules_are_molecules():
    smiles = enumerate_molecules(500)
    assert len(set(smiles)) == 500
    assert all(Chem.MolFromSmiles(text) is not None for text in smiles)
    assert enumerate_molecules(20) == smiles[:20]


@pytest.mark.parametrize(("name", "size"), [("chembl", 1017), ("nci_qed", 2000)])
def test_a_pool_is_molecules_and_what_is_to_be_maximized(name, size):
    smiles, rewards = load_pool(name)
    assert len(smiles) == len(rewards) == size
    assert rewards.isfinite().all()
    assert rewards.unique().numel() > 50


def test_a_pool_of_moleculenet_is_read_from_its_file(tmp_path):
    text = "CMPD_CHEMBLID,exp,smiles\nA,1.5,CCO\nB,,CC\nC,-2,CCC\n"
    (tmp_path / "Lipophilicity.csv").write_text(text)
    smiles, rewards = load_pool("lipophilicity", tmp_path)
    assert smiles == ["CCO", "CCC"]
    assert rewards.tolist() == [1.5, -2.0]


def test_the_peer_has_the_kernel_and_the_choices_of_fingerprints():
    rng = np.random.default_rng(0)
    bits = rng.random((40, 64)) < 0.2
    arms = torch.tensor(bits, dtype=torch.double)
    rewards = arms @ torch.linspace(-1, 1, 64, dtype=torch.double)
    peer = TanimotoQLogEI(arms, torch.Generator().manual_seed(0))
    told = torch.arange(12)
    peer.tell(told, rewards[told])
    kernel = peer.model.covar_module
    np.testing.assert_allclose(
        kernel(peer.points).to_dense().detach() / kernel.outputscale.item(),
        1 - cdist(bits, bits, "jaccard"),
        atol=1e-12,
    )
    for player in (peer, Suggest(arms, torch.Generator().manual_seed(0))):
        if player is not peer:
            player.tell(told, rewards[told])
        picks = player.ask(4)
        assert len(set(picks.tolist())) == 4
        assert not set(picks.tolist()) & set(told.tolist())
        assert rewards[picks].mean() > rewards.mean()


def test_fingerprints_are_made_in_both_ways():
    table = screening.fingerprints(40)
    assert table["way"].tolist() == ["read_molecules", "RDKit's loop"]
    assert (table["molecules"] == 40).all()
    # The processes' own time is in it: they load RDKit.
    assert (table["cpu_seconds"] > 0.01).all()


def test_a_run_counts_the_best_that_were_measured(monkeypatch):
    class InOrder:
        def __init__(self, arms, generator):
            self.next = 0

        def tell(self, indices, rewards):
            pass

        def ask(self, size):
            self.next += size
            return torch.arange(self.next - size, self.next)

    monkeypatch.setattr(screening, "NUM_FIRST", 1)
    arms = torch.zeros(300, 8)
    # The best three are 0, 7 and 290; the first batches are 0 to 9.
    rewards = torch.zeros(300)
    rewards[[0, 7, 290]] = torch.tensor([3.0, 2.0, 1.0])
    monkeypatch.setattr(torch, "randperm", lambda *args, **options: torch.tensor([5]))
    row = screening._play(arms, rewards, InOrder, 0, 11)
    assert row["found"] == pytest.approx(2 / 3)
    assert row["seconds_per_batch"] >= 0
