"""How good a circuit is: ablation, faithfulness, curves over sizes, known answers."""

from __future__ import annotations

from mechassay.utils.registry import Registry

METRICS = Registry(
    "metric",
    {
        "recovery": "mechassay.circuits.evaluation.metrics:RecoveryMetric",
        "completeness": "mechassay.circuits.evaluation.metrics:CompletenessMetric",
        "cma": "mechassay.circuits.evaluation.metrics:AgreementMetric",
        "minimality": "mechassay.circuits.evaluation.metrics:MinimalityMetric",
    },
)
