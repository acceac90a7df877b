"""Dense, slow, plain NumPy answers: the oracle. Imports nothing of the package.

Everything works on Gram matrices (the caller takes them from a kernel object) and is
recomputed from scratch at every pull. Equations: [BKB] is the COLT paper, [BBKB] the
batch paper, and "DESIGN n" a section of the design. ``noise`` is lambda. Variances are
true GP variances; the papers' sigma-tilde^2, the leverage score, is variance / lambda.

By default all functions follow DESIGN. Where the package departs from it on purpose,
that is an option here; ``run_bandit`` and ``greedy_batch`` have the package's defaults.
"""

import math
from typing import NamedTuple

import numpy as np


# Posteriors: [BBKB] (1), (2), DESIGN 3 ------------------------------------------------


def matern_covariance(squared):
    """Matern-5/2 of unit variance, of squared distances in lengthscales."""
    r = np.sqrt(5 * squared)
    return (1 + r + r**2 / 3) * np.exp(-r)


def composite_covariance(x, z, parts):
    """Sum of Matern-5/2 kernels, one of each lengthscale and variance."""
    difference = x[:, None] - z[None]
    return sum(
        variance * matern_covariance(((difference / lengthscale) ** 2).sum(axis=-1))
        for lengthscale, variance in parts
    )


def anova_covariance(x, z, lengthscales, weights):
    """Product over features of one plus a weighted RBF kernel, of unit variance."""
    alone = np.exp(-0.5 * ((x[:, None] - z[None]) / lengthscales) ** 2)
    return ((1 + weights * alone) / (1 + weights)).prod(axis=-1)


def nystrom_embedding(K_ss, K_sx, rtol=1e-12):
    """Return z(x) = K_ss^{+/2} k_s(x), one column per x; [BBKB] section 2."""
    values, vectors = np.linalg.eigh(K_ss)
    kept = values > rtol * values.max(initial=0.0)
    root = vectors[:, kept] / np.sqrt(values[kept])
    return root @ (vectors[:, kept].T @ K_sx)


def nystrom_gram(K_ss, K_sx, rtol=1e-12):
    """Return Q = Z^T Z = K_xs K_ss^+ K_sx."""
    Z = nystrom_embedding(K_ss, K_sx, rtol)
    return Z.T @ Z


def dtc_parts(K_ss, K_sp, K_sx, K_xx, weights, targets, rtol=1e-12):
    """Return mean, covariance, and the projected covariance, of the DTC posterior.

    With W = diag(weights) and V' = Z^T W Z + I (that is V / lambda for equal noise),

        mean = z^T V'^{-1} Z^T W targets,   projected = z^T V'^{-1} z',
        covariance = k(x, x') - z^T z' + projected.
    """
    Z = nystrom_embedding(K_ss, np.hstack([K_sp, K_sx]), rtol)
    Z_p, Z_x = Z[:, : K_sp.shape[1]], Z[:, K_sp.shape[1] :]
    V = np.eye(len(Z)) + (Z_p * weights) @ Z_p.T
    mean = Z_x.T @ np.linalg.solve(V, Z_p @ (weights * targets))
    projected = Z_x.T @ np.linalg.solve(V, Z_x)
    return mean, K_xx - Z_x.T @ Z_x + projected, projected


def dtc_posterior(K_ss, K_sp, K_sx, K_xx, weights, targets, rtol=1e-12):
    """Return mean and covariance at x of the DTC posterior; [BBKB] (1), (2).

    ``weights`` are n_i / lambda per unique input p (in general sums of 1 / Yvar), and
    ``targets`` the precision-weighted mean rewards there.
    """
    return dtc_parts(K_ss, K_sp, K_sx, K_xx, weights, targets, rtol)[:2]


def exact_posterior(K_pp, K_px, K_xx, noise_per_pull, y):
    """Return mean and covariance of the exact GP, one row per pull; [BKB] (1), (2)."""
    gain = np.linalg.solve(K_pp + np.diag(noise_per_pull), K_px).T
    return gain @ y, K_xx - gain @ K_px


