"""Duals of small overlapping problems by an interior point method: few rounds, however the groups overlap."""

import torch
from torch import Tensor

OUTER, INNER, HALVINGS = 40, 30, 30  # bounds that ordinary problems do not reach
LAST = 1e-14  # of the scale of the problem, where the path ends


def central_duals(x: Tensor, steps: Tensor, places: Tensor, owner: Tensor, reach: Tensor) -> Tensor:
    """One number per pair (places, owner): duals near the optimum of sum_g reach_g |v_g| + sum (v - x)^2 / (2 steps).

    The path of  reach_g * t_g - mu * log(t_g^2 - |v_g|^2)  for mu to zero, with t_g eliminated, by Newton on v; the
    dual of a group is reach_g * v_g / t_g, inside its ball. Those of dead groups stay well inside, as blocks after
    blocks of a dual descent do not: that is what tells them. Dense: for up to a thousand entries.
    """
    moved = (torch.zeros_like(x).index_add(0, places, reach[owner]) > 0) & (steps > 0)
    held, steps = torch.where(moved, 0.0, x), torch.where(moved & steps.isfinite(), steps, 1.0)
    start = torch.where(moved, x, 0.0)
    inside = torch.zeros(len(reach), len(x), dtype=x.dtype)
    inside[owner, places] = 1.0
    path = _Path(start, steps, moved, held, inside[reach > 0], reach[reach > 0])
    v, mu = start.clone(), float((reach[reach > 0] * (inside[reach > 0] @ x.square()).sqrt()).max())
    end = LAST * mu
    best, least = torch.zeros(len(places), dtype=x.dtype), torch.inf
    for _ in range(OUTER):
        v = path.centre(v, mu)
        weight = torch.zeros_like(reach)
        weight[reach > 0] = path.terms(v, mu)[0]
        duals = weight[owner] * (v + held)[places]
        rest = start - torch.where(moved, steps * torch.zeros_like(x).index_add(0, places, duals), 0.0)
        energy = float((rest.square() / steps).sum())
        if energy < least:  # rounding may spoil the end of the path
            best, least = duals, energy
        if not mu > end:
            break
        mu *= 0.1
    return best


class _Path:
    def __init__(self, x, steps, moved, held, inside, reach):
        self.x, self.steps, self.moved, self.inside, self.reach = x, steps, moved, inside, reach
        self.fixed = inside @ held.square()

    def terms(self, v: Tensor, mu: float) -> tuple[Tensor, Tensor]:
        """reach / t and how fast it falls: the pull of each group is v * reach / t."""
        root = (mu**2 + self.reach.square() * (self.inside @ v.square() + self.fixed)).sqrt()
        pull = self.reach.square() / (mu + root)
        return pull, pull.square() / root

    def slope(self, v: Tensor, mu: float) -> Tensor:
        pull, _ = self.terms(v, mu)
        return torch.where(self.moved, (v - self.x) / self.steps + v * (pull @ self.inside), 0.0)

    def centre(self, v: Tensor, mu: float) -> Tensor:
        """Newton, each step as long as it does not overshoot: asked by slopes, in which nothing cancels."""
        for _ in range(INNER):
            slope = self.slope(v, mu)
            move = self.newton(v, mu, slope)
            fall = float(slope @ move)
            if not -fall > 1e-3 * mu:
                break
            share = 1.0
            for _ in range(HALVINGS):
                if abs(float(self.slope(v + share * move, mu) @ move)) <= -0.9 * fall:
                    break
                share *= 0.5
            v = v + share * move
        return v

    def newton(self, v: Tensor, mu: float, slope: Tensor) -> Tensor:
        pull, bend = self.terms(v, mu)
        scale = (1 / self.steps + pull @ self.inside).rsqrt()
        rows = bend.sqrt()[:, None] * self.inside * (v * scale)
        matrix = torch.eye(len(v), dtype=v.dtype) - rows.T @ rows
        factor, failed = torch.linalg.cholesky_ex(matrix + 1e-15 * torch.eye(len(v), dtype=v.dtype))
        if failed:
            return -scale.square() * slope
        return -scale * torch.cholesky_solve((scale * slope)[:, None], factor)[:, 0]
