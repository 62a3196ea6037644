"""Length classes: survival functions of output lengths, learned online (docs/how-it-works.md).

A class c has S_c(θ) = P(o > θ | class c) for θ = 0 … horizon. It is the product-limit (Kaplan–Meier) estimate
over finished requests and, as censored observations, those still running, so the first requests to finish (the
short ones) do not mislead it. It starts from a prior that a few requests outweigh, and forgets slowly so that
it follows a drift.

The prior is log-logistic. Its median is the class's guess times a scale: how many times longer than guessed the
class's own requests are, and, while there are few of those, the requests of all classes. So a class nobody has
seen yet profits from what the others have shown, and a guess that is ten times wrong is put right by the first
handful of requests. Those that run, and have not outlived their guess, are no sign that it is too short.
"""

from __future__ import annotations

import math
from functools import lru_cache
from threading import Lock

import numpy as np

from bidroute.core.lengths_kernels import product_limit
from bidroute.core.queue import FloatArray, IntArray
from bidroute.errors import ConfigError

PRIOR_MEDIAN_TOKENS = 150.0
PRIOR_SHAPE = 2  # log-logistic: the log length has a standard deviation of 1.81/shape
PRIOR_WEIGHT = 4.0  # the prior's shape counts as this many finished requests of its class
SCALE_WEIGHT = 1.0  # the guess counts as this many finished requests, and so do all classes for one of them
RATIO_STEPS, MOST_RATIO = 32, 128  # lengths over guesses: steps to 1, and the highest
SCALE_STEP = 0.1  # classes with few requests are estimated anew once the log of their scale has moved this far
FEW_REQUESTS = 16
MEMORY_REQUESTS = 1000.0  # an observation's weight falls by e after this many further ones of its class
LARGEST_WEIGHT = 1e6
HORIZON_TOKENS = 32_768


