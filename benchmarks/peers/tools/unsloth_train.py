# ruff: noqa: I001 (Unsloth wants to be imported first)
import argparse

from unsloth import FastLanguageModel
from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int)
parser.add_argument("--nf4", action="store_true")
given = parser.parse_args()

model, tokenizer = FastLanguageModel.from_pretrained("base", max_seq_length=1024, load_in_4bit=given.nf4)
model = FastLanguageModel.get_peft_model(
    model,
    r=16,
    lora_alpha=32,
    lora_dropout=0,
    target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    random_state=given.seed,
)
trainer = SFTTrainer(
    model=model,
    args=SFTConfig(
        output_dir="adapter",
        max_steps=20,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=1,
        max_length=1024,
        packing=True,
        learning_rate=5.0e-4,
        lr_scheduler_type="cosine",
        warmup_steps=2,
        weight_decay=0.01,
        optim="adamw_torch",
        logging_steps=1,
        report_to="none",
        seed=given.seed,
    ),
    train_dataset=load_dataset("json", data_files="rows/prompt_completion.jsonl", split="train"),
    processing_class=tokenizer,
)
trainer.train()
model.save_pretrained("adapter")
tokenizer.save_pretrained("adapter")
model.save_pretrained_merged("merged", tokenizer, save_method="merged_16bit")
