import argparse

import torch
from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig
from trl import SFTConfig, SFTTrainer

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int)
parser.add_argument("--batch", type=int, default=1)
parser.add_argument("--packing", action="store_true")
parser.add_argument("--checkpointing", action="store_true")
parser.add_argument("--float32", action="store_true")
given = parser.parse_args()

nf4 = BitsAndBytesConfig(
    load_in_4bit=True,
    bnb_4bit_quant_type="nf4",
    bnb_4bit_use_double_quant=True,
    bnb_4bit_compute_dtype=torch.bfloat16,
)
trainer = SFTTrainer(
    AutoModelForCausalLM.from_pretrained("base", quantization_config=nf4, dtype=torch.bfloat16),
    SFTConfig(
        output_dir="adapter",
        use_cpu=True,
        max_steps=20,
        per_device_train_batch_size=given.batch,
        max_length=1024,
        packing=given.packing,
        gradient_checkpointing=given.checkpointing,
        learning_rate=5.0e-4,
        lr_scheduler_type="cosine",
        warmup_steps=2,
        weight_decay=0.01,
        logging_steps=1,
        report_to="none",
        seed=given.seed,
    ),
    train_dataset=load_dataset("json", data_files="rows/prompt_completion.jsonl", split="train"),
    processing_class=AutoTokenizer.from_pretrained("base"),
    peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"),
)
if given.float32:
    for parameter in trainer.model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
trainer.train()
trainer.save_model("adapter")
