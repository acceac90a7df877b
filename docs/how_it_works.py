"""Draw the picture of the page "How it works": ``python docs/how_it_works.py``."""

from pathlib import Path

import torch
from matplotlib.figure import Figure

from botorch_bkb import GPBandit
from botorch_bkb.bandits.progress import DEVIATIONS_OF_95_PERCENT


NUM_CANDIDATES = 200
BATCH_SIZE = 3
NUM_ROUNDS = 3


def draw() -> Figure:
    """Return one panel per round: results, predictions, and the next batch."""
    settings = torch.linspace(0, 1, NUM_CANDIDATES, dtype=torch.double).unsqueeze(-1)
    x = settings.squeeze(-1)
    truth = 20 + 55 * bump(x, 0.72, 0.16) + 35 * bump(x, 0.2, 0.12)
    noise = torch.Generator().manual_seed(3)
    bandit = GPBandit(settings, generator=torch.Generator().manual_seed(4))
    figure = Figure(figsize=(6.6, 3.6), layout="constrained")
    panels = figure.subplots(1, NUM_ROUNDS, sharey=True)
    measured: list[int] = []
    batch = bandit.ask(BATCH_SIZE + 1)
    for axes in panels:
        results = truth[batch] + torch.randn(len(batch), generator=noise)
        bandit.tell(batch, results)
        measured += zip(x[batch].tolist(), results.tolist(), strict=True)
        mean, variance = bandit.predict()
        half = DEVIATIONS_OF_95_PERCENT * variance.sqrt()
        batch = bandit.ask(BATCH_SIZE)
        axes.fill_between(x, mean - half, mean + half, color="C0", alpha=0.25, lw=0)
        axes.plot(x, mean, color="C0")
        axes.plot(x, truth, color="0.4", ls="--", lw=1)
        axes.plot(*zip(*measured, strict=True), "o", color="black", ms=5)
        for place in x[batch].tolist():
            axes.axvline(place, color="C1", ls=":")
        axes.set_title(f"after {len(measured)} results", fontsize=12)
        axes.set_xlabel("setting", fontsize=12)
        axes.tick_params(labelsize=11)
        axes.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
        axes.set_ylim(0, 110)
    panels[0].set_ylabel("yield", fontsize=12)
    panels[0].plot([], [], "o", color="black", label="result")
    panels[0].plot([], [], color="C0", label="prediction")
    panels[0].fill_between([], [], color="C0", alpha=0.25, label="95 % interval")
    panels[0].plot([], [], color="0.4", ls="--", label="truth (unknown)")
    panels[0].plot([], [], color="C1", ls=":", label="next batch")
    figure.legend(loc="outside lower center", ncols=3, fontsize=12, frameon=False)
    return figure


def bump(x: torch.Tensor, center: float, width: float) -> torch.Tensor:
    """Return a smooth peak of height 1."""
    return torch.exp(-(((x - center) / width) ** 2))


if __name__ == "__main__":
    path = Path(__file__).with_suffix(".png")
    draw().savefig(path, dpi=120, metadata={"Software": None})
