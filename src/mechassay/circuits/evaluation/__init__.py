"""How good a circuit is: ablation, faithfulness, curves over sizes, known answers."""