def noise_log_likelihood(gram, noise_per_pull, y):
    """Return log N(y; 0, K + diag(noise)), one row per pull."""
    covariance = gram + np.diag(noise_per_pull)
    log_det = np.linalg.slogdet(covariance)[1]
    quadratic = y @ np.linalg.solve(covariance, y)
    return -0.5 * (quadratic + log_det + len(y) * math.log(2 * math.pi))


class Arms:
    """The posterior over all arms of a Gram matrix, given S, counts and sums."""

    def __init__(self, gram, noise):
        self.gram, self.noise = gram, noise

    def _blocks(self, S, counts):
        S, p = np.asarray(S, dtype=int), np.flatnonzero(counts)
        return p, self.gram[np.ix_(S, S)], self.gram[np.ix_(S, p)], self.gram[S]

    def parts(self, S, counts, sums):
        """Return mean, covariance and projected covariance of all arms."""
        p, K_ss, K_sp, K_sa = self._blocks(S, counts)
        weights, targets = counts[p] / self.noise, sums[p] / counts[p]
        return dtc_parts(K_ss, K_sp, K_sa, self.gram, weights, targets)

    def posterior(self, S, counts, sums):
        """Return mean, variance and projected covariance of all arms."""
        mean, covariance, projected = self.parts(S, counts, sums)
        return mean, np.diag(covariance), projected

    def log_det(self, S, counts):
        """Return log det(I + Q / lambda) over the pulls, merged; [BKB] (6), (7)."""
        p, K_ss, K_sp, _ = self._blocks(S, counts)
        root = np.sqrt(counts[p] / self.noise)
        Q = nystrom_gram(K_ss, K_sp) * np.outer(root, root)
        return np.linalg.slogdet(np.eye(len(p)) + Q)[1]


# Groups, controls and earlier campaigns: DESIGN section 5 -----------------------------


class GroupedGP:
    """The Gaussian process of ``n`` results in groups and campaigns, written out.

    Args:
        gram: The ``A x A`` prior covariances of the arms.
        labels: ``n x 4`` numbers of arm, group, campaign and control, -1 for none.
            Groups and controls of different campaigns are different.
        y: The ``n`` centered results.
        noise: Their noise variances.
        tau: The standard deviation of the offset of a group.
        rho: That of a campaign's discrepancy, in prior ones, by campaign.
        S: Inducing arms, whose z^T z takes the place of k; None for the exact process.
        wide: The standard deviation of the level of a campaign, and of a control.
        kept: The results that count; offsets of groups average to zero over all of
            arms.
    """

    def __init__(
        self, gram, labels, y, noise, tau, rho, S=None, wide=10.0, kept=slice(None)
    ):
        Q = gram if S is None else nystrom_gram(gram[np.ix_(S, S)], gram[S])
        arm, group, campaign, _ = labels.T
        self.gram, self.Q, self.y, self.noise = gram, Q, y[kept], noise[kept]
        self.cross = np.where(arm >= 0, Q[:, arm], 0.0)[:, kept]  # A x n
        K = np.where(np.outer(arm >= 0, arm >= 0), Q[np.ix_(arm, arm)], 0.0)
        same = campaign[:, None] == campaign
        rho_squared = np.append(rho, 0.0)[campaign] ** 2  # that of no campaign is last
        # Whether two results share a group, a campaign, a control; and the variances.
        shared = [same & (own[:, None] == own) & (own >= 0) for own in labels.T[1:]]
        both = np.outer(group >= 0, group >= 0) & same
        both = both & (arm >= 0)  # controls do not count
        center = np.eye(len(y)) - both / both.sum(axis=1, keepdims=True).clip(1)
        shared[0] = center @ shared[0] @ center.T
        self.effects = list(zip(shared, (tau**2, wide**2, wide**2), strict=True))
        self.covariance = K * (1 + rho_squared * same)
        self.covariance += sum(variance * both for both, variance in self.effects)
        self.covariance = self.covariance[kept][:, kept]

    def posterior(self):
        """Return mean and covariance of all arms, without offset and discrepancy."""
        blocks = self.covariance, self.cross.T, self.Q
        mean, covariance = exact_posterior(*blocks, self.noise, self.y)
        return mean, covariance + self.gram - self.Q

    def offsets(self, results, kind):
        """Return mean and covariance of results' offsets: group, campaign, control."""
        both, variance = self.effects[kind]
        cross, prior = both[:, results], both[np.ix_(results, results)]
        blocks = self.covariance, variance * cross, variance * prior
        return exact_posterior(*blocks, self.noise, self.y)

    def offset(self, result, kind):
        """Return mean and variance of a result's offset."""
        return [each.item() for each in self.offsets([result], kind)]

    def log_likelihood(self):
        """Return the log marginal likelihood."""
        return noise_log_likelihood(self.covariance, self.noise, self.y)


