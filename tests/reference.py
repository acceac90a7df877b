"""Dense, slow, plain NumPy answers. Imports nothing of the package.

Everything works on Gram matrices (the caller takes them from a kernel object) and is
recomputed from scratch at every step. Equation numbers: [BKB] the COLT paper, [BBKB]
the batch paper.
"""

import math

import numpy as np


def nystrom_root(K_ss, K_sx, rtol=1e-12):
    """Return Z with Z^T Z = K_xs K_ss^+ K_sx; [BKB] section 3.1, (K_S^{1/2})^+ k_S."""
    values, vectors = np.linalg.eigh(K_ss)
    kept = values > rtol * max(values.max(initial=0.0), 1e-300)
    return (vectors[:, kept] / np.sqrt(values[kept])).T @ K_sx


def dtc_posterior(K_ss, K_sp, K_sx, K_xx, weights, targets):
    """Return DTC mean and covariance; [BBKB] (1), (2), the variance times lambda.

    ``weights`` are n_i / lambda (sums of 1 / Yvar) of the pulled points ``p``, and
    ``targets`` their weighted mean rewards.
    """
    Z_p, Z_x = nystrom_root(K_ss, K_sp), nystrom_root(K_ss, K_sx)
    V = np.eye(len(Z_p)) + (Z_p * weights) @ Z_p.T
    mean = Z_x.T @ np.linalg.solve(V, Z_p @ (weights * targets))
    covariance = K_xx - Z_x.T @ Z_x + Z_x.T @ np.linalg.solve(V, Z_x)
    return mean, covariance


def projected_covariance(K_ss, K_sp, K_sx, weights):
    """Return z^T V^{-1} z' (true units): the part a pull enters the model through."""
    Z_p, Z_x = nystrom_root(K_ss, K_sp), nystrom_root(K_ss, K_sx)
    V = np.eye(len(Z_p)) + (Z_p * weights) @ Z_p.T
    return Z_x.T @ np.linalg.solve(V, Z_x)


def exact_posterior(K_pp, K_px, K_xx, noise, y):
    """Return the exact GP's mean and covariance, one row per pull; [BKB] (1), (2)."""
    A = K_pp + np.diag(noise)
    mean = K_px.T @ np.linalg.solve(A, y)
    return mean, K_xx - K_px.T @ np.linalg.solve(A, K_px)


class Arms:
    """The posterior over all arms of a Gram matrix, given counts, sums and S."""

    def __init__(self, gram, noise):
        self.gram, self.noise = gram, noise

    def posterior(self, S, counts, sums):
        """Return mean, variance and projected covariance of all arms."""
        p = np.flatnonzero(counts)
        S = np.asarray(S, dtype=int)
        blocks = self.gram[np.ix_(S, S)], self.gram[np.ix_(S, p)], self.gram[S]
        weights = counts[p] / self.noise
        mean, covariance = dtc_posterior(
            *blocks, self.gram, weights, sums[p] / counts[p]
        )
        return mean, np.diag(covariance), projected_covariance(*blocks, weights)

    def log_det(self, S, counts):
        """Return log det(I + K / lambda) over pulls, K by Nystrom; [BKB] (6)."""
        p = np.flatnonzero(counts)
        S = np.asarray(S, dtype=int)
        Z = nystrom_root(self.gram[np.ix_(S, S)], self.gram[np.ix_(S, p)])
        V = np.eye(len(Z)) + (Z * (counts[p] / self.noise)) @ Z.T
        return np.linalg.slogdet(V)[1]


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
    grow=False,
    pending=(),
    pending_scores=(),
    first=None,
    capacity=None,
    max_pulls=2000,
):
    """Choose one batch, recomputing everything at every pull; [BBKB] algorithm 1.

    ``rule`` is one of fixed, sum, projected, product, local.
    """
    arms = Arms(gram, noise)
    S, now = list(S), counts.astype(float).copy()
    mean, start, projected = arms.posterior(S, counts, sums)
    whole = np.diag(start) if not grow else None
    left = np.full(len(gram), np.inf) if capacity is None else capacity.astype(float)
    # Full covariance at the start, for the local rule when S grows.
    p = np.flatnonzero(counts)
    index = np.asarray(S, dtype=int)
    full = dtc_posterior(
        gram[np.ix_(index, index)],
        gram[np.ix_(index, p)],
        gram[index],
        gram,
        counts[p] / noise,
        sums[p] / np.maximum(counts[p], 1),
    )[1]
    for arm in pending:
        S += [] if arm in S else [arm]
        now[arm] += 1
    total, product = 1.0 + sum(pending_scores), np.prod([1 + s for s in pending_scores])
    own = np.zeros(len(gram))
    projected_total = total
    local = np.full(len(gram), total)
    cross = projected.copy() if not grow else full.copy()
    np.fill_diagonal(cross, start)
    shares = cross**2 / (noise * np.maximum(start, 1e-300))[:, None]
    batch = []
    del whole
    while len(batch) < max_pulls:
        variance = np.maximum(arms.posterior(S, now, sums)[1], 0.0)
        scores = mean + width * np.sqrt(variance / noise)
        scores[left <= 0] = -np.inf
        arm = first if first is not None and not batch else int(np.argmax(scores))
        if scores[arm] == -np.inf:
            break
        batch.append(arm)
        if grow and arm not in S:
            S.append(arm)
        now[arm] += 1
        left[arm] -= 1
        score = start[arm] / noise
        total += score
        product *= 1 + score
        projected_total += projected[arm, arm] / noise
        own[arm] += score
        local = local + shares[:, arm]
        closed = {
            "fixed": len(batch) >= size,
            "sum": total > threshold,
            "product": product > threshold,
            "projected": (total if grow else projected_total) > threshold
            or 1 + own.max() > threshold,
            "local": total > threshold and local.max() > threshold,
        }[rule]
        if closed:
            break
    return batch


