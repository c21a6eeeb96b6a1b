import torch
from transformers import BertConfig, BertForMaskedLM, PrinterCallback, Trainer, TrainingArguments

labels = ([1] + 7 * [-100], [1, 2, 3, 4, 5, 6, 7, 8])  # the first row has one label, the second has eight
rows = [{"input_ids": torch.arange(8), "labels": torch.tensor(row)} for row in labels]
tiny = {"vocab_size": 16, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
options = {"max_steps": 1, "logging_steps": 1, "report_to": [], "disable_tqdm": True, "use_cpu": True, "save_strategy": "no"}
for batch, steps in ((2, 1), (1, 2)):  # the same two rows, in one step of the optimizer
    torch.manual_seed(0)
    model = BertForMaskedLM(BertConfig(**tiny, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    args = TrainingArguments("out", per_device_train_batch_size=batch, gradient_accumulation_steps=steps, **options)
    trainer = Trainer(model, args, train_dataset=rows)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    print(f"batch {batch}, accumulation {steps}: norm of the gradient {trainer.state.log_history[0]['grad_norm']:.4f}")