# Resampling: lines 12 to 16 of [BBKB] algorithm 1, DESIGN 4 ---------------------------


def inclusion_probability(leverage, counts, oversampling, merged=False):
    """Return 1 - (1 - p)^n with p = min(1, q tau): each of n pulls drawn on its own.

    ``merged``, the law of the authors' code and the package's default: min(1, n q tau).
    """
    if merged:
        return np.minimum(1.0, counts * oversampling * leverage)
    return 1.0 - (1.0 - np.minimum(1.0, oversampling * leverage)) ** counts


def splitmix64(seed, num):
    """Return the first outputs of SplitMix64 by Python's own integers."""
    outputs, state = [], seed
    for _ in range(num):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        z = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        outputs.append(z ^ (z >> 31))
    return outputs


def coupled_uniforms(seed, num_arms):
    """Return the number of each arm: the middle of one of 2^52 intervals."""
    return np.array([(z // 2**12 + 0.5) / 2**52 for z in splitmix64(seed, num_arms)])


def resample(leverage, counts, oversampling, uniforms, merged=False):
    """Return the kept positions; the one with the largest score if none is drawn."""
    kept = uniforms < inclusion_probability(leverage, counts, oversampling, merged)
    return np.flatnonzero(kept) if kept.any() else np.array([np.argmax(leverage)])


# Confidence widths w: DESIGN 5. ``xi`` defaults to sqrt(lambda) -----------------------


def practical_bkb_width(t, d_eff, noise, F, delta, xi=None):
    """Return BKB's width in the authors' code; log(t) is 0 before any pull."""
    xi = math.sqrt(noise) if xi is None else xi
    information = math.log(max(t, 1)) * d_eff + math.log(1 / delta)
    return math.sqrt(noise) * F + xi * math.sqrt(information)


def practical_bbkb_width(frozen, ratio, noise, F, delta, xi=None):
    """Return BBKB's width in the authors' code."""
    xi = math.sqrt(noise) if xi is None else xi
    information = ratio * np.log(1 + np.asarray(frozen)).sum() + math.log(1 / delta)
    return math.sqrt(noise) * F + xi * math.sqrt(information)


def chowdhury_gopalan_width(log_det, noise, F, delta, xi=None):
    """Return GP-UCB's width, [BKB] (7)."""
    xi = math.sqrt(noise) if xi is None else xi
    return math.sqrt(noise) * F + xi * math.sqrt(2 * (log_det + math.log(1 / delta)))


def srinivas_width(t, num_arms, noise, delta):
    """Return the width of decision t, theorem 1 of Srinivas et al.; DESIGN 5."""
    beta = 2 * math.log(num_arms * t**2 * math.pi**2 / (6 * delta))
    return math.sqrt(beta * noise)


def log_width(t, noise, c1=0.8, c2=4.0):
    """Return the practical width of decision t, [TV-GP-UCB] section 5."""
    return math.sqrt(max(0.0, c1 * math.log(c2 * t)) * noise)


# One batch: lines 4 to 8 of [BBKB] algorithm 1, DESIGN 6 ------------------------------


def greedy_batch(
    gram,
    noise,
    S,
    counts,
    sums,
    width,
    rule,
    *,
    threshold=2.0,
    size=1,
    cap=None,
    projected=True,
    pending=(),
    pending_scores=(),
    first=None,
    capacity=None,
    max_pulls=2000,
):
    """Choose one batch, recomputing everything at every pull.

    Args:
        gram, noise, S, counts, sums: The state; told pulls only.
        width: w, frozen in the batch, as the mean is.
        rule: fixed (``size``), sum or product; they close past ``threshold``, or at
            ``cap`` pulls.
        projected: Whether pulls enter through the features of S only. If not (with the
            fixed rule, in the exact bandits, and with pending arms) they condition the
            joint Gaussian posterior.
        pending, pending_scores: Arms in flight, and var / lambda of each at the start
            of its own batch: the sums start with them.
        first: The first arm, where it is not the best one.
        capacity: How many more pulls each arm may get.
    """
    arms = Arms(gram, noise)
    now, batch = counts.astype(float), []
    mean, covariance, _ = arms.parts(S, counts, sums)
    start = np.diag(covariance)
    left = np.full(len(gram), np.inf) if capacity is None else capacity.astype(float)
    before = sum(pending_scores)
    factors = [1 + float(score) for score in pending_scores]
    while len(batch) < max_pulls:
        if projected and not len(pending):
            variance = np.diag(arms.parts(S, now, sums)[1])
        else:
            out = [*pending, *batch]
            K = covariance[np.ix_(out, out)] + noise * np.eye(len(out))
            lost = np.linalg.solve(K, covariance[out]) * covariance[out]
            variance = start - lost.sum(axis=0)
        variance = np.maximum(variance, 0.0)
        bounds = mean + width * np.sqrt(variance / noise)  # line 4
        bounds[left <= 0] = -np.inf
        arm = int(np.argmax(bounds)) if batch or first is None else first
        if left[arm] <= 0:
            return batch
        batch.append(arm)
        now[arm] += 1
        left[arm] -= 1
        factors.append(1 + float(start[arm] / noise))
        total = 1 + before + start[batch].sum() / noise  # line 5, squared sigma
        closed = {
            "fixed": len(batch) == size,
            "sum": total > threshold,
            "product": math.prod(factors) > threshold,
        }[rule]
        if closed or len(batch) == cap:
            return batch
    raise RuntimeError(f"The {rule} rule did not close within {max_pulls} pulls.")


# Whole runs: [BKB] figure 1, [BBKB] algorithm 1 ---------------------------------------


class Run(NamedTuple):
    """One entry per batch: its arms, S at its start (sorted), its width."""

    batches: list[list[int]]
    inducing_sets: list[list[int]]
    widths: list[float]

    @property
    def arms(self):
        return [arm for batch in self.batches for arm in batch]

    @property
    def batch_sizes(self):
        return [len(batch) for batch in self.batches]


def named_width(name, t, d_eff, frozen, log_det, ratio, noise, F, delta, num_arms):
    """Return the width of a named schedule; a number is a constant width.

    ``t`` pulls were told: beta_t of BKB chooses x_{t+1}, that of Srinivas et al. and of
    TV-GP-UCB x_t.
    """
    if name == "srinivas":
        return srinivas_width(t + 1, num_arms, noise, delta)
    if name == "log":
        return log_width(t + 1, noise)
    if name == "practical_bkb":
        return practical_bkb_width(t, d_eff, noise, F, delta)
    if name == "practical_bbkb":
        return practical_bbkb_width(frozen, ratio, noise, F, delta)
    if name == "chowdhury_gopalan":
        return chowdhury_gopalan_width(log_det, noise, F, delta)
    return float(name)


def simulate(
    gram,
    noise,
    reward,
    draw_first,
    draw_uniforms,
    num_pulls,
    *,
    rule="sum",
    width=1.0,
    exact=False,
    oversampling=2.0,
    coupled=False,
    threshold=2.0,
    size=1,
    cap=None,
    F=1.0,
    delta=0.05,
    merged=False,
    skip_opening=False,
):
    """Run BKB (fixed, size 1), BBKB, GP-UCB or GP-BUCB (``exact``); returns a ``Run``.

    ``merged`` and ``skip_opening`` (the sum of the practical BBKB width leaves the
    opening draw out) are the package's departures from DESIGN, off here.
    """
    arms, run, A = Arms(gram, noise), Run([], [], []), len(gram)
    counts, sums, frozen = np.zeros(A), np.zeros(A), np.zeros(0)
    S, variance, uniforms = np.zeros(0, dtype=int), np.diag(gram), np.zeros(0)
    options = {"threshold": threshold, "size": size}
    options["projected"] = not (exact or rule == "fixed")
    ratio = 1.0 if rule == "fixed" else threshold  # a fixed size promises no ratio
    while counts.sum() < num_pulls:
        p = np.flatnonzero(counts)
        if exact:
            S = p
        elif len(p):
            if coupled and not len(uniforms):
                uniforms = draw_uniforms(A)
            u = uniforms[p] if coupled else draw_uniforms(len(p))
            tau = variance[p] / noise  # line 13: from before this update
            S = p[resample(tau, counts[p], oversampling, u, merged)]
        variance = arms.posterior(S, counts, sums)[1]
        w = named_width(
            width,
            int(counts.sum()),
            (counts * variance).sum() / noise,  # [BKB] (5)
            frozen[1:] if skip_opening and width == "practical_bbkb" else frozen,
            arms.log_det(S, counts),
            ratio,
            noise,
            F,
            delta,
            A,
        )
        if len(p):
            options |= {"first": None, "cap": cap}
        else:  # line 1
            options |= {"first": draw_first(), "cap": cap if rule == "fixed" else 1}
        batch = greedy_batch(gram, noise, S, counts, sums, w, rule, **options)
        run.batches.append(batch)
        run.inducing_sets.append(S.tolist())
        run.widths.append(w)
        frozen = np.append(frozen, variance[batch] / noise)
        for arm in batch:  # line 17
            counts[arm] += 1
            sums[arm] += reward(arm)
    return run


def run_bandit(*problem, width, merged=True, **options):
    """Return batches and inducing sets by the package's defaults: its departures on."""
    names = {"bkb": "practical_bkb", "bbkb": "practical_bbkb"}
    names |= {"plates": "practical_bbkb", "gpucb": "chowdhury_gopalan"}
    options |= {"width": names.get(width, width), "merged": merged}
    run = simulate(*problem, skip_opening=True, **options)
    return run.batches, run.inducing_sets


def log_warp(y, maximize=True):
    """Return rewards, poor ones on a logarithmic scale, and the inverse function.

    Both are of rewards to be maximized: minus ``y``, unless ``maximize``.
    """
    y = y if maximize else -y
    m = np.sort(y)[(len(y) - 1) // 2]
    s = np.sqrt(((y[y >= m] - m) ** 2).mean())
    fall = s * np.log1p((m - y.min()) / s)

    def undone(w):
        if w >= m:
            return w
        if w < m - fall:  # on a line from the median through the least reward
            slope = (m - y.min()) / fall if fall else 1.0
            return m - slope * (m - w)
        return m - s * (np.exp((m - w) / s) - 1)

    def warp(x):
        return np.array([x if x >= m else m - s * np.log(1 + (m - x) / s) for x in x])

    def undo(w):
        return np.array([*map(undone, w)])

    return warp, undo


# Drift: equations (7) and (8) of [TV-GP-UCB], DESIGN 7 --------------------------------


def time_varying_posterior(gram, noise, rate, arms, times, rewards, decision):
    """Return mean and variance of all arms at a time, from all observations at once."""
    gaps = np.abs(times[:, None] - times[None])
    K = gram[np.ix_(arms, arms)] * (1 - rate) ** (gaps / 2)
    decay = (1 - rate) ** (np.abs(decision - times) / 2)
    cross = gram[arms] * decay[:, None]
    solved = np.linalg.solve(K + noise * np.eye(len(arms)), cross)
    variance = np.diagonal(gram) - (cross * solved).sum(axis=0)
    return solved.T @ rewards, variance