def inclusion_probability(leverage, counts, oversampling, merged=True):
    """Return min(1, n q tau), or 1 - (1 - min(1, q tau))^n pull by pull."""
    if merged:
        return np.minimum(1, counts * oversampling * leverage)
    return 1 - (1 - np.minimum(1, oversampling * leverage)) ** counts


def resample(leverage, counts, oversampling, uniforms, merged=True):
    """Return the positions that are kept; the largest score if none is."""
    kept = uniforms < inclusion_probability(leverage, counts, oversampling, merged)
    return np.flatnonzero(kept) if kept.any() else np.array([np.argmax(leverage)])


def practical_bkb_width(t, effective_dimension, noise, F, delta):
    information = math.log(max(t, 1)) * effective_dimension
    return math.sqrt(noise) * (F + math.sqrt(information + math.log(1 / delta)))


def practical_bbkb_width(frozen, ratio, noise, F, delta):
    information = ratio * np.log1p(frozen).sum()
    return math.sqrt(noise) * (F + math.sqrt(information + math.log(1 / delta)))


def chowdhury_gopalan_width(log_det, noise, F, delta):
    return math.sqrt(noise) * (F + math.sqrt(2 * (log_det + math.log(1 / delta))))


def run_bandit(
    gram,
    noise,
    reward,
    draw_first,
    draw_uniforms,
    num_pulls,
    *,
    rule="sum",
    width="bbkb",
    exact=False,
    oversampling=2.0,
    coupled=False,
    threshold=2.0,
    size=1,
    F=1.0,
    delta=0.05,
):
    """Run BKB, BBKB, GP-UCB or GP-BUCB, all dense; returns arms, batches and sets.

    One uniform number per pulled arm in ascending order at each resampling; coupled:
    one per arm, drawn at the first.
    """
    num_arms = len(gram)
    arms = Arms(gram, noise)
    counts, sums = np.zeros(num_arms), np.zeros(num_arms)
    S, frozen, batches, sets, uniforms = [], [], [], [], None
    grow = exact or rule == "fixed"
    variance = np.diag(gram)
    while sum(map(len, batches)) < num_pulls:
        if not batches:
            batch = [draw_first()]
            if rule == "fixed" and size > 1:
                w = _width(width, 0, 0.0, np.array([]), 0.0, threshold, noise, F, delta)
                batch = greedy_batch(
                    gram,
                    noise,
                    [],
                    counts,
                    sums,
                    w,
                    rule,
                    size=size,
                    grow=grow,
                    first=batch[0],
                )
        else:
            p = np.flatnonzero(counts)
            if exact:
                S = list(p)
            else:
                if coupled and uniforms is None:
                    uniforms = draw_uniforms(num_arms)
                u = uniforms[p] if coupled else draw_uniforms(len(p))
                S = list(p[resample(variance[p] / noise, counts[p], oversampling, u)])
            variance = arms.posterior(S, counts, sums)[1]
            w = _width(
                width,
                int(counts.sum()),
                (counts * variance).sum() / noise,
                np.array(frozen[1:]),
                arms.log_det(S, counts),
                threshold,
                noise,
                F,
                delta,
            )
            batch = greedy_batch(
                gram,
                noise,
                S,
                counts,
                sums,
                w,
                rule,
                threshold=threshold,
                size=size,
                grow=grow,
            )
        sets.append(sorted(int(arm) for arm in S))
        frozen += [variance[arm] / noise for arm in batch]
        batches.append(batch)
        for arm in batch:
            counts[arm] += 1
            sums[arm] += reward(arm)
    return batches, sets


def _width(name, t, d_eff, frozen, log_det, ratio, noise, F, delta):
    if name == "bkb":
        return practical_bkb_width(t, d_eff, noise, F, delta)
    if name in ("bbkb", "plates"):
        # A fixed size promises no ratio: 1 takes its place.
        ratio = ratio if name == "bbkb" else 1.0
        return practical_bbkb_width(frozen, ratio, noise, F, delta)
    if name == "gpucb":
        return chowdhury_gopalan_width(log_det, noise, F, delta)
    return name
