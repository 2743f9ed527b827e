"""Sentences of papers that can be about criteria, and that cannot."""

from __future__ import annotations

ONE_TRUE = "Attention heads in the last layers copy the name of the indirect object."

SENTENCES: dict[str, tuple[list[str], list[str]]] = {
    "C1": (
        [
            "A recovery below 50 % of the logit difference would refute the claim.",
            "We predicted in advance that ablation lowers accuracy by at least 20 points.",
            "If the heads only moved positions, swapping the names should leave the output alone.",
        ],
        ["The mover heads sit in layers 9 and 10.", "We use GPT-2 small with 12 layers."],
    ),
    "C2": (
        [
            "The OV matrices of the movers copy tokens: 95 % have a positive diagonal.",
            "Their attention pattern peaks at the second name.",
            "The QK circuits compose with the output of earlier heads.",
        ],
        ["Accuracy falls from 0.95 to 0.60.", "We fixed three seeds before the experiment."],
    ),
    "C3": (
        [
            "For greater-than, the same heads recover 3 % of the logit difference.",
            "The same ablation leaves 98 % of the logit difference for indentation.",
            "On two other tasks the circuit does no better than chance.",
        ],
        ["Alone the heads suffice.", "The circuit has 26 heads in seven classes."],
    ),
    "C4": (
        [
            "Each head was removed in turn, and none could be spared.",
            "Pruning left 32 edges, and every one of them is needed.",
            "The circuit is minimal in the sense of leave-one-out.",
        ],
        ["The heads copy the name.", "Intervals are 95 % bootstrap intervals."],
    ),
    "C5": (
        [
            "A linear probe and path patching point to the same heads.",
            "Weights and ablations agree on 11 of the 12 heads.",
            "Three lines of evidence converge on layer 9.",
        ],
        ["The heads sit in layer 9.", "The sky over the prompts is blue."],
    ),
    "I1": (
        [
            "Without them 88 % is lost under resample ablation and 91 % under zero ablation.",
            "Knocking out the three heads reduces the logit difference by half.",
            "The behaviour depends on the mover heads.",
        ],
        ["The circuit has 26 heads.", "We train a sparse autoencoder with 4,096 latents."],
    ),
    "I2": (
        [
            "With all other heads ablated, the eleven heads alone recover 81 % of it.",
            "Patching in the outputs of these heads is sufficient to flip the answer.",
            "The circuit retains 87 % of the logit difference.",
        ],
        ["Removing them hurts.", "The names were drawn from a list of 100."],
    ),
    "I3": (
        [
            "Indentation keeps 98 % of its logit difference under the same ablation.",
            "Perplexity on WebText was unchanged when the heads were removed.",
            "Scores on MMLU drop by less than 1 %.",
        ],
        ["The heads copy the name.", "Ablation lowers accuracy from 0.95 to 0.60."],
    ),
    "I4": (
        [
            "Five seeds gave the same heads.",
            "Across three templates recovery varies between 0.84 and 0.88.",
            "The ranking replicates on a second sample of prompts.",
        ],
        ["The heads copy the name.", "A head is a unit of attention."],
    ),
    "I5": (
        [
            "Recovery is 79 % under mean ablation and 81 % under resample ablation.",
            "Position alone does not explain the effect.",
            "As a control we shuffled the names in the corrupted prompts.",
        ],
        ["The heads copy the name.", "Twenty heads move the second name to the end."],
    ),
    "M1": (
        [
            "95 % interval 78 to 84 %",
            "The standard deviation over three seeds is 1.1 %.",
            "Accuracy was 0.87 ± 0.02.",
            "0.81 [0.78, 0.84]",
        ],
        ["The heads recover 87 % of it.", "We ablated the heads on 40 prompts."],
    ),
    "M2": (
        [
            "Recovery is the same for male and female names.",
            "A test of equivalence (TOST) across prompt lengths gave p = .003.",
            "The effect does not differ between templates.",
        ],
        ["The heads copy it.", "Alone they suffice."],
    ),
    "M3": (
        [
            "Random sets of eleven heads recover 7 %, the same heads of an untrained copy 1 %.",
            "Chance is 50 % here.",
            "A baseline of shuffled labels reaches 0.52.",
        ],
        ["The heads recover 81 % of it.", "The names were taken from a public list."],
    ),
    "M4": (
        [
            "On models whose circuit is known the method finds 96 % of the edges.",
            "In Tracr models with a planted circuit its AUROC is .93.",
            "A synthetic feature of known size was recovered.",
        ],
        ["The heads copy the name.", "Accuracy falls when they are removed."],
    ),
    "M5": (
        [
            "Wang et al. (2023) report 87 % for the same circuit.",
            "A value of 1 is that of the full model and 0 that of chance.",
            "The effect is as large as that of published circuits.",
        ],
        ["The heads copy the name.", "We ablated the movers in turn."],
    ),
    "M6": (
        [
            "The logit difference does not measure whether the name is generated in free text.",
            "Probe accuracy is only a proxy for what the model uses.",
            "Our metric captures the choice between two names and nothing else.",
        ],
        ["The heads copy the name.", "Ablating them hurts."],
    ),
    "E1": (
        [
            "Patching the head changes the logit difference by 1.2.",
            "After zero ablation the activation of the mover falls to 0.",
            "Steering along the direction flips 70 % of the answers.",
        ],
        ["The heads copy the name.", "The circuit has 26 members."],
    ),
    "E2": (
        [
            "The effect grows monotonically over nine steering strengths.",
            "Scaling the vector by alpha from 0 to 2 raises the probability smoothly.",
            "The stronger the intervention, the lower the accuracy.",
        ],
        ["The heads copy the name.", "Without them 88 % is lost."],
    ),
    "E3": (
        [
            "Ablation costs brackets 44 times what it costs indentation.",
            "The effect is twice as large on IOI as on greater-than.",
            "Other tasks lose less than 2 %.",
        ],
        ["The heads copy the name.", "The circuit has 26 members."],
    ),
    "E4": (
        [
            "Accuracy drops by 35 points.",
            "They account for nearly all of the logit difference.",
            "the eleven heads alone recover 81 % of it",
        ],
        ["The heads copy the name.", "Their attention pattern peaks at the second name."],
    ),
    "E5": (
        [
            "2,000 prompts that were held out",
            "On paraphrased prompts the circuit recovers 79 %.",
            "The worst of 10,000 prompts still keeps half of the logit difference.",
            "It works on five other templates.",
        ],
        ["The heads copy the name.", "Alone the heads suffice."],
    ),
    "E6": (
        [
            "The same heads are found in another model of a different family.",
            "Llama 3 8B and Pythia-2.8B both have such heads.",
            "The circuit also appears in GPT-2 medium.",
            "We replicate the result across four architectures.",
        ],
        ["We use GPT-2 small.", "The heads copy the name on five other templates."],
    ),
    "V1": (
        [
            "Our claim is at the algorithmic level.",
            "We describe what the heads compute, not how their weights do it.",
            "This is an implementational account of the circuit.",
        ],
        ["The heads copy the name.", "Ablating them costs 35 points of accuracy."],
    ),
    "V2": (
        [
            "That heads read the count was tested by patching their inputs.",
            "Ablating them lowers the logit difference by half.",
            "a linear probe on head 2.1 reads it with 96 % accuracy",
        ],
        ["We thank our colleagues.", "The heads copy the name."],
    ),
    "V3": (
        [
            ONE_TRUE,
            "Depth heads write how many brackets are open, and closer heads read it.",
            "The MLP of layer 8 promotes larger years.",
        ],
        ["Five seeds were used.", "95 % interval 78 to 84 %"],
    ),
    "V4": (
        [
            "Position alone does not explain it.",
            "An alternative is that the heads only detect repetition; swapping names excludes it.",
            "The data could also be explained by a unigram heuristic.",
        ],
        ["The heads copy the name.", "Ablating them costs 35 points of accuracy."],
    ),
    "V5": (
        [
            "We looked at one model and at round brackets alone.",
            "Our claims are limited to prompts of this template.",
            "All of this is about GPT-2 small.",
        ],
        ["The heads copy the name.", "Ablating them costs 35 points of accuracy."],
    ),
}
"""By criterion: what its rule takes, and what it does not."""
