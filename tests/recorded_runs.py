"""Record the picks of short campaigns, and compare them with those of another commit.

A refactoring must not change what bandits pick. Record at the earlier commit, change
the code, and compare on the same machine::

    python -m tests.recorded_runs record picks.json
    python -m tests.recorded_runs compare picks.json

``compare`` prints each campaign whose picks differ, with the first difference. If the
policy compares upper confidence bounds, it also prints the difference between the
bounds of the two arms: below 1e-9 they are a near-tie, which rounding decides. The exit
code is 1 if any campaign differs.

The last bits of a bound differ between processors, so no test depends on recorded
picks.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel
from torch import Tensor

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
from botorch_bkb.acquisition import (
    ChowdhuryGopalanWidth,
    NormDoubling,
    PracticalBKBWidth,
    TVWidth,
)
from botorch_bkb.bandits import (
    BoxThompsonPolicy,
    BoxUCBPolicy,
    FiniteArmBandit,
    ThompsonPolicy,
    UCBPolicy,
)
from botorch_bkb.models.kernels import TanimotoKernel
from botorch_bkb.optim import FixedSize, SumRule


NOISE = 0.05
NEAR_TIE = 1e-9
Batch = list[Any]  # of arms, or of points


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


ARMS = torch.rand(150, 2, generator=stream(1), dtype=torch.double)
# Each row of the second half is also in the first half.
TWINS = torch.cat([ARMS[:40], ARMS[:40]])
BITS = (torch.rand(120, 32, generator=stream(2)) < 0.3).double()
BITS[:, 0] = 1.0
BOX = torch.tensor([[0.0, -1.0], [1.0, 2.0]], dtype=torch.double)


def truth(rows: Tensor) -> Tensor:
    return torch.sin(5 * rows[:, 0]) + torch.cos(4 * rows[:, 1] + rows[:, 0])


def rbf() -> Kernel:
    kernel = RBFKernel().double()
    kernel.lengthscale = 0.3
    return kernel


def matern() -> Kernel:
    kernel = MaternKernel(nu=1.5).double()
    kernel.lengthscale = 0.4
    return kernel


class ReachedError(Exception):
    """The campaign is about to ask for the batch that it was to stop at."""


class Campaign:
    """A bandit, the rewards of its pulls, and the batches that it has asked for.

    Args:
        make: Makes the bandit.
        stop: The number of the batch before which the campaign stops; None for none.
    """

    def __init__(self, make: Callable[[], Any], stop: int | None = None) -> None:
        self.make, self.bandit = make, make()
        self.stop = stop
        self.noises = stream(3)
        self.chance = stream(4)
        self.batches: list[Batch] = []

    def ask(self, *args: Any, **options: Any) -> Tensor:
        if len(self.batches) == self.stop:
            raise ReachedError
        picks: Tensor = self.bandit.ask(*args, **options)
        is_box = picks.is_floating_point()
        self.batches.append((picks.round(decimals=6) if is_box else picks).tolist())
        return picks

    def measure(self, picks: Tensor) -> Tensor:
        is_box = picks.is_floating_point()
        values = truth(picks if is_box else self.bandit.arms[picks])
        noises = torch.randn(len(picks), generator=self.noises, dtype=torch.double)
        sign = 1.0 if self.bandit.maximize else -1.0
        return sign * values + NOISE**0.5 * noises

    def tell(self, picks: Tensor, **options: Any) -> None:
        self.bandit.tell(picks, self.measure(picks), **options)

    def add_observations(self, picks: Tensor) -> None:
        self.bandit.add_observations(picks, self.measure(picks))


Script = Callable[[Campaign], None]


def plain(
    campaign: Campaign, rounds: int = 40, size: int | None = None, **options: Any
) -> None:
    for _ in range(rounds):
        sizes = [] if size is None else [size]
        campaign.tell(campaign.ask(*sizes, **options))


def warm(campaign: Campaign, count: int = 30, rounds: int = 6, **options: Any) -> None:
    """Begin with results that nobody asked for."""
    campaign.add_observations(torch.arange(count))
    plain(campaign, rounds, **options)


def late(campaign: Campaign, rounds: int = 15, size: int = 3) -> None:
    """Results come late and in another order, or never; some pulls fail."""
    bandit = campaign.bandit
    waiting: list[int] = []
    for number in range(rounds):
        campaign.ask(size)
        waiting = [*(set(bandit.pending) - set(waiting)), *waiting]
        ids = waiting[-3:]
        picks = torch.stack([torch.as_tensor(bandit.pending[key]) for key in ids])
        if number % 3 == 2:
            bandit.fail(picks[2:], pull_ids=ids[2:])
        else:
            campaign.tell(picks[:2], pull_ids=ids[:2])
        waiting = [key for key in waiting if key in bandit.pending]


def withdrawn(campaign: Campaign, rounds: int = 8) -> None:
    """Every third result is taken back; some are measured again."""
    for number in range(rounds):
        picks = campaign.ask()
        campaign.tell(picks)
        if number % 3 == 2:
            campaign.bandit.withdraw(picks[:1])
            if number % 2:
                campaign.tell(picks[:1])
            else:
                campaign.bandit.fail(picks[:1])
    plain(campaign, 4)


def masked(campaign: Campaign, rounds: int = 15, *sizes: int) -> None:
    """Each round offers a part of the arms."""
    for _ in range(rounds):
        num_arms = len(campaign.bandit.arms)
        available = torch.rand(num_arms, generator=campaign.chance) < 0.4
        campaign.tell(campaign.ask(*sizes, available=available))


def contexts(campaign: Campaign, rounds: int = 12, **options: Any) -> None:
    """Each round brings arms of its own, some of which are in the table."""
    for _ in range(rounds):
        new = torch.rand(20, 2, generator=campaign.chance, dtype=torch.double)
        arms = torch.cat([new, campaign.bandit.arms[:5]])
        campaign.tell(campaign.ask(arms=arms, **options))
    plain(campaign, 3)


def changing(campaign: Campaign, **options: Any) -> None:
    """Arms are added, retired and brought back; others have started some pulls."""
    bandit = campaign.bandit
    plain(campaign, 4, **options)
    bandit.add_arms(torch.rand(30, 2, generator=campaign.chance, dtype=torch.double))
    bandit.retire_arms(torch.arange(0, 60))
    plain(campaign, 4, **options)
    bandit.add_arms(bandit.arms[20:25])
    bandit.add_pending(torch.tensor([70, 71, 71]))
    plain(campaign, 4, **options)


def saved(campaign: Campaign, rounds: int = 4) -> None:
    """The campaign goes on in a bandit that has loaded the state, twice."""
    for _ in range(2):
        plain(campaign, rounds)
        campaign.ask()
        with tempfile.TemporaryDirectory() as folder:
            campaign.bandit.save(Path(folder) / "state")
            campaign.bandit = campaign.make()
            campaign.bandit.load(Path(folder) / "state")
    plain(campaign, rounds)


def asked_for_more(campaign: Campaign, rounds: int = 6, size: int = 4) -> None:
    """Every answer is asked for between ask and tell, and between tell and ask."""
    bandit = campaign.bandit
    for _ in range(rounds):
        picks = campaign.ask(size)
        bandit.predict(picks)
        campaign.tell(picks)
        if isinstance(bandit, FiniteArmBandit):
            bandit.best_arm()
            bandit.confidence_bound()
        else:
            bandit.best_point()
        bandit.predict(picks)
        bandit.maximizer_distribution(8, generator=stream(6))


def timed(campaign: Campaign, rounds: int = 15, size: int = 2) -> None:
    """Times are given and irregular, and one result of each batch is late."""
    time, late = 0.0, None
    for _ in range(rounds):
        time += 0.2 + 2 * float(torch.rand(1, generator=campaign.chance))
        picks = campaign.ask(size, time=time)
        campaign.tell(picks[:1], time=time + 0.1)
        if late is not None:
            campaign.tell(late)
        late = picks[1:]


@dataclass(frozen=True)
class Run:
    """A bandit and what happens to it."""

    make: Callable[[], Any]
    script: Script = plain

    def play(self, stop: int | None = None) -> Campaign:
        """Play the campaign, up to a batch if one is named."""
        campaign = Campaign(self.make, stop)
        with suppress(ReachedError):
            self.script(campaign)
        return campaign


def given(bandit: Callable[..., Any], script: Script = plain, **options: Any) -> Run:
    """Return a run in which the bandit knows kernel and noise."""
    arms, kernel = options.pop("arms", ARMS), options.pop("kernel", rbf)
    noise = options.pop("noise", NOISE)
    return Run(
        lambda: bandit(arms, kernel(), noise, generator=stream(), **deepcopy(options)),
        script,
    )


def learned(bandit: Callable[..., Any], script: Script, **options: Any) -> Run:
    """Return a run in which the bandit learns what no option gives."""
    arms = options.pop("arms", ARMS)
    return Run(lambda: bandit(arms, generator=stream(), **deepcopy(options)), script)


few = partial(plain, rounds=8, size=4)
few_batches = partial(plain, rounds=12, size=10)
drifting = partial(given, TVGPUCB, forgetting_rate=0.03)
box_ucb = partial(
    given, BoxBandit, arms=BOX, policy=BoxUCBPolicy(ChowdhuryGopalanWidth())
)
box_draws = partial(
    given, BoxBandit, arms=BOX, policy=BoxThompsonPolicy(0.05, 1.0), oversampling=2.0
)
learned_box = partial(learned, BoxBandit, arms=BOX)
EXACT_RUNS = {
    "GPUCB": given(GPUCB),
    "GPUCB, Matern": given(GPUCB, kernel=matern),
    "GPUCB, Tanimoto": given(GPUCB, arms=BITS, kernel=TanimotoKernel),
    "GPUCB, batches of fixed size": given(
        GPUCB, partial(plain, rounds=8), batch_rule=FixedSize(5)
    ),
    "GPUCB, sum rule": given(GPUCB, few_batches, batch_rule=SumRule(), noise=1.0),
    "GPUCB, identical arms": given(GPUCB, arms=TWINS, max_repeats=2),
    "GPUCB, minimize": given(GPUCB, maximize=False),
    "best arm": given(GPBandit, few),
    "GPUCB, doubled norm": given(GPUCB, confidence=NormDoubling(PracticalBKBWidth())),
    "GPUCB, warm": given(GPUCB, warm),
    "GPUCB, late": given(GPUCB, late, batch_rule=FixedSize(3)),
    "GPUCB, masked": given(GPUCB, masked),
    "GPUCB, contexts": given(GPUCB, contexts),
    "GPUCB, saved": given(GPUCB, saved),
    "GPUCB, asked for more": given(GPUCB, asked_for_more, batch_rule=FixedSize(4)),
    "GPBUCB": given(GPBUCB, few_batches, noise=1.0),
    "GPBUCB, withdrawn": given(GPBUCB, withdrawn, noise=1.0),
    "GPBUCB, changing arms": given(GPBUCB, partial(changing, size=6), noise=1.0),
    "GPBUCB, late": given(GPBUCB, late, batch_rule=FixedSize(3)),
    "TVGPUCB": drifting(),
    "TVGPUCB, timed": drifting(timed, batch_rule=FixedSize(2)),
    "TVGPUCB, late": drifting(late, batch_rule=FixedSize(3)),
    "TVGPUCB, withdrawn": drifting(withdrawn),
    "TVGPUCB, contexts": drifting(contexts),
    "TVGPUCB, saved": drifting(saved),
    "TVGPUCB, sparse": drifting(timed, sparse=True, batch_rule=FixedSize(2)),
    "RGPUCB": given(RGPUCB, block_size=8),
    "RGPUCB, timed": given(RGPUCB, timed, block_size=8, batch_rule=FixedSize(2)),
}
LEARNED_RUNS = {
    "learned": learned(GPBandit, partial(plain, rounds=6, size=4)),
    "learned, regret": learned(GPBandit, partial(plain, rounds=15), goal="regret"),
    "learned noise": learned(GPBandit, few, covar_module=rbf()),
    "learned, Tanimoto": learned(
        GPBandit, few, arms=BITS, covar_module=TanimotoKernel()
    ),
    "learned, warm": learned(GPBandit, partial(warm, size=5)),
    "learned, late": learned(GPBandit, partial(late, rounds=7)),
    "learned, withdrawn": learned(GPBandit, withdrawn),
    "learned, masked": learned(GPBandit, lambda c: masked(c, 6, 3), max_repeats=2),
    "learned, saved": learned(GPBandit, partial(saved, rounds=2)),
    "learned, asked for more": learned(GPBandit, asked_for_more),
    "learned TVGPUCB": learned(
        GPBandit,
        partial(plain, rounds=10),
        arms=ARMS[:60],
        forgetting_rate="learn",
        confidence=TVWidth(),
    ),
    "learned GPThompsonSampling": learned(GPBandit, few, policy=ThompsonPolicy()),
}
SAMPLED_RUNS = {
    "BKB": given(BKB),
    "BKB, per pull": given(BKB, inclusion="per_pull"),
    "BKB, ceiling": given(BKB, max_inducing=8),
    "BKB, contexts": given(BKB, contexts),
    "BBKB": given(BBKB, few_batches, noise=1.0),
    "BBKB, coupled": given(BBKB, few_batches, noise=1.0, resampling="coupled"),
    "BBKB, saved": given(BBKB, saved, batch_rule=FixedSize(4)),
    "BBKB, late": given(BBKB, late, resampling="coupled", batch_rule=FixedSize(3)),
    "BBKB, warm in blocks": given(
        BBKB,
        partial(warm, count=400, size=4),
        arms=torch.rand(500, 2, generator=stream(7), dtype=torch.double),
        batch_rule=FixedSize(4),
    ),
    "GPThompsonSampling": given(GPThompsonSampling, few, batch_rule=FixedSize(4)),
    "GPThompsonSampling, late": given(
        GPThompsonSampling, late, batch_rule=FixedSize(3)
    ),
    "GPThompsonSampling, joint": given(
        GPThompsonSampling,
        few,
        covariance="full",
        max_repeats=2,
        batch_rule=FixedSize(4),
    ),
    "EpsilonGreedy": given(EpsilonGreedy),
    "EpsilonGreedy, asked for more": given(
        EpsilonGreedy, asked_for_more, batch_rule=FixedSize(4)
    ),
    "UniformRandom": given(UniformRandom, few, max_repeats=1, batch_rule=FixedSize(4)),
}
BOX_RUNS = {
    "BoxGPUCB": box_ucb(partial(plain, rounds=6)),
    "BoxGPUCB, late": box_ucb(partial(late, rounds=4)),
    "learned BoxGPUCB": learned_box(partial(plain, rounds=8)),
    "learned BoxGPUCB, saved": learned_box(partial(saved, rounds=2)),
    "BoxThompsonSampling": box_draws(partial(plain, rounds=5, size=4)),
    "BoxThompsonSampling, asked for more": box_draws(partial(asked_for_more, rounds=3)),
    "learned BoxThompsonSampling": learned_box(
        partial(plain, rounds=3, size=4), policy=BoxThompsonPolicy(), oversampling=2.0
    ),
}
RUNS = EXACT_RUNS | LEARNED_RUNS | SAMPLED_RUNS | BOX_RUNS


def record() -> dict[str, list[Batch]]:
    """Return the batches of every campaign."""
    return {name: run.play().batches for name, run in RUNS.items()}


def difference(run: Run, expected: list[Batch]) -> str | None:
    """Return how the picks of a campaign differ from others; None if they do not."""
    batches = run.play().batches
    if batches == expected:
        return None
    for number, (batch, other) in enumerate(zip(batches, expected, strict=False)):
        for place, (pick, old) in enumerate(zip(batch, other, strict=False)):
            if pick != old:
                gap = bound_gap(run, number, batch[:place], pick, old)
                return f"batch {number}, pick {place}: {old}, now {pick}; {gap}"
        if len(batch) != len(other):
            return f"batch {number} has {len(other)} picks, now {len(batch)}"
    return f"{len(expected)} batches, now {len(batches)}"


def bound_gap(run: Run, number: int, before: Batch, pick: Any, old: Any) -> str:
    """Say how far the confidence bounds of two arms are apart.

    As the policy sees them: pulls that are pending, and those of the batch so far, have
    brought their posterior means.

    Args:
        run: The campaign.
        number: The number of the batch.
        before: Its first picks.
        pick: The next one.
        old: What was picked in its place.
    """
    bandit = run.play(stop=number).bandit
    if not isinstance(getattr(bandit, "policy", None), UCBPolicy):
        return "no bounds are compared"
    if max(pick, old) >= len(bandit.arms):
        return "an arm of this round alone"
    out = [*bandit.pending.values(), *before]
    if out:
        bandit.add_observations(out, bandit.predict(out)[0])
    new, other = bandit.confidence_bound([pick, old]).tolist()
    word = "a near-tie" if abs(new - other) < NEAR_TIE else "no tie"
    return f"bounds {abs(new - other):.1e} apart, {word}"


def main(arguments: list[str] | None = None) -> int:
    """Record or compare; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=["record", "compare"])
    parser.add_argument("file", type=Path, metavar="FILE.json")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if args.action == "record":
        args.file.write_text(json.dumps(record(), indent=1))
        return 0
    expected = json.loads(args.file.read_text())
    differences = {
        name: "not recorded"
        if name not in expected
        else difference(run, expected[name])
        for name, run in RUNS.items()
    }
    found = {name: text for name, text in differences.items() if text is not None}
    for name, text in found.items():
        print(f"{name}: {text}")
    print(f"{len(RUNS) - len(found)} of {len(RUNS)} campaigns have the same picks")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
