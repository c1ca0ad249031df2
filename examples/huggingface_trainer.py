"""A Hugging Face Trainer under watch: gradients before and after its clipping, beside its own logs."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

import gradient_flow as gf

set_seed(0)
size = {"n_positions": 32, "n_embd": 48, "n_layer": 3, "n_head": 3}
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, bos_token_id=0, eos_token_id=0, **size))
starts = torch.randint(64, (400,)).tolist()
counting = [(torch.arange(16) + start) % 64 for start in starts]
data = [{"input_ids": tokens, "labels": tokens} for tokens in counting]
args = TrainingArguments(
    output_dir="runs/huggingface/checkpoints",
    max_steps=60,
    logging_steps=20,
    learning_rate=3e-3,
    per_device_train_batch_size=8,
    gradient_accumulation_steps=2,
    max_grad_norm=1.0,
    save_strategy="no",
    report_to="none",
    dataloader_pin_memory=False,
)
callback = gf.GradientFlowCallback(run="runs/huggingface")
trainer = Trainer(model, args, train_dataset=data, callbacks=[callback])
trainer.train()
