import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

base = AutoModelForCausalLM.from_pretrained("base", dtype=torch.float16)
PeftModel.from_pretrained(base, "adapter").merge_and_unload().save_pretrained("merged")
AutoTokenizer.from_pretrained("base").save_pretrained("merged")