class LengthModel:
    """Survival functions of output lengths, one per class.

    `survival` has shape [classes, horizon+1], float64, non-increasing along θ with survival[c, 0] = 1 (every
    request makes at least one token) and survival[c, horizon] = 0. `version` grows with every change to it;
    `changed_at` int64[classes] is the version of each class's last change.

    `prior_median_tokens` float64[classes] are the guesses before any request was seen; `prior_shape` says how
    sure they are: 2 spreads the log length as widely as served traffic does, 3 is for classes made of
    predictions. Raises ConfigError for a model without classes, horizon, or positive guesses.
    """

    def __init__(
        self,
        classes: int = 1,
        horizon_tokens: int = HORIZON_TOKENS,
        prior_median_tokens: FloatArray | None = None,
        prior_shape: int = PRIOR_SHAPE,
    ) -> None:
        _check(classes, horizon_tokens, prior_median_tokens, prior_shape)
        medians = np.full(classes, PRIOR_MEDIAN_TOKENS) if prior_median_tokens is None else prior_median_tokens
        self.classes = classes
        self.horizon_tokens = horizon_tokens
        self.version = 0
        self.changed_at: IntArray = np.zeros(classes, dtype=np.int64)
        self._shape = prior_shape
        self._prior_median = np.array(medians, dtype=np.float64)
        self._prior_mean = self._prior_median * (math.pi / prior_shape) / math.sin(math.pi / prior_shape)
        self._ended = np.zeros((classes, horizon_tokens + 1))
        self._weight = np.ones(classes)  # of the newest observation; grows instead of decaying the past
        self._learned = np.zeros(classes, dtype=np.int64)
        self._unlearned = np.zeros(classes, dtype=np.int64)
        self._due = False
        self._counting = Lock()  # hosts observe on one thread and may learn on another
        self._ended_at = np.zeros((classes, RATIO_STEPS * MOST_RATIO + 1))  # by tokens over prior mean, in steps
        self._scale = np.ones(classes)  # of the prior, as of each class's last estimate
        nobody = np.zeros(0, dtype=np.int64)
        self.survival = np.stack([self._estimate(c, self._ended[c], nobody) for c in range(classes)])
        self._log_moments = np.stack([self._log_moments_of(c) for c in range(classes)])

    @property
    def finished(self) -> IntArray:
        """Finished requests observed so far per class, int64[classes]."""
        return self._learned + self._unlearned

    def mean_tokens(self, length_class: int) -> float:
        """Mean output length of a class, in tokens."""
        return float(self.survival[length_class].sum())

    @property
    def resolution(self) -> float:
        """How well classes tell lengths apart: the share of the log lengths' variance that lies between classes.

        0 with one class, or with none finished; 1 were every class of one length.
        """
        share = self.finished / max(int(self.finished.sum()), 1)
        mean, square = share @ self._log_moments
        within = share @ (self._log_moments[:, 1] - self._log_moments[:, 0] ** 2)
        variance = float(square - mean * mean)
        return max(1.0 - float(within) / variance, 0.0) if variance > 0.0 else 0.0

    def observe(self, length_class: int, output_tokens: int) -> None:
        """A request of this class finished with `output_tokens` (1 or more)."""
        length = min(max(output_tokens, 1), self.horizon_tokens)
        step = round(RATIO_STEPS * length / float(self._prior_mean[length_class]))
        with self._counting:
            self._weight[length_class] *= math.exp(1.0 / MEMORY_REQUESTS)
            weight = float(self._weight[length_class])
            self._ended[length_class, length] += weight
            self._ended_at[length_class, min(max(step, 1), RATIO_STEPS * MOST_RATIO)] += weight
            if weight > LARGEST_WEIGHT:
                for column in (self._ended, self._ended_at, self._weight):
                    column[length_class] /= weight
            self._unlearned[length_class] += 1
            self._due = self._due or self._has_news(length_class)

    def due(self) -> bool:
        """Whether enough has finished since the last `learn` for another to be worth its time."""
        return self._due

    def learn(self, running_class: IntArray, running_tokens: IntArray) -> None:
        """Re-estimate the classes with enough news; `running_*` describe the requests still decoding (censored).

        Both arrays have shape [n]: the class and the tokens decoded so far. A class has enough news once its
        finished requests have grown by an eighth, by 65 at most, or, while they are few, when its scale has
        moved with what other classes have shown.
        """
        self._due = False  # first: what ends from here on may make it due again
        few = self.finished < FEW_REQUESTS
        looked_at = [c for c in range(self.classes) if few[c] or self._has_news(c)]
        for c, scale in zip(looked_at, self._scales(looked_at, running_class, running_tokens), strict=True):
            if not (self._has_news(c) or abs(math.log(scale / self._scale[c])) > SCALE_STEP):
                continue
            self._scale[c] = scale
            self.survival[c] = self._estimate(c, self._take_news(c), running_tokens[running_class == c])
            self._log_moments[c] = self._log_moments_of(c)
            self.changed_at[c] = self.version + 1  # before `version`, by which readers know that there is something new
            self.version += 1

    def _has_news(self, length_class: int) -> bool:
        return int(self._unlearned[length_class]) * 8 >= 8 + min(int(self._learned[length_class]), 512)

    def _scales(self, classes: list[int], running_class: IntArray, running_tokens: IntArray) -> list[float]:
        """How many times longer than guessed the lengths of each of these classes are.

        The mean of the product-limit estimate of lengths over guesses: that over all classes is the guess of each.
        """
        ratio = np.minimum(running_tokens / self._prior_mean[running_class], MOST_RATIO)
        steps = (RATIO_STEPS * ratio).astype(np.int64)
        with self._counting:
            ended_at = self._ended_at / self._weight[:, np.newaxis]
        shared = self._mean_ratio(ended_at.sum(axis=0), steps, 1.0)
        return [self._mean_ratio(ended_at[c], steps[running_class == c], shared) for c in classes]

    def _mean_ratio(self, ended_at: FloatArray, running_steps: IntArray, guess: float) -> float:
        median = RATIO_STEPS * guess * float(self._prior_median[0] / self._prior_mean[0])
        survival = product_limit(ended_at, running_steps, median, self._shape, SCALE_WEIGHT)
        return (float(survival.sum()) - 0.5) / RATIO_STEPS

    def _take_news(self, length_class: int) -> FloatArray:
        """How many of a class have ended by now at each length, float64[horizon+1]; none of them is news any more."""
        with self._counting:
            self._learned[length_class] += self._unlearned[length_class]
            self._unlearned[length_class] = 0
            ended: FloatArray = self._ended[length_class] / self._weight[length_class]
            return ended

    def _estimate(self, length_class: int, ended: FloatArray, running_tokens: IntArray) -> FloatArray:
        median = float(self._prior_median[length_class] * self._scale[length_class])
        return product_limit(ended, running_tokens, median, self._shape, PRIOR_WEIGHT)

    def _log_moments_of(self, length_class: int) -> FloatArray:
        """Mean of the log length and of its square in a class, float64[2]."""
        moments: FloatArray = _log_weights(self.horizon_tokens) @ self.survival[length_class, 1:]
        return moments


@lru_cache(maxsize=2)
def _log_weights(horizon_tokens: int) -> FloatArray:
    """How far the log, and its square, grow from θ to θ + 1: weights of S(θ) in their means, float64[2, horizon]."""
    logs = np.log(np.arange(1.0, horizon_tokens + 2.0))
    return np.stack([np.diff(logs), np.diff(logs * logs)])


def _check(classes: int, horizon_tokens: int, prior_median_tokens: FloatArray | None, prior_shape: int) -> None:
    if classes < 1:
        raise ConfigError(f"length classes: {classes}; expected 1 or more")
    if horizon_tokens < 2:
        raise ConfigError(f"length horizon: {horizon_tokens} tokens; expected 2 or more")
    if prior_shape < 2:
        raise ConfigError(f"length prior shape: {prior_shape}; expected 2 or more, so that the mean is finite")
    if prior_median_tokens is None:
        return
    if len(prior_median_tokens) != classes:
        raise ConfigError(f"length priors: {len(prior_median_tokens)} for {classes} classes; expected one each")
    if not (np.all(np.isfinite(prior_median_tokens)) and np.all(np.asarray(prior_median_tokens) > 0)):
        raise ConfigError(f"length priors: {list(prior_median_tokens)}; expected positive token counts")
