"""What the page of `knotflow reproduce all` says about each figure and table, and why numbers differ."""

from __future__ import annotations

from typing import Final

CLAIMS: Final = (
    "The paper's claims: forces of B-splines are continuous like those of Smooth, and those of RQ-splines "
    "are not; so B-splines learn forces as well as Smooth does, molecules can move on them, and they are "
    "drawn from faster.",
)
RINGS: Final = {
    "interval": (
        "Three kinds of flow learn a density of four rings on the unit square. Density above, force "
        "below: the paper shows that forces of RQ-splines are torn, those of Smooth and B-splines are not.",
        "Why it differs: all three flows have the paper's four couplings and networks, but were trained "
        "by one recipe of ours (a larger rate that rises and falls, decay of the weights, a mean over "
        "steps), which was tuned on B-splines; small leads of theirs mean little. The paper's text says "
        "8,000 epochs, its code 8,000 steps, as the scale paper has; the scale small has 1,500.",
    ),
    "circle": (
        "The same rings on the torus, from the paper's appendix.",
        "Why it differs: as in figure 1. The true force itself jumps at the seam of this density, which "
        "no flow on the circle can follow; the seam is left out when jumps are looked for.",
    ),
}
MAPS: Final = (
    "All B-splines that the trained flows of figures 1 and 5 apply to 25 of their samples: smooth, "
    "increasing, and on the circle periodic with their slopes. There are no numbers to compare.",
)
TABLE1: Final = (
    "Five flows of alanine dipeptide with the paper's couplings, networks and numbers of parameters, "
    "judged on frames that were held back. No model can have an NLL below -213.42 in the paper's measure; "
    "how far one is from the best that is possible is the column NLL above its limit, which the paper "
    "does not have.",
    "Why it differs: the paper has 900,000 training frames and so more steps; it drew test frames at "
    "random, and again for the evaluation, so that most had been trained on, while here whole stretches "
    "of the simulation are held back. Its density leaves out a factor of the rigid frame; NLL and KLD are "
    "given in its measure to compare, the other columns with the correct density. Trained by recipe "
    "means: wider bins of B-splines at least, a start from the marginals, clipped gradients, a warm-up and a "
    "mean over steps; as published means: none of these. KLD is a mean of energies, up to those of "
    "clashes, and so depends on the worst samples; it is of 1,000 samples in the paper.",
    "± are two standard errors over seeds, where there are several. The paper's large ± of B-spline+FM "
    "come from one outlier in ten; it suspects the formula for roots of cubics, but training never uses "
    "it.",
)
FORCES: Final = (
    "Components of the force on every atom, of the flow over that of the force field; above on test "
    "frames, below on samples of the flow. All pictures have the same axes and colours.",
    "Why it differs: see Table 1. The paper's error of RQ-splines, 80 ± 93 over ten repeats, must be that "
    "of a few outliers; a single run with our recipe, at the scale small, had 2.0.",
)
DYNAMICS: Final = (
    "The paper shows the potential energy of ten molecules that move on each flow: those on the RQ-spline "
    "leave at once, those on Smooth and B-spline, both with forces matched, stay. The total energy, which "
    "must be constant without a thermostat, tells more, and the true force field shows how well the "
    "integrator can do.",
    "Why it differs: other frames to start from, none of which was trained on; other weights, see Table "
    "1; all numbers in float64; and what broken means is ours, for the paper gives no rule. RQ-splines have "
    "a larger floor of density where there are no data than the other two, over which molecules leave more "
    "easily; so the drift of the total energy, not the count of the broken, shows what jumps of a force do.",
)
TABLE2: Final = (
    "How long a flow takes in both directions. The claim is that of proportions: the forward direction "
    "takes about as long for all, and only Smooth has to search for its inverse.",
    "Why it differs: this machine and batch size are not the paper's, and its text does not say how large "
    "batches were, so compare rows, not columns. Our inverse of Smooth is bracketed Halley's method, "
    "which needs fewer steps than bisection.",
)
ARCHITECTURE: Final = (
    "A drawing in the paper; in words: a coupling gives one part of the coordinates to a network, which "
    "returns the parameters of the maps of the others. 19 torsions on circles are split into 9 and 10, "
    "and each half is mapped given the other, twice. Then 20 angles on [0.15π, π] are mapped given the "
    "torsions, and 21 bonds on [0.05, 0.3] nm given both. Networks have two hidden layers of 64 with "
    "sines; angles on circles enter as sine and cosine. The base distribution is uniform.",
    "Why it differs: it does not. The paper's text speaks of eight and four layers, but only these six "
    "couplings have its numbers of parameters, which Table 2 compares. B-splines have 32 bins, RQ-splines "
    "16, Smooth 8 components.",
)
_ROWS: Final = (
    "Above: test frames; below: samples of the flow. How often pairs of backbone torsions occur, forces "
    "as in figure 3, and histograms of the energies of flow and force field, the flow's shifted to the "
    "same minimum, as in the paper. The legend has the share that is beyond the picture."
)
_WHY: Final = "Why it differs: other data and training, see Table 1; the paper has no numbers here."
LOOKS: Final = {
    7: (_ROWS, _WHY),
    8: (_ROWS, _WHY),
    9: (
        _ROWS,
        _WHY
        + " Its caption says that forces were matched; its Table 1 has no such RQ-spline, so this is the "
        "one of Table 1, trained by likelihood.",
    ),
}
"""By figure."""
