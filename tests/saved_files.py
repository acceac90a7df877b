"""Files of bandits, a model and an Ax experiment, written once by version 1.0.0.

Later versions must load them. The files in ``tests/files_1_0_0`` were written by ::

    python -m tests.saved_files tests/files_1_0_0

with the package of version 1.0.0. Do not write them again with another version.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from botorch_bkb import (
    BBKB,
    BKB,
    BoxBandit,
    EpsilonGreedy,
    GPBandit,
    GPBUCB,
    GPThompsonSampling,
    GPUCB,
    RGPUCB,
    TVGPUCB,
    UniformRandom,
)
from botorch_bkb.acquisition import NormDoubling, PracticalBKBWidth
from botorch_bkb.arms import ProductArms
from botorch_bkb.models import SingleTaskDTCGP
from tests.recorded_runs import ARMS, BITS, BOX, NOISE, rbf, stream, truth


VERSION_1_0_0 = Path(__file__).parent / "files_1_0_0"
LISTS = {
    "ligand": ["A", "B", "C", "D"],
    "solvent": ["S", "T", "U", "V", "W"],
    "T": torch.tensor([[20.0], [40.0], [60.0]]),
}


def given(bandit: Callable[..., Any], **options: Any) -> Callable[[], Any]:
    return lambda: bandit(ARMS, rbf(), NOISE, generator=stream(), **options)


MAKERS: dict[str, Callable[[], Any]] = {
    "BKB": given(BKB),
    "BBKB": given(BBKB),
    "BBKB_coupled": given(BBKB, resampling="coupled"),
    "GPUCB": given(GPUCB),
    "GPUCB_doubled_norm": given(GPUCB, confidence=NormDoubling(PracticalBKBWidth())),
    "GPBUCB": given(GPBUCB),
    "GPThompsonSampling": given(GPThompsonSampling),
    "TVGPUCB": given(TVGPUCB, forgetting_rate=0.03),
    "TVGPUCB_sparse": given(TVGPUCB, forgetting_rate=0.03, sparse=True),
    "RGPUCB": given(RGPUCB, block_size=8),
    "EpsilonGreedy": given(EpsilonGreedy),
    "UniformRandom": lambda: UniformRandom(ARMS, generator=stream()),
    "GPBandit": lambda: GPBandit(ARMS, generator=stream()),
    "GPBandit_minimize": lambda: GPBandit(ARMS, maximize=False, generator=stream()),
    "GPBandit_drifting": lambda: GPBandit(
        ARMS, forgetting_rate=0.05, generator=stream()
    ),
    "GPBandit_fingerprints": lambda: GPBandit(BITS, generator=stream()),
    "GPBandit_products": lambda: GPBandit(ProductArms(LISTS), generator=stream()),
    "BoxBandit": lambda: BoxBandit(BOX, rbf(), NOISE, generator=stream()),
    "BoxBandit_learned": lambda: BoxBandit(BOX, generator=stream()),
}


def rewards_of(bandit: Any, picks: torch.Tensor) -> torch.Tensor:
    """Return the rewards of arms, or of points, without noise."""
    if picks.is_floating_point():
        return truth(picks)
    return truth(torch.stack([picks % 7, picks % 5], dim=-1) / 7.0)


def played(make: Callable[[], Any]) -> Any:
    """Return a bandit with results, a failed and two pending pulls."""
    bandit = make()
    with_size = isinstance(bandit, GPBandit | BoxBandit)
    for _ in range(7):
        picks = bandit.ask(4) if with_size else bandit.ask()
        bandit.tell(picks, rewards_of(bandit, picks))
    picks = bandit.ask(1)
    bandit.fail(picks)
    bandit.ask(1)
    bandit.ask(1)
    return bandit


def answers(bandit: Any) -> dict[str, Any]:
    """Return what a bandit says, as JSON."""
    pending: dict[str, Any]
    if isinstance(bandit, BoxBandit):
        points = torch.stack([BOX[0], BOX.mean(dim=0), BOX[1]])
        mean, std = bandit.predict(points)
        pending = {str(key): point.tolist() for key, point in bandit.pending.items()}
    else:
        mean, std = bandit.predict(torch.arange(10))
        pending = {str(key): int(arm) for key, arm in bandit.pending.items()}
    return {"mean": mean.tolist(), "std": std.tolist(), "pending": pending}


def trained_model() -> SingleTaskDTCGP:
    """Return a model with twelve inducing points."""
    model = SingleTaskDTCGP(
        ARMS[:40], truth(ARMS[:40]).unsqueeze(-1), covar_module=rbf()
    )
    model.likelihood.noise = NOISE
    model.set_inducing_points(ARMS[:12])
    return model


def write(folder: Path) -> None:
    """Write the files of all bandits, with their answers, and of Ax experiments."""
    folder.mkdir(exist_ok=True)
    said = {}
    for name, make in MAKERS.items():
        bandit = played(make)
        bandit.save(folder / f"{name}.bkb")
        said[name] = answers(bandit)
    (folder / "answers.json").write_text(json.dumps(said, indent=1))

    from tests.integrations.ax_clients import grid_node, new_client, play

    for factory, name in {"BBKB": "", "GPBandit": "_learned"}.items():
        client = new_client(grid_node(factory))
        play(client, 5)
        client.get_next_trials(1)
        client.save_to_json_file(str(folder / f"ax_experiment{name}.json"))
    torch.save(trained_model().state_dict(), folder / "model.pt")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
