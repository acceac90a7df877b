"""The equations in 60 digits, where double precision is what is tested.

RBF kernels of unit variance only, one loop over every number. ``noise`` is lambda.
"""

import mpmath
import numpy as np


DIGITS = 60


def gram(X, Y, lengthscale):
    """Return the matrix of RBF kernel values, rows of floats taken as they are."""
    scale = 2 * mpmath.mpf(lengthscale) ** 2
    return mpmath.matrix(
        [
            [
                mpmath.exp(
                    -sum(
                        (mpmath.mpf(a) - mpmath.mpf(b)) ** 2
                        for a, b in zip(x, y, strict=True)
                    )
                    / scale
                )
                for y in Y
            ]
            for x in X
        ]
    )


def dtc_moments(arms, lengthscale, noise, inducing, pulled, counts, sums):
    """Return means and variances of all arms; [BBKB] (1), (2), DESIGN 3.

    In the form without the features, ``k_S^T (lambda K_S + K_SP N K_PS)^{-1} K_SP s``;
    where every pulled arm is inducing in that of the exact GP, which needs no K_S^{-1}.
    """
    with mpmath.workdps(DIGITS):
        S, P = [arms[i] for i in inducing], [arms[i] for i in pulled]
        lam = mpmath.mpf(noise)
        n = [mpmath.mpf(count) for count in counts]
        s = mpmath.matrix([mpmath.mpf(value) for value in sums])
        K_sx = gram(S, arms, lengthscale)
        if inducing == pulled:
            lost = mpmath.inverse(
                gram(P, P, lengthscale) + mpmath.diag([lam / count for count in n])
            )
            target = mpmath.matrix([a / b for a, b in zip(s, n, strict=True)])
            mean = K_sx.T * (lost * target)
        else:
            K_ss, K_sp = gram(S, S, lengthscale), gram(S, P, lengthscale)
            B = mpmath.inverse(lam * K_ss + K_sp * mpmath.diag(n) * K_sp.T)
            mean = K_sx.T * (B * (K_sp * s))
            lost = mpmath.inverse(K_ss) - lam * B
        columns = [K_sx[:, j] for j in range(len(arms))]
        variance = [1 - (k.T * lost * k)[0] for k in columns]
        return (
            np.array([float(value) for value in mean]),
            np.array([float(value) for value in variance]),
        )


def solve_lower(L, B):
    """Return the solution of a lower triangular system, by substitution."""
    with mpmath.workdps(DIGITS):
        X = [[mpmath.mpf(0)] * B.shape[1] for _ in range(len(L))]
        for i, row in enumerate(L):
            for column in range(B.shape[1]):
                known = mpmath.fsum(mpmath.mpf(row[j]) * X[j][column] for j in range(i))
                rest = mpmath.mpf(B[i, column]) - known
                X[i][column] = rest / mpmath.mpf(row[i])
        return np.array([[float(value) for value in row] for row in X])
