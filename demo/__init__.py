"""How the demo checkpoint `splash/_demo` is made: text, tokenizer, model, training. Not part of the wheel."""
